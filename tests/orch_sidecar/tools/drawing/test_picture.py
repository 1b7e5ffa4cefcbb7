"""Pictures: what is drawn where, by the marks and texts of matplotlib's own figure."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from math import dist

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orch_sidecar.tools.drawing.chart import Axis, Chart, Marked, Series, by_size
from orch_sidecar.tools.drawing.picture import drawn, element_of
from orch_sidecar.tools.drawing.texts import html_of
from tests.fuzz import examples
from tests.orch_sidecar.tools.drawing.html_reader import Page

MEASURED = Series("measured", (1, 2, 4, 8), (90, 180, 360, 720))
FITTED = Series("fitted", (1, 4, 8), (91, 318, 562), "--", "", 1)


def sized(*series: Series, linear: bool = False, marked: Sequence[Marked] = ()) -> Chart:
    return by_size("Throughput", "of one engine", "batch", "tokens/s", series, linear, *marked)


def shown(chart: Chart) -> Page:
    return Page(html_of(element_of(chart, 7)))


def marks_of(chart: Chart) -> list[tuple[float, float]]:
    """Returns where the markers of the first series lie."""
    root = element_of(chart, 1)
    lines = [
        [(float(use.get("x", "0")), float(use.get("y", "0"))) for use in group.findall("use")]
        for group in root.iter("g")
        if group.get("clip-path")
    ]
    return next(points for points in lines if len(points) == len(chart.series[0].xs))


def slopes(points: Sequence[tuple[float, float]]) -> list[float]:
    return [(after[1] - before[1]) / (after[0] - before[0]) for before, after in pairwise(points)]


def test_what_is_proportional_is_straight_on_axes_by_size() -> None:
    found = marks_of(sized(MEASURED))
    assert slopes(found) == pytest.approx([slopes(found)[0]] * 3)
    gaps = [after[0] - before[0] for before, after in pairwise(found)]
    assert gaps == pytest.approx([gaps[0]] * 3), "batches double"
    assert {"1", "2", "4", "8"} <= set(shown(sized(MEASURED, FITTED)).texts), "so do ticks"


def test_what_grows_by_a_constant_is_straight_on_linear_axes() -> None:
    found = slopes(marks_of(sized(Series("steps", (1, 2, 4, 8), (5, 6, 8, 12)), linear=True)))
    assert found == pytest.approx([found[0]] * 3)


def test_sizes_that_are_near_make_linear_axes_from_0() -> None:
    near = sized(Series("near", (2, 3), (90, 170)))
    assert not near.x.log
    assert "0" in shown(near).texts
    for xs, ys in (((1, 8), (0, 5)), ((0, 8), (1, 5))):
        assert not sized(Series("none", xs, ys)).x.log, "0 has no logarithm"


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(st.floats(1e-3, 1e9), min_size=2, max_size=5))
def test_any_figures_have_ticks_around_them(values: list[float]) -> None:
    chart = sized(Series("any", range(1, 4 * len(values), 4), values))
    numbers = [text for text in shown(chart).texts if re.fullmatch(r"[\d.,]+(e[+-]?\d+)?", text)]
    assert max(float(each.replace(",", "")) for each in numbers) >= 0.09 * max(values)


def test_names_are_no_formulas_and_stay_text() -> None:
    odd = r"_$\no_such$ <b>"
    chart = by_size(odd, odd, odd, odd, [Series(odd, (1,), (1,)), FITTED], linear=True)
    page = shown(chart)
    assert page.loads_nothing()
    assert list(page.texts).count(odd) == 5
    assert len(drawn(".svg", odd, [chart])) > 5000


def test_every_look_is_drawn() -> None:
    looks = [
        Series("bars", (0, 1, 2), (5, 3)),
        Series("shares", (0, 1, 2), (), "--", color=1),
        Series("points", (1, 2), (3, 4), margins=(0.5, None)),
        Series("hollow", (2,), (5,), "", hollow=True),
    ]
    chart = Chart("all", "", Axis("ms"), Axis("requests"), looks)
    page = shown(chart)
    assert {each.name for each in looks} <= set(page.texts)
    fills = " ".join(each.get("style", "") for each in page.all("path") + page.all("use"))
    assert "fill: var(--s0)" in fills
    assert "fill: var(--paper)" in fills, "what does not count is hollow"
    assert "stroke: var(--s1)" in fills


def test_lines_are_in_the_picture_and_have_their_names_in_the_legend() -> None:
    marks = [
        Marked("p50 2", 2), Marked("p95 5", 5), Marked("p99 5.1", 5.1),
        Marked("SLO 7", 7, is_bound=True), Marked("above all points", 5000, horizontal=True),
    ]  # fmt: skip
    page = shown(sized(MEASURED, linear=True, marked=marks))
    assert {"8", "4,000", *(each.name for each in marks)} <= set(page.texts)
    assert any("var(--bad)" in each.get("style", "") for each in page.all("path"))


def test_interval_that_reaches_below_zero_is_drawn_on_axes_that_cannot_show_it() -> None:
    wide = Series("measured", (1, 2, 4), (3, 6, 12), margins=(4, 1, 1))
    assert {"5", "10"} <= set(shown(sized(wide)).texts)


def test_picture_has_a_title_and_words_for_who_cannot_see_it() -> None:
    page = shown(sized(MEASURED))
    [picture] = page.all("svg")
    assert (picture["role"], picture["class"]) == ("img", "chart")
    assert picture["aria-labelledby"] == "picture-7-title picture-7-about"
    assert page.all("style") == page.all("metadata") == [], "they are the page's"
    assert [text for text in page.texts if text.strip()][:2] == ["Throughput", "of one engine"]


def test_png_has_all_charts_beside_each_other_and_a_title() -> None:
    one, two = (drawn(".PNG", "a title", [sized(MEASURED, FITTED)] * n) for n in (1, 2))
    assert one.startswith(b"\x89PNG\r\n\x1a\n")
    wide, twice = (int.from_bytes(each[16:20]) for each in (one, two))
    assert 1.6 * wide < twice < 2.4 * wide
    svg = drawn(".svg", "Llama on H100", [sized(MEASURED, FITTED)]).decode()
    for words in ("Llama on H100", "Throughput", "of one engine", "tokens/s", "batch", "fitted"):
        assert f"<!-- {words} -->" in svg


def test_legend_names_what_is_not_alone_or_has_a_letter_unless_another_chart_does() -> None:
    assert sized(MEASURED).explained == []
    nameless = Series("", (1, 2), (3, 4), letter="A")
    svg = drawn(".svg", "a title", [sized(MEASURED, FITTED), sized(nameless, FITTED)]).decode()
    assert [svg.count(f"<!-- {name} -->") for name in ("measured", "fitted")] == [1, 2]
    dashed = shown(sized(replace(nameless, name="A long name", line="--")))
    assert "A long name" in dashed.texts
    assert "stroke-width: 2.8" in dashed.html, "seen below a solid line"


@pytest.mark.parametrize("last", [1, 700])
def test_letters_of_lines_that_lie_on_each_other_cover_none_of_each_other(last: int) -> None:
    letters = "ABCDEFGHIJKLMNOP"
    lines = (Series("", (1, 64), (1, last), letter=each) for each in letters)
    texts = [each for each in element_of(sized(*lines), 1).iter("text") if each.text in [*letters]]
    found = [(float(each.attrib["x"]), float(each.attrib["y"])) for each in texts]
    assert len(found) == len(letters)
    assert min(dist(*pair) for pair in combinations(found, 2)) > 12


@pytest.mark.parametrize("name", ["組織/模型-8B-指示", 300 * "m", "a b " * 60])
def test_odd_names_are_drawn_without_a_warning(name: str) -> None:
    series = [Series(f"{name}{n}", (1, 8), (n, 10)) for n in (1, 2, 3)]
    assert drawn(".png", name, [sized(*series)] * 3)
    assert element_of(sized(*series), 1) is not None


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_equal_charts_make_equal_bytes(suffix: str) -> None:
    assert drawn(suffix, "t", [sized(MEASURED)]) == drawn(suffix, "t", [sized(MEASURED)])


def test_plot_without_a_chart_is_rejected() -> None:
    with pytest.raises(ValueError, match="at least one chart"):
        drawn(".png", "a title", [])


def test_matplotlib_is_not_loaded_before_something_is_drawn() -> None:
    code = "import orch_sidecar.tools.facts.cli, sys; assert 'matplotlib' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)

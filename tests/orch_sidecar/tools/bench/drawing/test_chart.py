"""Charts: text as text, nothing outside of the picture, titles that can be read aloud."""

from __future__ import annotations

import re
from collections.abc import Sequence

from orch_sidecar.tools.bench.drawing.chart import Chart, Look, Marked, Series, figure
from orch_sidecar.tools.bench.drawing.elements import html_of
from orch_sidecar.tools.bench.drawing.scales import linear
from tests.orch_sidecar.tools.bench.drawing.html_reader import Page


def chart(series: Sequence[Series], marked: Sequence[Marked] = ()) -> Chart:
    xs = [x for each in series for x in each.xs]
    tops = [top for each in series for top in each.tops]
    x, y = linear(xs, least=0.0), linear(tops, least=0.0)
    return Chart("Latency <b>", "of 3 requests", "ms", "requests", x, y, series, marked)


def drawn(*series: Series, marked: Sequence[Marked] = ()) -> Page:
    return Page(html_of(figure(chart(series, marked), 7)))


DOTS = Series("p95", Look.DOTS, [1.0, 2.0], [3.0, 4.0], margins=[0.5, None])


def test_picture_has_a_title_and_a_description_of_its_own() -> None:
    page = drawn(DOTS)
    [picture] = [each for each in page.all("svg") if each.get("role") == "img"]
    assert picture["aria-labelledby"] == "figure-7-title figure-7-about"
    assert [each["id"] for each in page.all("title") if each] == ["figure-7-title"]
    assert page.text.count("Latency <b>") == 2
    assert page.text.count("of 3 requests") == 2


def test_all_numbers_are_text() -> None:
    page = drawn(DOTS, marked=[Marked("p50 1.5", 1.5), Marked("8 slots", 4.0, horizontal=True)])
    assert {"p50 1.5", "8 slots", "ms", "requests", "0"} <= set(page.texts)
    assert page.loads_nothing()


def test_points_have_their_values_with_their_intervals() -> None:
    page = drawn(DOTS)
    assert "p95: 3 at 1 ms (95 % interval 2.5 to 3.5)" in page.texts
    assert "p95: 4 at 2 ms" in page.texts
    assert len(page.all("circle")) == 2


def test_every_look_is_drawn_inside_of_the_picture() -> None:
    looks = {
        Look.BARS: Series("a", Look.BARS, [0.0, 1.0, 2.0], [5.0, 0.0]),
        Look.STEPS: Series("b", Look.STEPS, [0.0, 1.0, 2.0], [5.0, 1.0], 1, dashed=True),
        Look.LINE: Series("c", Look.LINE, [0.0, 2.0], [5.0, 1.0], 2),
        Look.DOTS: DOTS,
        Look.HOLLOW: Series("e", Look.HOLLOW, [2.0], [5.0], 4),
    }
    page = drawn(*looks.values())
    assert len(page.all("li")) == len(looks)
    [picture] = [each for each in page.all("svg") if each.get("role") == "img"]
    _, _, width, height = map(float, picture["viewbox"].split())
    for each in page.all("path"):
        for x, y in re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", each["d"]):
            assert 0 <= float(x) <= width
            assert 0 <= float(y) <= height
    assert [each["class"] for each in page.all("rect")] == ["bars", "bars"], "no bar of no height"


def test_names_of_near_values_stand_above_each_other() -> None:
    near = [Marked(f"p{number} 1.{number}", 1 + number / 100) for number in (50, 51, 52)]
    page = drawn(DOTS, marked=near)
    rows = {each["y"] for each in page.all("text") if each["class"] == "name"}
    assert len(rows) == 3
    far = [Marked("p50", 0.1), Marked("p99", 1.9)]
    page = drawn(DOTS, marked=far)
    assert len({each["y"] for each in page.all("text") if each["class"] == "name"}) == 1


def test_single_series_needs_no_legend() -> None:
    assert drawn(DOTS).all("ul") == []


def test_last_number_of_the_axis_is_inside_of_the_picture() -> None:
    text = html_of(figure(chart([Series("a", Look.DOTS, [0.0, 10_000.0], [1.0, 2.0])]), 1))
    [x] = re.findall(r'<text(?=[^>]*text-anchor="middle")[^>]* x="([\d.]+)"[^>]*>10000<', text)
    assert float(x) + 5 * 7 / 2 <= 480  # five digits of the widest usual font

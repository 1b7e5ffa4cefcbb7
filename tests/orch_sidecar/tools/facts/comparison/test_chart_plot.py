"""The picture of a comparison stays legible with real names, however many sets there are."""

from __future__ import annotations

import itertools
import warnings
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from orch_sidecar.tools.facts.comparison.axes import apart
from orch_sidecar.tools.facts.comparison.chart import Chart, chart_of
from orch_sidecar.tools.facts.comparison.chart_plot import draw_chart, figure_of
from orch_sidecar.tools.facts.comparison.compare import compare
from orch_sidecar.tools.facts.comparison.text_width import wrapped
from orch_sidecar.tools.facts.tables.check import valid_rows
from orch_sidecar.tools.facts.tables.row import COLUMNS, Row
from orch_sidecar.tools.facts.tables.table import Table, row_fields, with_records
from tests.orch_sidecar.tools.facts.comparison.real_names import measured, sets
from tests.orch_sidecar.tools.facts.rows import fact

COUNTS = (1, 2, 4, 16)


def chart(*rows: Row) -> Chart:
    table = with_records(Table("t.csv"), [COLUMNS, *map(row_fields, rows)])
    return chart_of(compare(valid_rows(table)))


def drawn(shown: Chart) -> Figure:
    figure = figure_of(shown)
    figure.draw_without_rendering()
    return figure


def texts(figure: Figure) -> list[Text]:
    """Returns the texts of a figure that can be seen."""
    found = [each for each in figure.findobj(Text) if isinstance(each, Text)]
    # Axes keep ticks beyond their limits, which are not drawn.
    beyond = {
        id(label)
        for axes in figure.axes
        for axis, limits in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim()))
        for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks())
        for label in (tick.label1, tick.label2)
        if not min(limits) <= tick.get_loc() <= max(limits)
        or not label.get_visible()
        or not axes.axison
    }
    return [
        each
        for each in found
        if each.get_text().strip() and each.get_visible() and id(each) not in beyond
    ]


def overlapping(figure: Figure) -> list[tuple[str, str]]:
    boxes = [(each.get_text(), Text.get_window_extent(each)) for each in texts(figure)]
    return [
        (first, second)
        for (first, one), (second, other) in itertools.combinations(boxes, 2)
        if min(one.x1, other.x1) > max(one.x0, other.x0)
        and min(one.y1, other.y1) > max(one.y0, other.y0)
    ]


def outside(figure: Figure) -> list[str]:
    wide, high = figure.get_size_inches() * figure.dpi
    boxes = [(each.get_text(), Text.get_window_extent(each)) for each in texts(figure)]
    return [
        text for text, box in boxes if box.x0 < 0 or box.y0 < 0 or box.x1 > wide or box.y1 > high
    ]


@pytest.mark.parametrize("count", COUNTS)
def test_no_text_lies_over_another_and_axes_have_room_for_what_they_show(count: int) -> None:
    figure = drawn(chart_of(sets(count)))
    assert len(texts(figure)) > 20
    assert overlapping(figure) == []
    assert outside(figure) == []
    inches = figure.get_size_inches()
    sizes = [
        (axes.bbox.width / figure.dpi, axes.bbox.height / figure.dpi)
        for axes in figure.axes
        if axes.axison
    ]
    # Rows: throughput and TTFT; panels: throughput and speed-up.
    assert [round(wide, 2) for wide, _ in sizes] == [3.15, 2.05, 5.1, 5.1]
    assert all(high > 3 for _, high in sizes[2:])
    assert inches[0] < 14
    assert inches[1] < 20


@pytest.mark.parametrize(
    ("count", "name"), [(1, "p.png"), (2, "p.svg"), (4, "p.png"), (16, "p.png"), (16, "p.svg")]
)
def test_matplotlib_has_nothing_to_warn_of(tmp_path: Path, count: int, name: str) -> None:
    path = tmp_path / name
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw_chart(path, chart_of(sets(count)))
    assert path.stat().st_size > 5000


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_equal_charts_make_equal_bytes(tmp_path: Path, suffix: str) -> None:
    paths = [tmp_path / f"{name}.{suffix}" for name in "ab"]
    for path in paths:
        draw_chart(path, chart_of(sets(1)))
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_checks_notice_a_text_that_lies_over_another_or_leaves_the_picture() -> None:
    figure = drawn(chart_of(sets(1)))
    figure.text(0.05, 0.5, "one")
    figure.text(0.05, 0.5, "other")
    figure.text(0.99, 0.5, "far to the right")
    assert ("one", "other") in overlapping(figure)
    assert outside(figure) == ["far to the right"]


@pytest.mark.parametrize(
    "name",
    [
        "organization/" + 30 * "a-model-without-any-space-",
        "組織/模型-8B-指示",
        r"$\no_such$ 100 % {of} $",
        "a b " * 60,
    ],
)
def test_odd_names_are_drawn_without_a_warning(tmp_path: Path, name: str) -> None:
    rows = [*measured((2, 8), model=name.strip()), *measured((2, 8), speculative="eagle:2")]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw_chart(tmp_path / "p.png", chart(*rows))
    figure = drawn(chart(*rows))
    assert overlapping(figure) == []
    assert outside(figure) == []


def test_thirty_sets_have_a_letter_or_number_each_at_their_lines() -> None:
    rows = [fact(gpu=f"gpu {number}", batch=size) for number in range(30) for size in (2, 8)]
    figure = drawn(chart(*rows))
    assert overlapping(figure) == []
    found = [each.get_text() for each in texts(figure)]
    # Beside the name, and in both panels.
    assert (found.count("A"), found.count("Z"), found.count("27")) == (3, 3, 3)


def test_single_point_without_ttft_has_no_panel_for_it() -> None:
    figure = drawn(chart(fact()))
    assert overlapping(figure) == []
    assert len([axes for axes in figure.axes if axes.axison]) == 1
    found = [each.get_text() for each in texts(figure)]
    assert "2,462" in found
    assert not any("TTFT" in each for each in found)


def test_range_of_several_rows_is_drawn_and_named() -> None:
    rows = [fact(batch=2, throughput_tokens_per_sec=each) for each in (100.0, 120.0, 110.0)]
    figure = drawn(chart(*rows))
    found = [each.get_text() for each in texts(figure)]
    assert "generated tokens/s (median, minimum to maximum)" in found
    [axes] = [axes for axes in figure.axes if axes.axison]
    assert [np.asarray(line.get_xdata()).tolist() for line in axes.get_lines()] == [
        [100, 120],
        [110],
    ]


def test_lines_are_broken_at_spaces_and_inside_of_words_that_are_too_wide() -> None:
    assert wrapped("one two", 10, 9) == ["one two"]
    assert wrapped("one two", 0.3, 9) == ["one", "two"]
    pieces = wrapped("a " + 40 * "m" + " b", 1, 9)
    assert len(pieces) > 3
    assert "".join(pieces).replace(" ", "") == "a" + 40 * "m" + "b"
    assert wrapped("", 1, 9) == [""]


@pytest.mark.parametrize(
    ("heights", "moved"),
    [
        ([], []),
        ([0, 20, 40], [0, 20, 40]),
        ([0, 5, 8, 40], [0, 10, 20, 40]),
        ([90, 92, 94], [80, 90, 100]),
        ([40, 95, 95, 120], [40, 80, 90, 100]),
    ],
)
def test_letters_are_moved_up_and_kept_below_the_top(
    heights: list[float], moved: list[float]
) -> None:
    assert apart(heights, gap=10, top=100) == moved

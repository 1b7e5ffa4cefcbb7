"""Shows a comparison: as a page for people, and as charts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from orch_sidecar.tools.drawing.chart import Chart, Series, by_size
from orch_sidecar.tools.drawing.page import Page
from orch_sidecar.tools.drawing.texts import NONE, number_text
from orch_sidecar.tools.facts.comparison.compare import Comparison, Point, Way
from orch_sidecar.tools.facts.comparison.conditions import DIFFERENCES, describe, varied
from orch_sidecar.tools.facts.tables.row import Label

_LINES: Final = {Label.SINGLE_STREAM: "-", Label.BATCHED_ONLINE: "--", Label.OFFLINE: "-."}
_BATCH: Final = "mean batch (sequences per decode step)"
LINEAR: Final = "linear scaling"
_WAYS: Final = "Ways of batching"
_SET_COLORS: Final = 5  # the sixth is that of linear scaling


def as_page(comparison: Comparison) -> Page:
    """Returns a table for each set, the charts, then the excluded rows."""
    sets = comparison.sets
    page = Page(title_of(comparison))
    contrasts = varied([each.conditions for each in sets], known=True)
    for of_set in sets:
        alone = len(sets) == 1  # the title of the page has all of its conditions
        page.section(_WAYS if alone else describe(of_set.conditions, always=contrasts))
        _table(page, of_set.ways)
    if sets:
        page.text(
            "Speed-up and efficiency are relative to the smallest batch of the same way of "
            "batching; x single is the tokens/s of all over what a single stream gets."
        )
        page.section("Charts")
        page.charts(charts_of(comparison))
    if comparison.left_out:
        page.section("Excluded")
        page.list(f"{each.place}: {each.why}" for each in comparison.left_out)
    return page


def title_of(comparison: Comparison) -> str:
    """Returns the conditions that all sets share."""
    sets = [each.conditions for each in comparison.sets]
    return describe(sets[0], without=varied(sets)) if sets else "Nothing to compare"


def charts_of(comparison: Comparison) -> list[Chart]:
    """Returns throughput, TTFT and speed-up by batch, with a letter for each way of each set.

    A color is a set's, and a line's style a label's; the first chart names them. Raises ValueError
    for a comparison without a set.
    """
    named = list(_named(comparison))

    def series(
        y: Callable[[Point], float | None], *, least: int = 1, named_here: bool = False
    ) -> list[Series]:
        found = []
        for name, way, style in named:
            points = [(each.batch_mean, y(each)) for each in way.points]
            known = [(x, value) for x, value in points if value is not None]
            if len(known) >= least:
                xs, ys = zip(*known, strict=True)
                found.append(Series(name if named_here else "", xs, ys, *style))
        return found

    speedups = series(lambda point: point.speedup, least=2)
    if speedups:
        most = max(each.xs[-1] / each.xs[0] for each in speedups)
        grown = [
            Series("", [x / s.xs[0] for x in s.xs], s.ys, s.line, s.marker, s.color)
            for s in speedups
        ]
        linear = Series(LINEAR, [1.0, most], [1.0, most], ":", "", _SET_COLORS)
        speedups = [*grown, linear]
    charts = [
        ("Throughput", "The median of each batch.", _BATCH, "generated tokens/s",
         series(lambda point: point.tokens_per_s.median, named_here=True)),
        ("Time to first token", "The medians of p50.", _BATCH, "ms",
         series(lambda point: point.ttft_p50_ms)),
        ("Speed-up", f"Over the smallest batch; dotted: {LINEAR}.", "growth of the mean batch",
         "speed-up", speedups),
    ]  # fmt: skip
    return [by_size(*chart, linear=False) for chart in charts if chart[-1]]


def _named(comparison: Comparison) -> Iterator[tuple[str, Way, tuple[str, str, int]]]:
    """Yields each way of each set with what distinguishes it, and its line, marker and color."""
    sets = [each.conditions for each in comparison.sets]
    shared = [name for name in DIFFERENCES if name not in varied(sets)]
    contrasts = varied(sets, known=True)
    for number, of_set in enumerate(comparison.sets):
        subject = describe(of_set.conditions, without=shared, always=contrasts)
        for way in of_set.ways:
            name = ", ".join(filter(None, (subject, way.name)))
            line = _LINES[way.measurement_type]
            yield name, way, (line, f"${way.letter}$", number % _SET_COLORS)


def _text(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}"


def _end(point: Point, value: float) -> str:
    return NONE if point.rows == 1 else _text(value)


# The columns of a set's table: the head, and the text of a point of a way.
_COLUMNS: Final[tuple[tuple[str, Callable[[Way, Point], str]], ...]] = (
    ("", lambda way, point: way.letter),
    ("batching", lambda way, point: way.name),
    ("batch", lambda way, point: f"{point.batch_mean:.2f}".rstrip("0").rstrip(".")),
    ("peak", lambda way, point: str(point.batch_max or NONE)),
    ("rows", lambda way, point: str(point.rows)),
    ("tokens/s", lambda way, point: _text(point.tokens_per_s.median)),
    ("min", lambda way, point: _end(point, point.tokens_per_s.least)),
    ("max", lambda way, point: _end(point, point.tokens_per_s.most)),
    ("per sequence", lambda way, point: _text(point.tokens_per_s_per_sequence)),
    ("speed-up", lambda way, point: _text(point.speedup)),
    ("efficiency", lambda way, point: _text(point.efficiency)),
    ("x single", lambda way, point: _text(point.over_single)),
    ("TTFT p50 ms", lambda way, point: number_text(point.ttft_p50_ms)),
    ("p95 ms", lambda way, point: number_text(point.ttft_p95_ms)),
    ("remarks", lambda way, point: ", ".join(point.remarks)),
)
_TEXTS: Final = 2


def _table(page: Page, ways: Iterable[Way]) -> None:
    """Appends the points of a set, with the columns that any of them has."""
    points = [(way, point) for way in ways for point in way.points]
    columns = [[head, *(cell(*each) for each in points)] for head, cell in _COLUMNS]
    used = [each for each in columns if any(text not in (NONE, "") for text in each[1:])]
    head, *rows = zip(*used, strict=True)
    page.table(head, rows, _TEXTS)

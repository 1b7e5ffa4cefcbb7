"""Compares facts that were measured under the same conditions, and shows them as a page and charts.

Pure. docs/reference/facts.md has the rules: what a set, a way of batching and a point are.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from statistics import fmean, median
from string import ascii_uppercase
from typing import Final

from orch_sidecar.tools.drawing.chart import MOST_NAMED, Chart, Series, by_size, remarked
from orch_sidecar.tools.drawing.page import Columns, Page
from orch_sidecar.tools.drawing.texts import NONE, number_text, rounded
from orch_sidecar.tools.facts.comparison import conditions as condition
from orch_sidecar.tools.facts.labels.figures import scaling
from orch_sidecar.tools.facts.tables import notes as names
from orch_sidecar.tools.facts.tables.notes import Loop, time_note
from orch_sidecar.tools.facts.tables.row import Label, Row, run_of
from orch_sidecar.tools.facts.tables.table import LocatedRow, distinct


@dataclass(frozen=True, slots=True)
class FigureRange:
    """Median, minimum and maximum of several figures, in their own unit."""

    median: float
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Point:
    """One batch of a way, from the `rows` rows with this value in the column `batch`.

    `remarks`: what limits the trust in all of them. `batch_mean`: of a row without the note its
    column. `efficiency`: the speed-up over the growth of the mean batch; a perfectly parallel
    engine has 1. None: no row has the note, or there is no point to which it may be related.
    """

    batch: int
    batch_mean: float
    batch_max: int | None
    rows: int
    tokens_per_s: FigureRange
    tokens_per_s_per_sequence: float
    ttft_p50_ms: float | None
    ttft_p95_ms: float | None
    remarks: tuple[str, ...]
    speedup: float | None
    efficiency: float | None
    over_single: float | None = None


@dataclass(frozen=True, slots=True)
class Way:
    """The rows of a set with one label, one kind of arrivals, and one set-up of the scheduler.

    `name`: the label, with the arrivals unless the label implies them, and with the set-up where
    the set has several.
    """

    letter: str
    name: str
    measurement_type: Label
    arrivals: Loop
    scheduling: str
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class ComparableSet:
    """Rows that were measured under the same conditions, by the way in which they were batched."""

    conditions: condition.Conditions
    ways: tuple[Way, ...]


@dataclass(frozen=True, slots=True)
class ExcludedRow:
    """A row that is not compared, or has no price, and why."""

    place: str
    why: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """The comparison of some rows."""

    sets: tuple[ComparableSet, ...]
    left_out: tuple[ExcludedRow, ...]

    @property
    def headings(self) -> tuple[str, list[str]]:
        """The conditions that all sets share, and what distinguishes each set from the others."""
        return condition.headings([each.conditions for each in self.sets])


def compare(rows: Sequence[LocatedRow], verified: Collection[Row] = ()) -> Comparison:
    """Groups rows into comparable sets, in the order of their first rows. `verified`: those whose
    evidence was verified."""
    firsts = distinct(rows)
    left_out: list[ExcludedRow] = []
    for located in rows:
        first = firsts[located.row].place
        if first != located.place:
            left_out.append(ExcludedRow(located.place, f"repeats {first}, which is counted once"))
        elif not located.row.is_confirmed:
            left_out.append(ExcludedRow(located.place, condition.UNCONFIRMED))
    confirmed = [row for row in firsts if row.is_confirmed]
    found: dict[tuple[tuple[str, str], ...], list[LocatedRow]] = defaultdict(list)
    for row, conditions in zip(confirmed, condition.conditions_of(confirmed), strict=True):
        found[tuple(conditions.items())].append(firsts[row])
    sets, letters = [], chain(ascii_uppercase, map(str, count(len(ascii_uppercase) + 1)))
    for shared, members in found.items():
        repeated = _repeated(members, verified)
        left_out += repeated.values()
        once = [each.row for each in members if each.row not in repeated]
        sets.append(ComparableSet(dict(shared), _ways(once, verified, letters)))
    return Comparison(tuple(sets), tuple(left_out))


def _repeated(rows: Sequence[LocatedRow], verified: Collection[Row]) -> dict[Row, ExcludedRow]:
    """Returns the rows of a run and batch but for one, with verified evidence if there is one: what
    `orch bench` and the traces make of a run is one figure."""
    kept: dict[tuple[object, ...], LocatedRow] = {}
    found = {}
    for each in sorted(rows, key=lambda each: each.row not in verified):
        row, place = each.row, each.place
        key = run_of(row.source_tag) or place, row.measurement_type, row.batch
        if (first := kept.setdefault(key, each)).row.source_tag != row.source_tag:
            why = f"is of the same run as {first.place}, which is counted once"
            found[row] = ExcludedRow(place, why)
    return found


# The arrivals that a label implies.
_IMPLIED: Final = {Label.SINGLE_STREAM: Loop.CLOSED, Label.OFFLINE: Loop.AT_ONCE}


def _ways(
    rows: Sequence[Row], verified: Collection[Row], letters: Iterator[str]
) -> tuple[Way, ...]:
    """Returns the ways in the order of the labels, related to a single stream if there is one."""
    found: dict[tuple[Label, Loop, str], list[Row]] = defaultdict(list)
    for row in rows:
        label = row.measurement_type
        # A single stream is a closed loop of one, noted or not.
        loop = Loop.CLOSED if label is Label.SINGLE_STREAM else row.notes.loop
        found[label, loop, condition.scheduling_of(row.notes)].append(row)
    setups = Counter(way[:2] for way in found)
    order = [*Label, *Loop]
    ways: list[Way] = []
    single = None
    for way in sorted(found, key=lambda way: (order.index(way[0]), order.index(way[1]))):
        label, loop, scheduling = way
        points = _points(found[way], verified)
        if label is Label.SINGLE_STREAM and not ways:
            single = next((each.tokens_per_s.median for each in points if each.speedup), None)
        if single is not None:
            points = [replace(at, over_single=at.tokens_per_s.median / single) for at in points]
        several = setups[label, loop] > 1
        named = {label: True, loop: _IMPLIED.get(label) is not loop, scheduling: several}
        name = ", ".join(part for part, is_named in named.items() if is_named)
        ways.append(Way(next(letters), name, *way, tuple(points)))
    return tuple(ways)


def _points(rows: Sequence[Row], verified: Collection[Row]) -> list[Point]:
    """Returns the points of a way, smallest batch first, related to the first that may be."""
    found: dict[tuple[int, tuple[str, ...]], list[Row]] = defaultdict(list)
    for row in rows:
        found[row.batch, condition.remarks_of(row.notes, row in verified)].append(row)
    points: list[Point] = []
    base = None
    for (batch, remarks), alike in sorted(found.items()):
        figures = [row.throughput_tokens_per_sec for row in alike]
        mean = fmean(row.notes.number(names.BATCH_MEAN) or row.batch for row in alike)
        at = mean, median(figures)
        related: tuple[float | None, float | None] = None, None
        if not {names.CUT, names.CLIENT_BOTTLENECK} & alike[0].notes.keys():
            base = base or at
            related = scaling(at, base)
        point = Point(
            batch=batch,
            batch_mean=mean,
            batch_max=max(row.notes.count(names.BATCH_MAX) or 0 for row in alike) or None,
            rows=len(alike),
            tokens_per_s=FigureRange(median(figures), min(figures), max(figures)),
            tokens_per_s_per_sequence=median(figures) / mean,
            ttft_p50_ms=_median(alike, time_note("ttft", 50)),
            ttft_p95_ms=_median(alike, time_note("ttft", 95)),
            remarks=remarks,
            speedup=related[0],
            efficiency=related[1],
        )
        points.append(point)
    return points


def _median(rows: Sequence[Row], note: str) -> float | None:
    """Returns the median of a note of the rows that have it; None where none has."""
    noted = [value for row in rows if (value := row.notes.number(note)) is not None]
    return median(noted) if noted else None


def as_page(comparison: Comparison) -> Page:
    """Returns a table for each set, the charts, then the excluded rows."""
    title, subjects = comparison.headings
    page = Page(title)
    for subject, of_set in zip(subjects, comparison.sets, strict=True):
        page.section(subject or "Ways of batching")
        points = ((way, point) for way in of_set.ways for point in way.points)
        page.columns(_COLUMNS, points, texts=3)
    if any(at.speedup for each in comparison.sets for way in each.ways for at in way.points):
        page.text(
            "Speed-up and efficiency are relative to the smallest batch of the same way of "
            "batching; x single is the tokens/s of all over what a single stream gets."
        )
    page.charts(charts_of(comparison), "Charts")
    if comparison.left_out:
        page.section("Excluded")
        page.list(f"{each.place}: {each.why}" for each in comparison.left_out)
    return page


_LINES: Final = {Loop.CLOSED: "-", Loop.OPEN: "--", Loop.AT_ONCE: "-.", Loop.UNKNOWN: ":"}
_BATCH: Final = "mean batch (sequences per decode step)"
LINEAR: Final = "linear scaling"
_COLORS: Final = 5  # the sixth is that of linear scaling


def charts_of(comparison: Comparison) -> list[Chart]:
    """Returns throughput, TTFT and speed-up by batch, with a letter for each way of each set.

    A color is a set's, or a way's of a single set, and a line's style that of the arrivals. The
    first chart names them, unless they are too many: the tables have the letters.
    """
    subjects, styles = comparison.headings[1], []
    for number, (subject, of_set) in enumerate(zip(subjects, comparison.sets, strict=True)):
        for own, way in enumerate(of_set.ways):
            name = f"{way.letter}: {', '.join(filter(None, (subject, way.name)))}"
            color = (number if len(subjects) > 1 else own) % _COLORS
            line = _LINES[way.arrivals]
            styles.append((way, Series(name, (), (), line, color=color, letter=way.letter)))
    points = [(f"{way.letter} at {at.batch}", at.remarks) for way, _ in styles for at in way.points]
    about = ["The median of each batch", *remarked(points)]
    about += ["letters as in the tables"] if len(styles) > MOST_NAMED else []

    def series(y: Callable[[Point], float | None], *, named: bool = False) -> list[Series]:
        found = []
        for way, style in styles:
            known = [(at.batch_mean, value) for at in way.points if (value := y(at)) is not None]
            if known:
                xs, ys = zip(*known, strict=True)
                found.append(replace(style, name=style.name if named else "", xs=xs, ys=ys))
        return found

    related = [each for each in series(lambda point: point.speedup) if len(each.xs) > 1]
    speedups = [replace(each, xs=[x / each.xs[0] for x in each.xs]) for each in related]
    if speedups:
        ends = [1.0, max(each.xs[-1] for each in speedups)]
        speedups.append(Series(LINEAR, ends, ends, ":", "", _COLORS))
    charts = [
        ("Throughput", "; ".join(about), _BATCH, "generated tokens/s",
         series(lambda point: point.tokens_per_s.median, named=True)),
        ("Time to first token", "The medians of p50.", _BATCH, "ms",
         series(lambda point: point.ttft_p50_ms)),
        ("Speed-up", f"Over the smallest batch; dotted: {LINEAR}.", "growth of the mean batch",
         "speed-up", speedups),
    ]  # fmt: skip
    return [by_size(*chart, linear=False) for chart in charts if chart[-1]]


# Of the points of a set.
_COLUMNS: Final[Columns] = (
    ("", lambda way, point: way.letter),
    ("batching", lambda way, point: way.name),
    ("remarks", lambda way, point: ", ".join(point.remarks)),
    ("batch", lambda way, point: f"{point.batch_mean:.2f}".rstrip("0").rstrip(".")),
    ("peak", lambda way, point: str(point.batch_max or NONE)),
    ("rows", lambda way, point: str(point.rows)),
    ("tokens/s", lambda way, point: rounded(point.tokens_per_s.median, 2)),
    ("min", lambda way, p: rounded(p.tokens_per_s.least if p.rows > 1 else None, 2)),
    ("max", lambda way, p: rounded(p.tokens_per_s.most if p.rows > 1 else None, 2)),
    ("per sequence", lambda way, point: rounded(point.tokens_per_s_per_sequence, 2)),
    ("speed-up", lambda way, point: rounded(point.speedup, 2)),
    ("efficiency", lambda way, point: rounded(point.efficiency, 2)),
    ("x single", lambda way, point: rounded(point.over_single, 2)),
    ("TTFT p50 ms", lambda way, point: number_text(point.ttft_p50_ms)),
    ("p95 ms", lambda way, point: number_text(point.ttft_p95_ms)),
)

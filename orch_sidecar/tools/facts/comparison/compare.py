"""Compares facts that were measured under the same conditions.

Pure. Only rows that agree in everything but the batch are related to each other. Engines of
different versions are different engines. `measurement_type` is a condition, too, so that a
single-stream figure is never averaged with, or divided by, a batched one. Sets that differ in one
condition only are listed with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import Final

from orch_sidecar.tools.facts.evidence.measured import Arrivals
from orch_sidecar.tools.facts.tables.check import LocatedRow, identity
from orch_sidecar.tools.facts.tables.row import Label, Row, parse_notes
from orch_sidecar.tools.facts.tables.rules import TTFT_P50_NOTE, TTFT_P95_NOTE


class Loop(StrEnum):
    """What determines when a request arrives."""

    OPEN = "open loop"  # a schedule
    CLOSED = "closed loop"  # the answer to another request
    AT_ONCE = "all at once"
    UNKNOWN = "unknown"


_LOOPS: Final = {
    Arrivals.ONE_BY_ONE: Loop.CLOSED,
    Arrivals.CLOSED_LOOP: Loop.CLOSED,
    Arrivals.AT_ONCE: Loop.AT_ONCE,
    Arrivals.CONSTANT: Loop.OPEN,
    Arrivals.POISSON: Loop.OPEN,
    Arrivals.GAMMA: Loop.OPEN,
    Arrivals.REPEATED_GAPS: Loop.OPEN,
    Arrivals.TRACE: Loop.OPEN,
}


@dataclass(frozen=True, slots=True)
class Conditions:
    """What all rows of a set have in common; the fields are columns.

    `arrivals`: the kind of arrivals in the notes.
    """

    model_id: str
    engine: str
    precision: str
    gpu: str
    gpu_count: int
    input_tokens: int
    output_tokens: int
    measurement_type: Label
    arrivals: Loop = Loop.UNKNOWN


# Why rows that differ in one of these are not compared.
DIFFERENCES: Final = {
    "model_id": "different models",
    "engine": "different engines, or versions of one",
    "precision": "different precisions",
    "gpu": "different accelerators",
    "gpu_count": "different numbers of accelerators",
    "input_tokens": "prompts of different lengths",
    "output_tokens": "answers of different lengths",
    "measurement_type": "different ways of batching, whose ratio has no meaning",
    "arrivals": "loads that wait for answers, loads that do not, or unknown ones",
}


@dataclass(frozen=True, slots=True)
class FigureRange:
    """Median, minimum and maximum of several figures, in their own unit."""

    median: float
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Point:
    """One batch of a set, from `rows` rows.

    `speedup`: the median over that of the smallest batch of the set. `efficiency`: the speed-up
    over the growth of the batch; a perfectly parallel engine has 1. TTFT: the medians of the
    notes; None where no row has them.
    """

    batch: int
    rows: int
    tokens_per_s: FigureRange
    tokens_per_s_per_sequence: float
    speedup: float
    efficiency: float
    ttft_p50_ms: float | None
    ttft_p95_ms: float | None


@dataclass(frozen=True, slots=True)
class ComparableSet:
    """Rows that were measured under the same conditions, by batch, smallest first."""

    conditions: Conditions
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Separation:
    """Sets that agree in all conditions but one, and therefore are not compared.

    `alike`: the conditions of one of them. `values`: the values of the differing condition.
    """

    condition: str
    values: tuple[str | int, ...]
    alike: Conditions


@dataclass(frozen=True, slots=True)
class ExcludedRow:
    """A row that is not compared, and why."""

    place: str
    why: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """The comparison of some rows."""

    sets: tuple[ComparableSet, ...]
    apart: tuple[Separation, ...]
    left_out: tuple[ExcludedRow, ...]


def compare(rows: Sequence[LocatedRow]) -> Comparison:
    """Groups rows into comparable sets, in the order of their first rows."""
    by_conditions: dict[Conditions, list[LocatedRow]] = {}
    left_out = []
    places: dict[tuple[str | float, ...], str] = {}
    for located in rows:
        first = places.setdefault(identity(located.record), located.place)
        if first != located.place:
            left_out.append(ExcludedRow(located.place, f"repeats {first}, which is counted once"))
        elif located.row.measurement_type is Label.TO_BE_CONFIRMED:
            why = f"{Label.TO_BE_CONFIRMED}: it is unknown how the engine was batching"
            left_out.append(ExcludedRow(located.place, why))
        else:
            by_conditions.setdefault(_conditions(located), []).append(located)
    sets = tuple(ComparableSet(alike, _points(of_set)) for alike, of_set in by_conditions.items())
    return Comparison(sets, _separations(list(by_conditions)), tuple(left_out))


def differing_conditions(sets: Sequence[ComparableSet]) -> tuple[str, ...]:
    """Returns the conditions in which the sets differ, in the order of the columns."""
    found = [of_set.conditions for of_set in sets]
    return tuple(name for name in DIFFERENCES if len({getattr(each, name) for each in found}) > 1)


def _conditions(located: LocatedRow) -> Conditions:
    row = located.row
    return Conditions(
        model_id=row.model_id,
        engine=row.engine,
        precision=row.precision,
        gpu=row.gpu,
        gpu_count=row.gpu_count,
        input_tokens=row.input_tokens,
        output_tokens=row.output_tokens,
        measurement_type=row.measurement_type,
        arrivals=_loop(row),
    )


def _loop(row: Row) -> Loop:
    """Returns the kind of arrivals; unknown values of the note count as none."""
    arrivals = parse_notes(row.scenario_notes).get("arrivals")
    return _LOOPS[Arrivals(arrivals)] if arrivals in set(Arrivals) else Loop.UNKNOWN


def _points(rows: Sequence[LocatedRow]) -> tuple[Point, ...]:
    by_batch: dict[int, list[LocatedRow]] = {}
    for located in sorted(rows, key=lambda located: located.row.batch):
        by_batch.setdefault(located.row.batch, []).append(located)
    figures_by_batch = {batch: _figure_range(of_batch) for batch, of_batch in by_batch.items()}
    smallest = min(figures_by_batch)
    points = []
    for batch, figure in figures_by_batch.items():
        speedup = figure.median / figures_by_batch[smallest].median
        point = Point(
            batch=batch,
            rows=len(by_batch[batch]),
            tokens_per_s=figure,
            tokens_per_s_per_sequence=figure.median / batch,
            speedup=speedup,
            efficiency=speedup / (batch / smallest),
            ttft_p50_ms=_median_note(by_batch[batch], TTFT_P50_NOTE),
            ttft_p95_ms=_median_note(by_batch[batch], TTFT_P95_NOTE),
        )
        points.append(point)
    return tuple(points)


def _figure_range(rows: Sequence[LocatedRow]) -> FigureRange:
    figures = [located.row.throughput_tokens_per_sec for located in rows]
    return FigureRange(median(figures), min(figures), max(figures))


def _median_note(rows: Sequence[LocatedRow], name: str) -> float | None:
    notes = (parse_notes(located.row.scenario_notes) for located in rows)
    values = [float(of_row[name]) for of_row in notes if name in of_row]
    return median(values) if values else None


def _separations(found: Sequence[Conditions]) -> tuple[Separation, ...]:
    """Finds sets that differ in exactly one condition, by condition."""
    apart = []
    for name in DIFFERENCES:
        alike: dict[tuple[object, ...], list[Conditions]] = {}
        for conditions in found:
            # Arrivals depend on the label, and may differ with it.
            same = {name, "arrivals"} if name == "measurement_type" else {name}
            others = tuple(getattr(conditions, other) for other in DIFFERENCES if other not in same)
            alike.setdefault(others, []).append(conditions)
        for group in alike.values():
            values = tuple(dict.fromkeys(getattr(each, name) for each in group))
            if len(values) > 1:
                apart.append(Separation(name, values, group[0]))
    return tuple(apart)

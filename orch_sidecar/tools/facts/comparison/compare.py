"""Compares facts that were measured under the same conditions.

Pure. Only rows that agree in everything but the batch are related to each other. Engines of
different versions are different engines. `measurement_type` is a condition, too, so that a
single-stream figure is never averaged with, or divided by, a batched one. Sets that differ in one
condition only are listed with it.

Figures per sequence and efficiencies divide by the mean number of sequences in a decode step, which
the column `batch` has rounded: an open loop's largest batch is several times its mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from orch_sidecar.tools.facts.comparison.conditions import (
    DIFFERENCES,
    Conditions,
    Evidence,
    conditions_of,
    number_note,
)
from orch_sidecar.tools.facts.tables.check import LocatedRow, identity
from orch_sidecar.tools.facts.tables.notes import BATCH_MAX, BATCH_MEAN, EVIDENCE
from orch_sidecar.tools.facts.tables.row import Label, parse_notes
from orch_sidecar.tools.facts.tables.rules import TTFT_P50_NOTE, TTFT_P95_NOTE

# Whether the evidence that a row names was verified, and is evidence of this row.
Verifier = Callable[[LocatedRow], bool]


@dataclass(frozen=True, slots=True)
class FigureRange:
    """Median, minimum and maximum of several figures, in their own unit."""

    median: float
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Point:
    """One batch of a set, from the `rows` rows with this value in the column `batch`.

    `batch_mean`: sequences per decode step, the mean over the rows (of a row without the note: its
    column). `batch_max`: the largest step of all rows. `speedup`: the median over that of the
    smallest batch of the set. `efficiency`: the speed-up over the growth of the mean batch; a
    perfectly parallel engine has 1. TTFT: the medians of the notes. None where no row has a note.
    """

    batch: int
    batch_mean: float
    batch_max: int | None
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


def compare(rows: Sequence[LocatedRow], verifier: Verifier | None = None) -> Comparison:
    """Groups rows into comparable sets, in the order of their first rows.

    Without a verifier no evidence is verified.
    """
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
            conditions = conditions_of(located.row, _evidence(located, verifier))
            by_conditions.setdefault(conditions, []).append(located)
    sets = tuple(ComparableSet(alike, _points(of_set)) for alike, of_set in by_conditions.items())
    return Comparison(sets, _separations(list(by_conditions)), tuple(left_out))


def _evidence(located: LocatedRow, verifier: Verifier | None) -> Evidence:
    has_evidence = EVIDENCE in parse_notes(located.row.scenario_notes)
    verified = verifier is not None and has_evidence and verifier(located)
    return Evidence.VERIFIED if verified else Evidence.UNVERIFIED


def _points(rows: Sequence[LocatedRow]) -> tuple[Point, ...]:
    by_batch: dict[int, list[LocatedRow]] = {}
    for located in sorted(rows, key=lambda located: located.row.batch):
        by_batch.setdefault(located.row.batch, []).append(located)
    smallest, *_ = by_batch.values()
    base_tokens_per_s, base_mean = _figure_range(smallest).median, _batch_mean(smallest)
    points = []
    for batch, of_batch in by_batch.items():
        figure, mean = _figure_range(of_batch), _batch_mean(of_batch)
        largest = _notes(of_batch, BATCH_MAX)
        speedup = figure.median / base_tokens_per_s
        point = Point(
            batch=batch,
            batch_mean=mean,
            batch_max=int(max(largest)) if largest else None,
            rows=len(of_batch),
            tokens_per_s=figure,
            tokens_per_s_per_sequence=figure.median / mean,
            speedup=speedup,
            efficiency=speedup / (mean / base_mean),
            ttft_p50_ms=_median_note(of_batch, TTFT_P50_NOTE),
            ttft_p95_ms=_median_note(of_batch, TTFT_P95_NOTE),
        )
        points.append(point)
    return tuple(points)


def _batch_mean(rows: Sequence[LocatedRow]) -> float:
    means = (number_note(parse_notes(each.row.scenario_notes), BATCH_MEAN) for each in rows)
    return fmean(mean or each.row.batch for mean, each in zip(means, rows, strict=True))


def _figure_range(rows: Sequence[LocatedRow]) -> FigureRange:
    figures = [located.row.throughput_tokens_per_sec for located in rows]
    return FigureRange(median(figures), min(figures), max(figures))


def _median_note(rows: Sequence[LocatedRow], name: str) -> float | None:
    values = _notes(rows, name)
    return median(values) if values else None


def _notes(rows: Sequence[LocatedRow], name: str) -> list[float]:
    """Returns the values of a note, of the rows that have it."""
    values = (number_note(parse_notes(each.row.scenario_notes), name) for each in rows)
    return [value for value in values if value is not None]


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

"""Which facts may stand beside which, and what they say there.

Pure. Only rows that were measured alike in everything but the batch are put into one ratio. An
engine's version is part of its name: two versions are two engines. `measurement_type` is a
condition like the others, so that no single-stream figure is ever averaged with, or divided by,
a batched one. What looks alike and was kept apart is told, with the condition that differs.
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
    """What decides when a request comes."""

    OPEN = "open loop"  # its time
    CLOSED = "closed loop"  # the end of another
    AT_ONCE = "all at once"
    NOT_TOLD = "not told"


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
    """What all rows of one set have in common; the fields are columns.

    `arrivals`: how requests came, as the notes say.
    """

    model_id: str
    engine: str
    precision: str
    gpu: str
    gpu_count: int
    input_tokens: int
    output_tokens: int
    measurement_type: Label
    arrivals: Loop = Loop.NOT_TOLD


# Why rows that differ in this alone do not make one set.
SEPARATION_REASONS: Final = {
    "model_id": "another model",
    "engine": "another engine, or another version of it",
    "precision": "another precision",
    "gpu": "another accelerator",
    "gpu_count": "another number of accelerators",
    "input_tokens": "prompts of another length",
    "output_tokens": "answers of another length",
    "measurement_type": "these answer different questions, and a ratio of them says nothing",
    "arrivals": "a load that waits for answers, one that does not, or one of which nobody says",
}


@dataclass(frozen=True, slots=True)
class Middle:
    """Several figures for one thing, in their own unit."""

    median: float
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Point:
    """One batch of a set, from `rows` rows.

    `speedup`: the median over that of the set's smallest batch. `efficiency`: the speed-up over
    the growth of the batch; 1 is what a perfectly parallel engine would have. TTFT: the medians
    of the notes; None where no row has them.
    """

    batch: int
    rows: int
    tokens_per_s: Middle
    tokens_per_s_per_sequence: float
    speedup: float
    efficiency: float
    ttft_p50_ms: float | None
    ttft_p95_ms: float | None


@dataclass(frozen=True, slots=True)
class Set:
    """Rows that were measured alike, by their batch, smallest first."""

    conditions: Conditions
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Apart:
    """Sets that are alike but for one condition, and by it no comparison.

    `alike`: one of them. `values`: what the sets say of the condition.
    """

    condition: str
    values: tuple[str | int, ...]
    alike: Conditions


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A row that takes part in nothing, and why."""

    place: str
    why: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything that can be said of some rows."""

    sets: tuple[Set, ...]
    apart: tuple[Apart, ...]
    left_out: tuple[LeftOut, ...]


def compare(rows: Sequence[LocatedRow]) -> Comparison:
    """The comparable sets, in the order in which their first rows stand."""
    by_conditions: dict[Conditions, list[LocatedRow]] = {}
    left_out = []
    places: dict[tuple[str | float, ...], str] = {}
    for placed in rows:
        first = places.setdefault(identity(placed.record), placed.place)
        if first != placed.place:
            left_out.append(LeftOut(placed.place, f"the same row as {first}: it counts once"))
        elif placed.row.measurement_type is Label.TO_BE_CONFIRMED:
            why = f"{Label.TO_BE_CONFIRMED}: nobody knows how the engine was batching"
            left_out.append(LeftOut(placed.place, why))
        else:
            by_conditions.setdefault(_conditions(placed), []).append(placed)
    sets = tuple(Set(alike, _points(of_set)) for alike, of_set in by_conditions.items())
    return Comparison(sets, _apart(list(by_conditions)), tuple(left_out))


def differing(sets: Sequence[Set]) -> tuple[str, ...]:
    """The conditions in which sets are not all alike, in the order of the columns."""
    found = [of_set.conditions for of_set in sets]
    return tuple(
        name for name in SEPARATION_REASONS if len({getattr(each, name) for each in found}) > 1
    )


def _conditions(placed: LocatedRow) -> Conditions:
    row = placed.row
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
    """What is told in other words than ours says nothing."""
    said = parse_notes(row.scenario_notes).get("arrivals")
    return _LOOPS[Arrivals(said)] if said in set(Arrivals) else Loop.NOT_TOLD


def _points(rows: Sequence[LocatedRow]) -> tuple[Point, ...]:
    by_batch: dict[int, list[LocatedRow]] = {}
    for placed in sorted(rows, key=lambda placed: placed.row.batch):
        by_batch.setdefault(placed.row.batch, []).append(placed)
    middles = {batch: _middle(of_batch) for batch, of_batch in by_batch.items()}
    smallest = min(middles)
    points = []
    for batch, middle in middles.items():
        speedup = middle.median / middles[smallest].median
        point = Point(
            batch=batch,
            rows=len(by_batch[batch]),
            tokens_per_s=middle,
            tokens_per_s_per_sequence=middle.median / batch,
            speedup=speedup,
            efficiency=speedup / (batch / smallest),
            ttft_p50_ms=_noted(by_batch[batch], TTFT_P50_NOTE),
            ttft_p95_ms=_noted(by_batch[batch], TTFT_P95_NOTE),
        )
        points.append(point)
    return tuple(points)


def _middle(rows: Sequence[LocatedRow]) -> Middle:
    figures = [placed.row.throughput_tokens_per_sec for placed in rows]
    return Middle(median(figures), min(figures), max(figures))


def _noted(rows: Sequence[LocatedRow], name: str) -> float | None:
    notes = (parse_notes(placed.row.scenario_notes) for placed in rows)
    values = [float(of_row[name]) for of_row in notes if name in of_row]
    return median(values) if values else None


def _apart(found: Sequence[Conditions]) -> tuple[Apart, ...]:
    """Sets that differ in exactly one condition, by condition."""
    apart = []
    for name in SEPARATION_REASONS:
        alike: dict[tuple[object, ...], list[Conditions]] = {}
        for conditions in found:
            # Which arrivals there may be follows from the label.
            same = {name, "arrivals"} if name == "measurement_type" else {name}
            others = tuple(
                getattr(conditions, other) for other in SEPARATION_REASONS if other not in same
            )
            alike.setdefault(others, []).append(conditions)
        for group in alike.values():
            values = tuple(dict.fromkeys(getattr(each, name) for each in group))
            if len(values) > 1:
                apart.append(Apart(name, values, group[0]))
    return tuple(apart)

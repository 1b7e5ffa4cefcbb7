"""The result of decode steps: the figures of runs and of a sweep, as the file has them.

Of requests they are those of `tools.facts.labels.figures`, by the schedule's virtual clock.
Percentiles interpolate, unlike in the paper's program, which takes the rank below.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from orch_sidecar.tools.bench.decode.device import Device
from orch_sidecar.tools.bench.decode.schedule import Outcome, TimedStep
from orch_sidecar.tools.bench.results.result import Document
from orch_sidecar.tools.bench.results.sweep import Curve
from orch_sidecar.tools.facts.labels.figures import Spread, Totals, figures, scaling, spread


@dataclass(frozen=True, slots=True)
class Config:
    """The options of the schedule. `reference`: that of the paper's program; `work`: iterations of
    its kernel that the model's size follows from, None for another size."""

    nreq: int
    rate_per_s: float
    tokens: int
    bmax: int
    seed: int
    reference: bool = False
    work: int | None = None


@dataclass(frozen=True, slots=True)
class Point:
    """Steps of one batch. Throughput is that of the median step; the first step has no gap.
    `speed_up`: over the first point; `efficiency`: 1 if a step of more takes no longer."""

    batch: Annotated[int, Field(ge=1, le=100_000)]  # beyond it the file is damaged
    steps: int
    step_ms: Spread
    gap_ms: Spread | None
    tokens_per_s: float
    speed_up: float
    efficiency: float


@dataclass(frozen=True, slots=True)
class Run:
    """The figures of one schedule. `requests`: in seconds of the virtual clock.
    `tokens_per_s_device`: over the time in steps. `points`: by batch."""

    window_ms: float
    requests: Totals
    device_ms: float
    tokens_per_s_device: float
    points: Annotated[tuple[Point, ...], Field(min_length=1)]
    gap_ms: Spread | None


class DecodeResult(Document):
    """The file. `runs`: one for each window. `points`: of a sweep, by batch. `fit`: the curve of
    their medians; None for fewer than three."""

    config: Config
    device: Device
    runs: tuple[Run, ...] = ()
    points: tuple[Point, ...] = ()
    fit: Curve | None = None
    schema_version: Literal["orch.bench.decode/3"] = "orch.bench.decode/3"


def run_figures(window_ms: float, outcome: Outcome) -> Run:
    """Returns the figures of a schedule with requests."""
    totals, timed = figures(outcome.requests), outcome.steps
    device_ms = sum(step.ms for step in timed)
    return Run(
        window_ms=window_ms,
        requests=totals,
        device_ms=device_ms,
        tokens_per_s_device=1000 * totals.output_tokens / device_ms,
        points=points_of(timed),
        gap_ms=_gaps(timed),
    )


def points_of(timed: Sequence[TimedStep]) -> tuple[Point, ...]:
    """Returns the figures of steps, in any order, by batch."""
    by_batch: dict[int, list[TimedStep]] = {}
    for each in timed:
        by_batch.setdefault(each.batch, []).append(each)
    points: list[Point] = []
    for batch, steps in sorted(by_batch.items()):
        step_ms = spread([each.ms for each in steps])
        assert step_ms is not None, "a point has steps"
        at = batch, 1000 * batch / step_ms.p50
        base = (points[0].batch, points[0].tokens_per_s) if points else at
        points.append(Point(batch, len(steps), step_ms, _gaps(steps), at[1], *scaling(at, base)))
    return tuple(points)


def _gaps(timed: Sequence[TimedStep]) -> Spread | None:
    return spread([each.gap_ms for each in timed if each.gap_ms is not None])

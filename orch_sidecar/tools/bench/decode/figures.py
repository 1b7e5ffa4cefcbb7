"""Figures of a run and of a sweep, from the steps they consist of. Pure.

TTFT, latency and throughput mean what `tools.facts.evidence.figures` says, in milliseconds of
the schedule's virtual clock; percentiles interpolate, too, where the reference program of
"Throughput, Latency & Batching Policy" takes the rank below.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from orch_sidecar.tools.bench.decode.schedule import Outcome
from orch_sidecar.tools.bench.results.fit import Fit, fit
from orch_sidecar.tools.facts.evidence.figures import Spread, spread

# From this batch on, gaps between steps are to be small: at fewer sequences, steps are short and
# launching them is a large part of each anyway.
LARGE_BATCH: Final = 8


@dataclass(frozen=True, slots=True)
class TimedStep:
    """A step of `batch` sequences that a device ran.

    `gap_ms`: from the end of the step before to the start of this one, with nothing else to do:
    what the host needs to notice, to schedule and to launch. None of the first step.
    """

    batch: int
    ms: float
    gap_ms: float | None


@dataclass(frozen=True, slots=True)
class Run:
    """One schedule, served. Milliseconds, tokens per second.

    `tokens_per_s_device`: over the time in steps alone; `tokens_per_s`: from the first arrival
    to the last end, waiting included. `step_ms`: by batch, with the number of steps. Gaps are
    None where nothing was measured; `gap_large_ms`: those before steps of LARGE_BATCH or more.
    """

    window_ms: float
    device_ms: float
    tokens: int
    tokens_per_s_device: float
    tokens_per_s: float
    ttft_ms: Spread
    e2e_ms: Spread
    steps: int
    step_ms: Mapping[int, tuple[int, Spread]]
    gap_ms: Spread | None
    gap_large_ms: Spread | None


def run_figures(window_ms: float, outcome: Outcome, timed: Sequence[TimedStep]) -> Run:
    """Of a schedule with at least one request. `timed`: its steps, if a device ran them."""
    requests, steps = outcome.requests, outcome.steps
    device_ms = sum(step.ms for step in steps)
    tokens = sum(step.batch for step in steps)
    span_ms = max(each.ended_ms for each in requests) - requests[0].arrived_ms
    by_batch: dict[int, list[float]] = {}
    for step in steps:
        by_batch.setdefault(step.batch, []).append(step.ms)
    return Run(
        window_ms=window_ms,
        device_ms=device_ms,
        tokens=tokens,
        tokens_per_s_device=1000 * tokens / device_ms,
        tokens_per_s=1000 * tokens / span_ms,
        ttft_ms=_spread([each.ttft_ms for each in requests]),
        e2e_ms=_spread([each.e2e_ms for each in requests]),
        steps=len(steps),
        step_ms={batch: (len(ms), _spread(ms)) for batch, ms in sorted(by_batch.items())},
        gap_ms=_gaps(timed, 1),
        gap_large_ms=_gaps(timed, LARGE_BATCH),
    )


@dataclass(frozen=True, slots=True)
class Point:
    """Steps of one batch. Throughput is that of the median step; ratios are to the first point.

    `speed_up`: of tokens per second; `efficiency`: speed-up for each sequence, 1 where a step
    takes no longer for more of them.
    """

    batch: int
    steps: int
    step_ms: Spread
    gap_ms: Spread | None
    tokens_per_s: float
    speed_up: float
    efficiency: float


@dataclass(frozen=True, slots=True)
class Sweep:
    """Points by rising batch, and the curve of the medians; None for fewer than three points."""

    points: tuple[Point, ...]
    fit: Fit | None

    @property
    def monotonic(self) -> bool:
        """Whether each larger batch makes more tokens per second."""
        rates = [point.tokens_per_s for point in self.points]
        return all(before < after for before, after in pairwise(rates))


def sweep_figures(timed: Sequence[TimedStep]) -> Sweep:
    """Of steps of one batch or several, in whatever order they ran."""
    by_batch: dict[int, list[TimedStep]] = {}
    for each in timed:
        by_batch.setdefault(each.batch, []).append(each)
    spreads = {batch: _spread([each.ms for each in by_batch[batch]]) for batch in sorted(by_batch)}
    first = next(iter(spreads))
    points = []
    for batch, step_ms in spreads.items():
        speed_up = (batch / step_ms.p50) / (first / spreads[first].p50)
        points.append(
            Point(
                batch=batch,
                steps=len(by_batch[batch]),
                step_ms=step_ms,
                gap_ms=_gaps(by_batch[batch], 1),
                tokens_per_s=1000 * batch / step_ms.p50,
                speed_up=speed_up,
                efficiency=speed_up * first / batch,
            )
        )
    return Sweep(tuple(points), fit([(point.batch, point.step_ms.p50) for point in points]))


def _gaps(timed: Sequence[TimedStep], least_batch: int) -> Spread | None:
    return spread(
        [each.gap_ms for each in timed if each.gap_ms is not None and each.batch >= least_batch]
    )


def _spread(values: Sequence[float]) -> Spread:
    found = spread(values)
    assert found is not None, "a run has requests and steps, and a point has steps"
    return found

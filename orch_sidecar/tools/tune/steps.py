"""The time of a decode step by its batch, from the engine's own counts before and after a run.

Pure. Counted are steps that only decoded; times are milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from orch_sidecar.engine_state.report import decode_steps_of
from orch_sidecar.tools.bench.results.fit import Fit, fit

# Fewer steps of a size are not enough: one slow step would move their mean.
LEAST_STEPS: Final = 5
# Beyond this multiple of the largest batch that was measured nothing is concluded from the fit.
FURTHEST: Final = 2.0


class NotEnough(ValueError):
    """The run did not show enough; the message states what is missing and what to do."""


@dataclass(frozen=True, slots=True)
class Point:
    """The mean time of `steps` decode steps of `batch` sequences."""

    batch: int
    steps: int
    ms: float

    @property
    def tokens_per_s(self) -> float:
        """Generated tokens per second of such steps."""
        return 1000 * self.batch / self.ms


@dataclass(frozen=True, slots=True)
class StepCurve:
    """The measured points, in ascending order of their batch, and the curve through them."""

    points: tuple[Point, ...]
    fit: Fit

    @property
    def largest(self) -> int:
        """The largest batch that was measured."""
        return self.points[-1].batch

    @property
    def steps(self) -> int:
        return sum(point.steps for point in self.points)

    def ms(self, batch: float) -> float:
        """Milliseconds of a decode step."""
        return self.fit.at(batch)

    def tokens_per_s(self, batch: float) -> float:
        """Generated tokens per second while every step decodes `batch` sequences."""
        return 1000 * batch / self.ms(batch)


def steps_between(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[int, Point]:
    """Returns the decode steps between two entries of one engine in `/v1/capabilities`."""
    earlier = {batch: (steps, s) for batch, steps, s in decode_steps_of(before) or ()}
    found = {}
    for batch, steps, seconds in decode_steps_of(after) or ():
        steps_before, seconds_before = earlier.get(batch, (0, 0.0))
        count = steps - steps_before
        if count > 0 and batch > 0:
            found[batch] = Point(batch, count, 1000 * (seconds - seconds_before) / count)
    return found


def curve_of(runs: Iterable[Mapping[int, Point]]) -> StepCurve:
    """Returns the curve through the steps of several runs. Raises NotEnough."""
    sums: dict[int, tuple[int, float]] = {}
    for run in runs:
        for batch, point in run.items():
            steps, ms = sums.get(batch, (0, 0.0))
            sums[batch] = steps + point.steps, ms + point.steps * point.ms
    points = tuple(
        Point(batch, steps, ms / steps)
        for batch, (steps, ms) in sorted(sums.items())
        if steps >= LEAST_STEPS and ms > 0
    )
    found = fit([(point.batch, point.ms) for point in points]) if points else None
    if found is None:
        sizes = ", ".join(str(point.batch) for point in points) or "none"
        raise NotEnough(
            f"the engine had {LEAST_STEPS} decode steps of these batches only: {sizes}; a curve "
            "needs three that differ: raise the length of the run or of its answers"
        )
    return StepCurve(points, found)

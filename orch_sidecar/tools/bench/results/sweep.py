"""Throughput and latency of a sweep by concurrency, and the curve of step times by batch.

The batch of a point is the mean of the engine's steps, or else the number of clients. Points that
are invalid or incomplete are shown, but nothing is derived from them: they are excluded from the
fit, have no speed-up, and are never what the speed-up of others is relative to.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from typing import Annotated, Literal

from pydantic import Field

from orch_sidecar.tools.bench.results.result import Document, Result, Status
from orch_sidecar.tools.facts.labels.figures import Totals, scaling
from orch_sidecar.tools.facts.labels.judge import NEVER_BATCHED
from orch_sidecar.tools.facts.tables.notes import time_note


@dataclass(frozen=True, slots=True)
class Curve:
    """The time of a step of b sequences: t0 + c * b^alpha, the form of "Throughput, Latency &
    Batching Policy". `t0`: the fixed cost of a step, `c`: the cost per sequence, both in the unit
    of the time. `alpha`: its sublinearity, in (0, 1]. `worst_error`: the largest relative deviation
    of a point that it was fitted to: 0.05 means 5 %."""

    t0: float
    c: float
    alpha: float
    worst_error: float = 0.0

    def at(self, batch: float) -> float:
        """Returns the time of a step of `batch` sequences."""
        return self.t0 + self.c * math.pow(batch, self.alpha)


def fit(points: Sequence[tuple[float, float]]) -> Curve | None:
    """Returns the least-squares curve of points (batch, time) by relative deviation.

    A batch is at least 1, may be a mean, and may occur more than once; times are above 0. Returns
    None for fewer than three batches, one for each parameter, that differ by at least a tenth: the
    means of runs that all fill the engine's slots do not. t0 and c are never negative.
    """
    sizes, last = 0, 0.0
    for batch, _ in sorted(points):
        if batch >= 1.1 * last:
            sizes, last = sizes + 1, batch
    if sizes < 3:
        return None
    # Measurement noise in alpha exceeds a hundredth. Largest first: of equally good fits (a flat
    # curve fits with any alpha) the straight line is chosen.
    curves = [_line(points, step / 100) for step in range(100, 4, -1)]
    errors = [[abs(curve.at(batch) - time) / time for batch, time in points] for curve in curves]
    best = min(range(len(curves)), key=lambda number: sum(each**2 for each in errors[number]))
    return replace(curves[best], worst_error=max(errors[best]))


def _line(points: Sequence[tuple[float, float]], alpha: float) -> Curve:
    """Fits t0 and c for one alpha by linear least squares with the weights 1 / time^2.

    Where the best t0 or c is negative it is set to 0, and the other one is fitted alone.
    """
    s = sx = sxx = sy = sxy = 0.0
    for batch, time in points:
        x, w = float(batch) ** alpha, 1 / (time * time)
        s += w
        sx += w * x
        sxx += w * x * x
        sy += w * time
        sxy += w * x * time
    determinant = s * sxx - sx * sx  # above 0 for two different batches and alpha > 0
    t0 = (sxx * sy - sx * sxy) / determinant
    c = (s * sxy - sx * sy) / determinant
    if c < 0:
        return Curve(sy / s, 0.0, alpha)
    if t0 < 0:
        return Curve(0.0, sxy / sxx, alpha)
    return Curve(t0, c, alpha)


@dataclass(frozen=True, slots=True)
class Point:
    """One concurrency with an answer. `speed_up`: over the first sound one; `efficiency`: speed-up
    over the growth of the clients. Both are None for a point that is not sound."""

    result: Result
    figures: Totals
    clients: int
    speed_up: float | None
    efficiency: float | None

    @property
    def batch(self) -> float:
        """The mean number of sequences in a step."""
        batches = self.result.batches
        return float(self.clients) if batches is None else batches.mean

    @property
    def tpot_p50_ms(self) -> float | None:
        return self.figures.latency_ms.get(time_note("tpot", 50))


class Sweep(Document):
    """The file. `ended_by`: what ended the sweep before all concurrencies were measured completely,
    empty if nothing did. `fit`: of TPOT in ms, rounded. `results`: ascending by their clients."""

    schema_version: Literal["orch.sweep/3"] = "orch.sweep/3"
    ended_by: str
    fit: Curve | None
    results: Annotated[list[Result], Field(min_length=1)]

    @property
    def points(self) -> list[Point]:
        """What was measured at each concurrency, but where nothing was answered."""
        points: list[Point] = []
        base: tuple[int, float] | None = None
        for result in self.results:
            figures, clients = result.figures, result.scenario.clients
            if figures is None or clients is None or not figures.tokens_per_s:
                continue
            related: Sequence[float | None] = (None, None)
            if result.is_sound:
                at = clients, figures.tokens_per_s
                base = base or at
                related = [round(each, 4) for each in scaling(at, base)]
            points.append(Point(result, figures, clients, *related))
        return points

    @property
    def step_times(self) -> list[tuple[float, float]]:
        """The batch and the TPOT in ms of each sound point. By batch, not by clients: more clients
        than slots do not enlarge it."""
        sound = (point for point in self.points if point.result.is_sound)
        return [(point.batch, ms) for point in sound if (ms := point.tpot_p50_ms)]

    @property
    def is_sound(self) -> bool:
        """Whether all concurrencies were measured, and each of them soundly."""
        return all(result.is_sound for result in self.results) and not self.ended_by


def sweep_of(results: Sequence[Result], ended_by: str = "") -> Sweep:
    """Returns the sweep of closed loops' results, which are in ascending order of their clients."""
    found = Sweep(ended_by=ended_by, fit=None, results=[_unbatched(result) for result in results])
    curve = fit(found.step_times)
    rounded = curve and Curve(*(round(each, 4) for each in astuple(curve)))
    return found.model_copy(update={"fit": rounded})


def _unbatched(result: Result) -> Result:
    """Marks the result of one client that is invalid only as nothing was batched."""
    alone = result.scenario.clients == 1 and result.reasons == [NEVER_BATCHED]
    return result.model_copy(update={"status": Status.UNBATCHED}) if alone else result

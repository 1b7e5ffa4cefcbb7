"""Fits the time of a decode step to its batch size b: t0 + c * b^alpha.

Times are in the unit of the points. The form is that of "Throughput, Latency & Batching Policy":
t0 is the fixed cost of a step, c the cost per sequence, alpha in (0, 1] its sublinearity.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

# Three parameters need three different sizes.
LEAST_SIZES: Final = 3
# Mean batches of runs that all fill the engine's slots differ by less than this factor.
DIFFERENT: Final = 1.1

# Measurement noise in alpha exceeds a hundredth. Largest first: of equally good fits (a flat
# curve fits with any alpha) the straight line is chosen.
_ALPHAS: Final = tuple(step / 100 for step in range(100, 4, -1))


@dataclass(frozen=True, slots=True)
class Curve:
    """t0 + c * b^alpha. `t0` and `c` have the unit of the time."""

    t0: float
    c: float
    alpha: float

    def at(self, batch: float) -> float:
        """Returns the time of a step of `batch` sequences."""
        return self.t0 + self.c * math.pow(batch, self.alpha)


@dataclass(frozen=True, slots=True)
class Fit(Curve):
    """A fitted curve. `worst_error`: the largest relative deviation of a point: 0.05 means 5 %."""

    worst_error: float


def fit(points: Sequence[tuple[float, float]]) -> Fit | None:
    """Returns the least-squares curve of points (batch, time) by relative deviation.

    A batch may be a mean, and may occur more than once. Returns None for fewer than three batches
    that differ by at least a tenth. t0 and c are never negative. Raises ValueError for a batch
    below 1 and a time that is not above 0.
    """
    for batch, time in points:
        if batch < 1:
            raise ValueError(f"a batch is {batch}: it must be at least 1")
        if not (math.isfinite(time) and time > 0):
            raise ValueError(f"a step of {batch} sequences takes {time}: it must be above 0")
    if _sizes([batch for batch, _ in points]) < LEAST_SIZES:
        return None
    best = min((_line(points, alpha) for alpha in _ALPHAS), key=lambda curve: _off(points, curve))
    worst = max(abs(best.at(batch) - time) / time for batch, time in points)
    return Fit(best.t0, best.c, best.alpha, worst)


def _sizes(batches: Sequence[float]) -> int:
    """Counts the batches that differ by more than noise does."""
    count, last = 0, 0.0
    for batch in sorted(batches):
        if batch >= DIFFERENT * last:
            count, last = count + 1, batch
    return count


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


def _off(points: Sequence[tuple[float, float]], curve: Curve) -> float:
    return sum(((curve.at(batch) - time) / time) ** 2 for batch, time in points)

"""How long a step takes by how many sequences it decodes: t0 + c * b^alpha, fitted.

Pure arithmetic, in whatever unit of time the points have. The form is the one of "Throughput,
Latency & Batching Policy": t0 is what a step costs whoever is in it, c what a sequence adds,
alpha in (0, 1] how sublinearly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

# Three parameters: fewer different sizes than that determine no curve.
LEAST_SIZES: Final = 3
# Of what all comes to the engine's slots the means are apart by less.
DIFFERENT: Final = 1.1

# Noise of a measurement leaves alpha open by more than a hundredth. Largest first: of equals
# (a flat curve has any alpha) the straight line is the one to give.
_ALPHAS: Final = tuple(step / 100 for step in range(100, 4, -1))


@dataclass(frozen=True, slots=True)
class Curve:
    """t0 + c * b^alpha. `t0` and `c` have the unit of the time."""

    t0: float
    c: float
    alpha: float

    def at(self, batch: float) -> float:
        """The time of a step of `batch` sequences."""
        return self.t0 + self.c * math.pow(batch, self.alpha)


@dataclass(frozen=True, slots=True)
class Fit(Curve):
    """A curve, and how well it fits.

    `worst_error`: the largest deviation of a point from the curve, as a part of the point: 0.05
    means that no point is more than 5 % away.
    """

    worst_error: float


def fit(points: Sequence[tuple[float, float]]) -> Fit | None:
    """The curve with the least relative deviations from points of (sequences, time).

    A size may be a mean, and occur more than once. None for fewer than three sizes of which each
    is larger than the one before by a tenth at least. Neither t0 nor c is ever negative. Raises
    ValueError for a size below 1, or a time that is not above 0.
    """
    for batch, time in points:
        if batch < 1:
            raise ValueError(f"a step of {batch} sequences: must be at least 1")
        if not (math.isfinite(time) and time > 0):
            raise ValueError(f"a step of {batch} sequences in {time}: must be above 0")
    if _sizes([batch for batch, _ in points]) < LEAST_SIZES:
        return None
    best = min((_line(points, alpha) for alpha in _ALPHAS), key=lambda curve: _off(points, curve))
    worst = max(abs(best.at(batch) - time) / time for batch, time in points)
    return Fit(best.t0, best.c, best.alpha, worst)


def _sizes(batches: Sequence[float]) -> int:
    """How many there are that differ by more than means do of what is meant to be one size."""
    count, last = 0, 0.0
    for batch in sorted(batches):
        if batch >= DIFFERENT * last:
            count, last = count + 1, batch
    return count


def _line(points: Sequence[tuple[float, float]], alpha: float) -> Curve:
    """Weighted linear least squares for one alpha: each point counts as 1 / time^2.

    Where the best t0 or c is negative, the other alone is fitted.
    """
    s = sx = sxx = sy = sxy = 0.0
    for batch, time in points:
        x, w = float(batch) ** alpha, 1 / (time * time)
        s += w
        sx += w * x
        sxx += w * x * x
        sy += w * time
        sxy += w * x * time
    determinant = s * sxx - sx * sx  # above 0: there are two sizes at least, and alpha > 0
    t0 = (sxx * sy - sx * sxy) / determinant
    c = (s * sxy - sx * sy) / determinant
    if c < 0:
        return Curve(sy / s, 0.0, alpha)
    if t0 < 0:
        return Curve(0.0, sxy / sxx, alpha)
    return Curve(t0, c, alpha)


def _off(points: Sequence[tuple[float, float]], curve: Curve) -> float:
    return sum(((curve.at(batch) - time) / time) ** 2 for batch, time in points)

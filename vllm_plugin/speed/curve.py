"""Fits the curve t0 + c * b**alpha with the least relative deviation from given points.

For a given alpha the best t0 and c are a weighted linear least-squares problem with a closed form;
alpha is found by a search. Takes 0.1 ms for 10 sizes, 0.5 ms for 256.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

MIN_ALPHA: Final = 0.05  # below, the curve is logarithmic, flat to within a few percent

# Sizes within 6 % of each other are merged into one point: 62 points up to b = 256,
# 108 up to 4096.
_POINT_WIDTH: Final = 0.06
# alpha is found to 0.2 %, far below its uncertainty from noise.
_ALPHA_STEP: Final = 0.002
_GRID_STEPS: Final = 10


@dataclass(frozen=True, slots=True)
class Curve:
    """Seconds by batch size: t0_s + c_s * b**alpha. None of the three is negative."""

    t0_s: float
    c_s: float
    alpha: float

    def seconds(self, batch: float) -> float:
        """Returns the seconds of a step of `batch` sequences; monotonic."""
        return self.t0_s + self.c_s * float(batch) ** self.alpha if batch > 0 else self.t0_s


@dataclass(frozen=True, slots=True)
class _Point:
    log_b: float
    seconds: float
    weight: float


def fit(
    seconds: Mapping[int, float], weights: Mapping[int, int], alpha: float | None = None
) -> Curve:
    """Fits the seconds of each batch size, with the given alpha or the best in (0, 1].

    Raises ZeroDivisionError if there is no batch size.
    """
    points = _points(seconds, weights)
    chosen = _best_alpha(points) if alpha is None else alpha
    t0_s, c_s, _ = _least_squares(points, chosen)
    return Curve(t0_s, c_s, chosen)


def _points(seconds: Mapping[int, float], weights: Mapping[int, int]) -> list[_Point]:
    """Merges neighbouring sizes into points, so that a fit of many sizes stays fast."""
    groups: dict[int, list[int]] = {}
    for batch in seconds:
        groups.setdefault(int(math.log(batch) / _POINT_WIDTH), []).append(batch)
    points = []
    for batches in groups.values():
        weight = sum(weights[batch] for batch in batches)
        points.append(
            _Point(
                sum(math.log(batch) * weights[batch] for batch in batches) / weight,
                sum(seconds[batch] * weights[batch] for batch in batches) / weight,
                weight,
            )
        )
    return points


def _least_squares(points: Sequence[_Point], alpha: float) -> tuple[float, float, float]:
    """Returns (t0, c, weighted sum of the squared relative deviations) for one alpha.

    Neither t0 nor c is negative: where the best one would be, the other alone is fitted.
    """
    s = sx = sxx = sy = sxy = syy = 0.0
    for point in points:
        x = math.exp(alpha * point.log_b)
        w = point.weight / (point.seconds * point.seconds)
        wx = w * x
        s += w
        sx += wx
        sxx += wx * x
        sy += w * point.seconds
        sxy += wx * point.seconds
        syy += point.weight
    determinant = s * sxx - sx * sx
    if determinant <= 1e-12 * s * sxx:
        t0, c = sy / s, 0.0  # one point, or nearly so
    else:
        t0 = (sxx * sy - sx * sxy) / determinant
        c = (s * sxy - sx * sy) / determinant
        if c < 0:
            t0, c = sy / s, 0.0
        elif t0 < 0:
            t0, c = 0.0, sxy / sxx
    squares = syy + t0 * t0 * s + c * c * sxx + 2 * (t0 * c * sx - t0 * sy - c * sxy)
    return t0, c, squares


def _best_alpha(points: Sequence[_Point]) -> float:
    """Returns the best alpha, by a coarse grid and a golden-section search around its minimum."""
    grid = [MIN_ALPHA + (1 - MIN_ALPHA) * index / _GRID_STEPS for index in range(_GRID_STEPS + 1)]
    best = min(grid, key=lambda alpha: _least_squares(points, alpha)[2])
    width = (1 - MIN_ALPHA) / _GRID_STEPS
    low, high = max(MIN_ALPHA, best - width), min(1.0, best + width)
    golden = (math.sqrt(5) - 1) / 2
    while high - low > _ALPHA_STEP:
        left, right = high - golden * (high - low), low + golden * (high - low)
        if _least_squares(points, left)[2] < _least_squares(points, right)[2]:
            high = right
        else:
            low = left
    return min((low, (low + high) / 2, high), key=lambda alpha: _least_squares(points, alpha)[2])

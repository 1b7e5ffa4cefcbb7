"""The curve t0 + c * b**alpha that deviates least, relatively, from given points.

Pure arithmetic. For one alpha the best t0 and c are a weighted linear least-squares problem
with a closed form; alpha is searched for. 0.1 ms for 10 sizes, 0.5 ms for 256.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

ALPHA_LEAST: Final = 0.05  # below, the curve is a logarithm, and flat to within a few percent

# Sizes within 6 % of each other are one point of the curve: 62 points up to b = 256,
# 108 up to 4096.
_POINT_WIDTH: Final = 0.06
# alpha to 0.2 %, far below what noise leaves of it.
_ALPHA_STEP: Final = 0.002
_GRID_STEPS: Final = 10


@dataclass(frozen=True, slots=True)
class Curve:
    """Seconds by batch size: t0_s + c_s * b**alpha. None of the three is negative."""

    t0_s: float
    c_s: float
    alpha: float

    def seconds(self, batch: float) -> float:
        """Seconds of a step of `batch` sequences; never decreases with it."""
        return self.t0_s + self.c_s * float(batch) ** self.alpha if batch > 0 else self.t0_s


@dataclass(frozen=True, slots=True)
class _Point:
    log_b: float
    seconds: float
    weight: float


def through(
    seconds: Mapping[int, float], weights: Mapping[int, int], alpha: float | None = None
) -> Curve:
    """The curve through the seconds of each batch size, with this alpha or the best in (0, 1].

    Raises ZeroDivisionError where there is no size.
    """
    points = _points(seconds, weights)
    chosen = _best_alpha(points) if alpha is None else alpha
    t0_s, c_s, _ = _line(points, chosen)
    return Curve(t0_s, c_s, chosen)


def _points(seconds: Mapping[int, float], weights: Mapping[int, int]) -> list[_Point]:
    """One point for each size; neighbours share one where sizes are many."""
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


def _line(points: Sequence[_Point], alpha: float) -> tuple[float, float, float]:
    """Least squares of the relative deviations for one alpha: (t0, c, their weighted sum).

    Neither t0 nor c is negative: where the best is, the other alone is fitted.
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
        t0, c = sy / s, 0.0  # one point, or as good as one
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
    """The alpha whose line deviates least: a coarse look, then a golden-section search."""
    grid = [
        ALPHA_LEAST + (1 - ALPHA_LEAST) * index / _GRID_STEPS for index in range(_GRID_STEPS + 1)
    ]
    best = min(grid, key=lambda alpha: _line(points, alpha)[2])
    width = (1 - ALPHA_LEAST) / _GRID_STEPS
    low, high = max(ALPHA_LEAST, best - width), min(1.0, best + width)
    golden = (math.sqrt(5) - 1) / 2
    while high - low > _ALPHA_STEP:
        left, right = high - golden * (high - low), low + golden * (high - low)
        if _line(points, left)[2] < _line(points, right)[2]:
            high = right
        else:
            low = left
    return min((low, (low + high) / 2, high), key=lambda alpha: _line(points, alpha)[2])

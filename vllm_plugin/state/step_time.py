"""Fits the duration of a decode step by its batch size, t(b) = t0 + c * b**alpha, and counts the
tokens of a sequence per step: one, or several where drafts of speculative decoding are accepted.

Also decides whether the samples suffice to rely on the fit. The caller decides when to fit.

Samples are kept in blocks of consecutive steps. The speed of a machine drifts (other tenants, its
temperature, the length of the contexts), the ratios between batch sizes do much less. So each
block has a level: how much slower or faster its steps were than steps of the same sizes elsewhere.
The fit takes the level of the newest block: one block after a change the whole curve has moved,
also at sizes that no step has had since, while its shape comes from all blocks. A block is dropped
when newer ones have enough samples of all its sizes, so that hours at one batch size do not erase
the others.

What is fitted depends on the number of distinct sizes:

    one           t0 alone, c = 0: exact for an engine of one slot, otherwise of poor quality
    two or three  t0 and c, alpha = 1; so too where the largest is less than four times the
    or close      smallest: a line through such sizes overestimates the times beyond them
    four or more  all three; c and alpha compensate each other within a few percent, so the curve
                  is more accurate than they are

The curve is that with the least relative deviation. For a given alpha the best t0 and c are a
weighted linear least-squares problem with a closed form; alpha is found by a search. A fit takes
0.1 ms for 10 sizes, 0.5 ms for 256.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

BLOCK_STEPS: Final = 64
# 4096 steps: 64 of each size up to a batch of 64, and a fit of them takes about 2 ms.
BLOCKS: Final = 64
# More samples of one size hardly help: the curve itself is not that exact.
MAX_SAMPLES_PER_SIZE: Final = 64
# The trimmed mean of five tolerates an outlier at either end, a compilation included.
MIN_SAMPLES_PER_SIZE: Final = 5
# The trimmed mean of 16 steps that vary by 10 % is good to 3 %.
MIN_SAMPLES_PER_LEVEL: Final = 16
# Levels closer than that are the same: two such means of 64 steps differ by 2 %.
LEVEL_TOLERANCE: Final = 0.05
# This share of a size's samples is trimmed at either end. The trimmed mean is nearly as exact as
# the mean, and outliers up to that share do not move it.
TRIMMED_SHARE: Final = 0.2

SIZES_FOR_ALPHA: Final = 4  # one more than the unknowns
SPAN_FOR_ALPHA: Final = 4  # over a smaller range, 10 % of alpha change the curve by under 2 %

MIN_ALPHA: Final = 0.05  # below, the curve is logarithmic, flat to within a few percent

# Sizes within 6 % of each other are merged into one point: 62 points up to b = 256,
# 108 up to 4096.
_POINT_WIDTH: Final = 0.06
# alpha is found to 0.2 %, far below its uncertainty from noise.
_ALPHA_STEP: Final = 0.002
_GRID_STEPS: Final = 10

# A fit is good if it has a block of samples, more sizes than unknowns, the largest at least twice
# the smallest, and an error that keeps predictions useful against an SLO.
GOOD_SAMPLES: Final = 64
GOOD_SIZES: Final = 4
GOOD_SPAN: Final = 2
GOOD_ERROR: Final = 0.15

# How many drafts are accepted depends on the prompts. The newest outputs, a minute of 8 streams,
# have a weight of one half at least.
RECENT_OUTPUTS: Final = 16_384


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
class StepTime:
    """A fit of the seconds of a decode step by its batch size, and its quality."""

    curve: Curve
    samples: int  # steps used
    batches: int  # distinct sizes among them
    largest: int  # batch size
    error: float  # median relative deviation from the sizes' means, weighted by their samples
    good: bool
    tokens: float = 1.0  # of a sequence in a step; more than one where drafts are accepted

    def seconds(self, batch: float) -> float:
        """Returns the seconds of a decode step of `batch` sequences; monotonic."""
        return self.curve.seconds(batch)

    def document(self) -> dict[str, Any]:
        """Returns the fit as in `/v1/capabilities`: milliseconds, four significant digits."""
        return {
            "t0_ms": _rounded(self.curve.t0_s * 1000),
            "c_ms": _rounded(self.curve.c_s * 1000),
            "alpha": _rounded(self.curve.alpha),
            "samples": self.samples,
            "batches": self.batches,
            "largest": self.largest,
            "tokens": round(self.tokens, 3),
            "error": round(self.error, 4),
            "quality": "good" if self.good else "poor",
        }


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


_Block = list[tuple[int, float]]  # (batch, log of the seconds), in order


class StepSamples:
    """The samples of decode-only steps for the next fit: at most 2 * BLOCKS blocks."""

    def __init__(self, slots_total: int) -> None:
        self._slots = slots_total
        self._block: _Block = []
        self._blocks: deque[_Block] = deque([self._block], maxlen=2 * BLOCKS)
        self._means: dict[int, float] = {}  # log seconds of each size, at the level of the last fit
        self.fresh = False  # there are samples newer than the last fit
        self._outputs = 0.0
        self._generated = 0.0

    def record(self, batch: int, seconds: float) -> None:
        """Adds a step that only decoded `batch` sequences, in O(1)."""
        if batch <= 0 or seconds <= 0:
            return
        if len(self._block) >= BLOCK_STEPS:
            self._block = []
            self._blocks.append(self._block)
        self._block.append((batch, math.log(seconds)))
        self.fresh = True

    def generated(self, outputs: int, tokens: int) -> None:
        """Adds the `tokens` that `outputs` sequences received in a decode step, in O(1)."""
        self._outputs += outputs
        self._generated += tokens
        if self._outputs > RECENT_OUTPUTS:
            self._outputs /= 2
            self._generated /= 2

    def fit(self) -> StepTime | None:
        """Fits all samples; returns None while no batch size has enough of them."""
        self.fresh = False
        self._drop_blocks()
        by_size = self._at_one_level()
        if not by_size:
            return None
        self._means = {batch: _trimmed_mean(logs) for batch, logs in by_size.items()}
        tokens = max(1.0, self._generated / self._outputs) if self._outputs else 1.0
        return _rated_fit(by_size, self._means, self._slots, tokens)

    def _drop_blocks(self) -> None:
        """Drops the oldest block whose sizes have enough newer samples, else the oldest block."""
        while len(self._blocks) > BLOCKS:
            newer: Counter[int] = Counter()
            dropped = 0
            for index in range(len(self._blocks) - 1, -1, -1):
                sizes = Counter(batch for batch, _ in self._blocks[index])
                if all(newer[batch] >= MAX_SAMPLES_PER_SIZE for batch in sizes):
                    dropped = index
                newer.update(sizes)
            del self._blocks[dropped]

    def _levels(self) -> list[float]:
        """Returns by how much each block was slower than the last fit at its sizes, as a log."""
        levels: list[float] = []
        level, means = 0.0, self._means
        for block in self._blocks:
            offsets = sorted([log_s - means[batch] for batch, log_s in block if batch in means])
            if len(offsets) >= MIN_SAMPLES_PER_LEVEL:
                level = _trimmed_mean(offsets)  # as the means are, or they would drift apart
            levels.append(level)  # that of the previous block if samples are too few
        return levels

    def _at_one_level(self) -> dict[int, list[float]]:
        """Returns the sorted log seconds of each size, adjusted to the newest block's level."""
        found: defaultdict[int, list[float]] = defaultdict(list)
        levels = self._levels()
        newest = _newest_level(levels)
        for block, level in zip(self._blocks, levels, strict=True):
            offset = level - newest
            if abs(offset) <= LEVEL_TOLERANCE:
                offset = 0.0
            for batch, log_s in block:
                found[batch].append(log_s - offset)
        return {
            batch: sorted(logs)
            for batch, logs in sorted(found.items())
            if len(logs) >= MIN_SAMPLES_PER_SIZE
        }


def _newest_level(levels: Sequence[float]) -> float:
    """Returns the mean of the newest levels that are the same, which is less noisy than one."""
    same = []
    for level in reversed(levels):
        if abs(level - levels[-1]) > LEVEL_TOLERANCE:
            break
        same.append(level)
    return sum(same) / len(same)


def _trimmed_mean(ordered: Sequence[float]) -> float:
    """Returns the mean of an ordered sequence without its ends."""
    cut = int(len(ordered) * TRIMMED_SHARE)
    kept = ordered[cut : len(ordered) - cut]
    return sum(kept) / len(kept)


def _rated_fit(
    by_size: dict[int, list[float]], means: dict[int, float], slots_total: int, tokens: float
) -> StepTime:
    """Fits a curve through the means of all sizes (ascending), and rates it."""
    weights = {batch: min(len(logs), MAX_SAMPLES_PER_SIZE) for batch, logs in by_size.items()}
    seconds = {batch: math.exp(mean) for batch, mean in means.items()}
    sizes, smallest, largest = len(by_size), next(iter(by_size)), next(reversed(by_size))
    if sizes == 1:
        curve = Curve(seconds[largest], 0.0, 1.0)
    elif sizes < SIZES_FOR_ALPHA or largest < SPAN_FOR_ALPHA * smallest:
        curve = fit_curve(seconds, weights, alpha=1.0)
    else:
        curve = fit_curve(seconds, weights)
    error = _weighted_median(
        sorted((abs(curve.seconds(b) - mean) / mean, weights[b]) for b, mean in seconds.items())
    )
    samples = sum(len(logs) for logs in by_size.values())
    good = (
        samples >= GOOD_SAMPLES
        and sizes >= min(GOOD_SIZES, slots_total)
        and largest >= min(GOOD_SPAN, slots_total) * smallest
        and error <= GOOD_ERROR
    )
    return StepTime(curve, samples, sizes, largest, error, good, tokens)


def _weighted_median(ordered: Sequence[tuple[float, int]]) -> float:
    half = sum(weight for _, weight in ordered) / 2
    for value, weight in ordered:
        half -= weight
        if half <= 0:
            return value
    raise AssertionError("no values: _rated_fit has at least one size")


@dataclass(frozen=True, slots=True)
class _Point:
    log_b: float
    seconds: float
    weight: float


def fit_curve(
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

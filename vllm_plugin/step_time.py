"""How long a decode step takes by how many sequences it runs: t(b) = t0 + c * b**alpha; and how
many tokens a sequence gets in one: one, or several where drafts of speculative decoding hold.

Decides what the steps that ran say about that, and whether it is enough to rely on. Pure: knows
no clock; the caller says when to fit.

Steps are kept in blocks of consecutive ones. The speed of a machine drifts (its neighbours, its
temperature, the length of the contexts), the ratios between batch sizes do much less. So each
block has a level: how much slower or faster its steps were than the same sizes are elsewhere.
The level of the newest block is that of the fit: one block after a change the whole curve has
moved, also where no step has run since, and the shape stays what all blocks say. A block is
dropped when newer ones have enough of all its sizes, so that hours at one batch size forget
nothing of the others.

What can be told from how many distinct sizes:

    one           t0 alone, c = 0: exact for an engine of one slot, otherwise of poor quality
    two or three  t0 and c, alpha = 1; so too where the largest is under four times the smallest:
    or close      a line through such sizes tells too long a time beyond them, never too short
    four or more  all three; c and alpha make up for each other within a few percent, so the
                  curve is known better than they are
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from vllm_plugin.curve import Curve, through

BLOCK_STEPS: Final = 64
# 4096 steps: 64 of each size up to a batch of 64, and a fit of them takes about 2 ms.
BLOCKS: Final = 64
# More of one size says little more: the curve itself is not that exact.
ENOUGH_OF_A_SIZE: Final = 64
# The middle of five stands against one outlier at either end, a compile of seconds included.
LEAST_OF_A_SIZE: Final = 5
# The median of 16 steps that vary by 10 % is good to 3 %.
LEAST_FOR_A_LEVEL: Final = 16
# Levels closer than that are the same: two medians of 64 such steps differ by 2 %.
SAME_LEVEL: Final = 0.05
# Of a size's steps, sorted, this share at either end is left out of the mean. Nearly as exact
# as a mean of all, and outliers up to that share do not move it.
LEFT_OUT: Final = 0.2

SIZES_FOR_ALPHA: Final = 4  # one more than there are unknowns
SPAN_FOR_ALPHA: Final = 4  # over less, 10 % of alpha change the curve by under 2 %

# A block in all; sizes over which a curve can miss its points; of which the largest is at least
# twice the smallest; and an error that leaves a prediction useful against an SLO.
GOOD_SAMPLES: Final = 64
GOOD_SIZES: Final = 4
GOOD_SPAN: Final = 2
GOOD_ERROR: Final = 0.15

# Of speculative decoding: how many drafts are accepted changes with what is asked. The newest
# outputs, a minute of 8 streams, count for half at least.
GENERATED_RECENT: Final = 16_384


@dataclass(frozen=True, slots=True)
class StepTime:
    """A fit: seconds of a decode step of b sequences are t0_s + c_s * b**alpha."""

    curve: Curve
    samples: int  # steps that it rests on
    batches: int  # distinct sizes among them
    largest: int  # of these sizes
    error: float  # median deviation from a size's steps, relative; weighted by their number
    good: bool
    tokens: float = 1.0  # of a sequence in a step; more than one where drafts are accepted

    def seconds(self, batch: float) -> float:
        """Seconds of a decode step of `batch` sequences; never decreases with it."""
        return self.curve.seconds(batch)

    def told(self) -> dict[str, Any]:
        """As in `/v1/capabilities`: milliseconds, four significant digits."""
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


class StepTimes:
    """The decode-only steps that the next fit rests on: at most 2 * BLOCKS blocks of them."""

    def __init__(self, slots_total: int) -> None:
        self._slots = slots_total
        self._block: _Block = []
        self._blocks: deque[_Block] = deque([self._block], maxlen=2 * BLOCKS)
        self._middles: dict[int, float] = {}  # log seconds of each size, at the fit's level
        self.fresh = False  # there are steps that the last fit does not know
        self._outputs = 0.0
        self._generated = 0.0

    def record(self, batch: int, seconds: float) -> None:
        """Adds a step that did nothing but decode `batch` sequences. O(1)."""
        if batch <= 0 or seconds <= 0:
            return
        if len(self._block) >= BLOCK_STEPS:
            self._block = []
            self._blocks.append(self._block)
        self._block.append((batch, math.log(seconds)))
        self.fresh = True

    def generated(self, outputs: int, tokens: int) -> None:
        """In a decode step so many sequences got so many tokens in all. O(1)."""
        self._outputs += outputs
        self._generated += tokens
        if self._outputs > GENERATED_RECENT:
            self._outputs /= 2
            self._generated /= 2

    def fit(self) -> StepTime | None:
        """What all steps say; None while no size was seen often enough to say anything."""
        self.fresh = False
        self._forget()
        by_size = self._at_one_level()
        if not by_size:
            return None
        self._middles = {batch: _middle(found) for batch, found in by_size.items()}
        tokens = max(1.0, self._generated / self._outputs) if self._outputs else 1.0
        return _fitted(by_size, self._middles, self._slots, tokens)

    def _forget(self) -> None:
        """Drops the oldest block of whose sizes newer ones have enough; else the oldest."""
        while len(self._blocks) > BLOCKS:
            newer: Counter[int] = Counter()
            dropped = 0
            for index in range(len(self._blocks) - 1, -1, -1):
                sizes = Counter(batch for batch, _ in self._blocks[index])
                if all(newer[batch] >= ENOUGH_OF_A_SIZE for batch in sizes):
                    dropped = index
                newer.update(sizes)
            del self._blocks[dropped]

    def _levels(self) -> list[float]:
        """Log of how much slower each block was than what the last fit knew of its sizes."""
        levels: list[float] = []
        level, known = 0.0, self._middles
        for block in self._blocks:
            apart = sorted([log_s - known[batch] for batch, log_s in block if batch in known])
            if len(apart) >= LEAST_FOR_A_LEVEL:
                level = apart[len(apart) // 2]
            levels.append(level)  # too little known: as the block before
        return levels

    def _at_one_level(self) -> dict[int, list[float]]:
        """Log seconds by size, sorted, as if all had run at the newest block's level."""
        found: dict[int, list[float]] = {}
        levels = self._levels()
        now = _newest(levels)
        for block, level in zip(self._blocks, levels, strict=True):
            apart = level - now
            if abs(apart) <= SAME_LEVEL:
                apart = 0.0
            for batch, log_s in block:
                if batch in found:
                    found[batch].append(log_s - apart)
                else:
                    found[batch] = [log_s - apart]
        return {
            batch: sorted(logs)
            for batch, logs in sorted(found.items())
            if len(logs) >= LEAST_OF_A_SIZE
        }


def _newest(levels: Sequence[float]) -> float:
    """The mean of the newest levels that are the same: one block's alone would wander."""
    same = []
    for level in reversed(levels):
        if abs(level - levels[-1]) > SAME_LEVEL:
            break
        same.append(level)
    return sum(same) / len(same)


def _middle(ordered: Sequence[float]) -> float:
    """The mean of what lies in the middle of an ordered sequence."""
    cut = int(len(ordered) * LEFT_OUT)
    kept = ordered[cut : len(ordered) - cut]
    return sum(kept) / len(kept)


def _fitted(
    by_size: dict[int, list[float]], middles: dict[int, float], slots_total: int, tokens: float
) -> StepTime:
    """The curve through the middles of all sizes (ascending), and what it is worth."""
    weights = {batch: min(len(logs), ENOUGH_OF_A_SIZE) for batch, logs in by_size.items()}
    seconds = {batch: math.exp(middle) for batch, middle in middles.items()}
    sizes, least, largest = len(by_size), next(iter(by_size)), next(reversed(by_size))
    if sizes == 1:
        curve = Curve(seconds[largest], 0.0, 1.0)
    elif sizes < SIZES_FOR_ALPHA or largest < SPAN_FOR_ALPHA * least:
        curve = through(seconds, weights, alpha=1.0)
    else:
        curve = through(seconds, weights)
    error = _weighted_median(
        sorted((abs(curve.seconds(b) - found) / found, weights[b]) for b, found in seconds.items())
    )
    samples = sum(len(logs) for logs in by_size.values())
    good = (
        samples >= GOOD_SAMPLES
        and sizes >= min(GOOD_SIZES, slots_total)
        and largest >= min(GOOD_SPAN, slots_total) * least
        and error <= GOOD_ERROR
    )
    return StepTime(curve, samples, sizes, largest, error, good, tokens)


def _weighted_median(ordered: Sequence[tuple[float, int]]) -> float:
    half = sum(weight for _, weight in ordered) / 2
    for value, weight in ordered:
        half -= weight
        if half <= 0:
            return value
    raise AssertionError("no values")

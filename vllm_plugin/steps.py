"""Engine steps: how many sequences each ran, and what that says about a window of time.

Pure. Times are seconds of one clock, whichever the caller uses; durations are seconds.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from dataclasses import dataclass

# 10 minutes of 10 ms steps; longer requests are described by their last steps.
RING_STEPS = 65_536


@dataclass(frozen=True, slots=True)
class BatchStatistics:
    """The steps of a window: how many, and the largest and mean batch (sequences per step)."""

    steps: int
    largest: int
    mean: float


class StepRing:
    """The most recent engine steps, and cumulative counts by batch size."""

    def __init__(self, capacity: int = RING_STEPS) -> None:
        self._capacity = capacity
        self._middles = array("d")  # ascending: when half of the step had passed
        self._batches = array("L")
        self._by_batch: dict[int, list[float]] = {}
        self.count = 0

    def record(self, end_s: float, elapsed_s: float, batch: int, *, decode_only: bool) -> None:
        """Adds a step that ended at `end_s` and ran `batch` sequences for `elapsed_s`."""
        middle = end_s - elapsed_s / 2
        if self._middles and middle < self._middles[-1]:
            middle = self._middles[-1]  # the wall clock was set back; order is what counts
        self._middles.append(middle)
        self._batches.append(batch)
        self.count += 1
        if len(self._middles) >= 2 * self._capacity:
            # Halved now and then instead of shifted at each step: amortised O(1).
            del self._middles[: -self._capacity]
            del self._batches[: -self._capacity]
        if decode_only and batch:
            entry = self._by_batch.setdefault(batch, [0, 0.0])
            entry[0] += 1
            entry[1] += elapsed_s

    def since(self, start_s: float) -> BatchStatistics:
        """The steps whose middle lies after `start_s`.

        The middle, because a step is heard of a little after its end: the step before a
        request's first one is reported within the request's time but has its middle before it.
        """
        first = bisect_left(self._middles, start_s)
        batches = self._batches[first:]
        if not batches:
            return BatchStatistics(0, 0, 0.0)
        return BatchStatistics(len(batches), max(batches), sum(batches) / len(batches))

    def by_batch(self) -> dict[str, list[float]]:
        """Cumulative [count, seconds] of decode-only steps, by batch size."""
        return {
            str(batch): [count, round(seconds, 6)]
            for batch, (count, seconds) in sorted(self._by_batch.items())
        }

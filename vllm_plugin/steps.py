"""Engine steps: how many sequences each ran, what that says about a window of time, and how
fast prompts are computed.

Pure. Times are seconds of one clock, whichever the caller uses; durations are seconds.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass
from typing import Any, Final

# 10 minutes of 10 ms steps; longer requests are described by their last steps.
RING_STEPS = 65_536

# Reports come at most so late, unless the API server is overwhelmed: in a longer gap before a
# step the engine was idle.
LATE_S: Final = 0.5

# Recent enough to follow a machine whose speed drifts, enough for prompts of all lengths.
PREFILL_STEPS: Final = 64
# A few chat prompts. Fewer tokens say more about a step's fixed cost than about a rate.
PREFILL_LEAST_TOKENS: Final = 256
# Of those steps, this share is left out at either end (the slowest of three at least): a
# compilation of many seconds must not pass for the speed of prefill.
PREFILL_LEFT_OUT: Final = 0.125


@dataclass(frozen=True, slots=True)
class BatchStatistics:
    """The decode steps of a window: how many, and the largest and mean batch (sequences)."""

    steps: int
    largest: int
    mean: float


class StepRing:
    """The most recent decode steps, and cumulative counts by batch size.

    A step that also computed prompts counts in `count` and `busy_s` only: the batch that a figure
    is told with is the one that it was decoded in, in spans and in `by_batch` alike.
    """

    def __init__(self, capacity: int = RING_STEPS) -> None:
        self._capacity = capacity
        self._middles = array("d")  # ascending: when half of the step had passed
        self._batches = array("L")
        self._by_batch: dict[int, list[float]] = {}
        self.count = 0
        self.busy_s = 0.0  # in steps of any kind
        self._busy_until_s = float("-inf")

    def record(self, end_s: float, elapsed_s: float, batch: int, *, decode_only: bool) -> None:
        """Adds a step that ended at `end_s` and ran `batch` sequences for `elapsed_s`."""
        self.count += 1
        self._busy(end_s, elapsed_s)
        if not (decode_only and batch):
            return
        entry = self._by_batch.setdefault(batch, [0, 0.0])
        entry[0] += 1
        entry[1] += elapsed_s
        middle = end_s - elapsed_s / 2
        if self._middles and middle < self._middles[-1]:
            middle = self._middles[-1]  # the wall clock was set back; order is what counts
        self._middles.append(middle)
        self._batches.append(batch)
        if len(self._middles) >= 2 * self._capacity:
            # Halved now and then instead of shifted at each step: amortised O(1).
            del self._middles[: -self._capacity]
            del self._batches[: -self._capacity]

    def _busy(self, end_s: float, elapsed_s: float) -> None:
        """Counts the time of a step, but none twice: busy time is never above the time itself.

        A step follows the one before directly, unless that was long ago: what lies between is
        the way of a late report, and a late report does not take from the next step.
        """
        start_s = end_s - elapsed_s
        if start_s - self._busy_until_s <= LATE_S and self._busy_until_s <= end_s:
            start_s = self._busy_until_s
        until_s = min(end_s, start_s + elapsed_s)
        self.busy_s += until_s - start_s
        self._busy_until_s = until_s

    def since(self, start_s: float) -> BatchStatistics:
        """The decode steps whose middle lies after `start_s`.

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


class Prefill:
    """Prompt tokens computed, and what of the steps' time went to them."""

    def __init__(self) -> None:
        self.tokens = 0
        self.seconds = 0.0
        self._recent: deque[tuple[float, int, float]] = deque(maxlen=PREFILL_STEPS)

    def record(self, tokens: int, elapsed_s: float, decode_s: float) -> None:
        """Adds a step that computed `tokens` of prompts (more than 0) in `elapsed_s`, of which
        what it decoded would have taken `decode_s` alone."""
        seconds = max(0.0, elapsed_s - decode_s)
        self.tokens += tokens
        self.seconds += seconds
        self._recent.append((seconds / tokens, tokens, seconds))

    def tokens_per_s(self) -> float | None:
        """Prompt tokens per second over the recent steps; None until enough were measured."""
        kept = sorted(self._recent)
        if len(kept) >= 3:
            out = max(1, int(len(kept) * PREFILL_LEFT_OUT))
            kept = kept[out:-out]
        tokens = sum(step[1] for step in self._recent)
        seconds = sum(step[2] for step in kept)
        if tokens < PREFILL_LEAST_TOKENS or seconds <= 0:
            return None
        return sum(step[1] for step in kept) / seconds

    def told(self) -> dict[str, Any]:
        """Cumulative, as in `/v1/capabilities`."""
        return {"tokens": self.tokens, "seconds": round(self.seconds, 6)}

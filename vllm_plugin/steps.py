"""Keeps statistics of engine steps: batch sizes, busy time, and the rate of prefill.

Times are seconds of one clock, whichever the caller uses; durations are seconds.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass
from typing import Any, Final

# 10 minutes of steps of 10 ms; longer requests are described by their last steps.
RING_STEPS = 65_536

# Reports are delayed by no more than this, unless the API server is overwhelmed: in a longer gap
# before a step the engine was idle.
LATE_S: Final = 0.5

# Recent enough to follow a machine whose speed drifts, enough for prompts of all lengths.
PREFILL_STEPS: Final = 64
# A few chat prompts. With fewer tokens the fixed cost of a step dominates the rate.
PREFILL_LEAST_TOKENS: Final = 256
# This share of those steps is trimmed at either end (of three or more, one at least): a
# compilation of many seconds must not distort the rate.
PREFILL_TRIMMED: Final = 0.125


@dataclass(frozen=True, slots=True)
class BatchStatistics:
    """The steps of a window: those of decoding alone, their largest and mean batch (sequences), and
    those of any kind."""

    steps: int
    largest: int
    mean: float
    of_any_kind: int


class StepRing:
    """The most recent steps, and cumulative counts of the decode steps by batch size.

    A step that also computed prompts counts as a step of any kind only, so that batch sizes in
    spans and in `by_batch` are those of decoding alone.
    """

    def __init__(self, capacity: int = RING_STEPS) -> None:
        self._capacity = capacity
        # Of decode steps.
        self._midpoints = array("d")  # ascending
        self._batches = array("L")
        self._other_midpoints = array("d")  # of all other steps, ascending
        self._by_batch: dict[int, list[float]] = {}
        self.count = 0
        self.decode_count = 0  # decode steps, of the `count`
        self.decode_sequences = 0  # the sum of their batches
        self.busy_s = 0.0  # in steps of any kind
        self._busy_until_s = float("-inf")

    def record(self, end_s: float, elapsed_s: float, batch: int, *, decode_only: bool) -> None:
        """Adds a step that ended at `end_s` and ran `batch` sequences for `elapsed_s`."""
        self.count += 1
        self._add_busy(end_s, elapsed_s)
        middle = end_s - elapsed_s / 2
        if not (decode_only and batch):
            _append_ascending(self._other_midpoints, middle)
            if len(self._other_midpoints) >= 2 * self._capacity:
                del self._other_midpoints[: -self._capacity]
            return
        entry = self._by_batch.setdefault(batch, [0, 0.0])
        entry[0] += 1
        entry[1] += elapsed_s
        self.decode_count += 1
        self.decode_sequences += batch
        _append_ascending(self._midpoints, middle)
        self._batches.append(batch)
        if len(self._midpoints) >= 2 * self._capacity:
            # Halved at times instead of shifted at each step: amortised O(1).
            del self._midpoints[: -self._capacity]
            del self._batches[: -self._capacity]

    def _add_busy(self, end_s: float, elapsed_s: float) -> None:
        """Adds the time of a step, no moment twice: busy time never exceeds elapsed time.

        A step follows the previous one directly, unless that was long ago: a short gap is the
        delay of a report, which must not shorten the next step.
        """
        start_s = end_s - elapsed_s
        if start_s - self._busy_until_s <= LATE_S and self._busy_until_s <= end_s:
            start_s = self._busy_until_s
        until_s = min(end_s, start_s + elapsed_s)
        self.busy_s += until_s - start_s
        self._busy_until_s = until_s

    def since(self, start_s: float) -> BatchStatistics:
        """Returns the statistics of the steps whose midpoint lies after `start_s`.

        The midpoint, because reports are delayed: the step before a request's first one is
        reported during the request, but has its midpoint before it.
        """
        batches = self._batches[bisect_left(self._midpoints, start_s) :]
        others = len(self._other_midpoints) - bisect_left(self._other_midpoints, start_s)
        if not batches:
            return BatchStatistics(0, 0, 0.0, others)
        steps = len(batches)
        return BatchStatistics(steps, max(batches), sum(batches) / steps, steps + others)

    def by_batch(self) -> dict[str, list[float]]:
        """Returns the cumulative [count, seconds] of decode-only steps, by batch size."""
        return {
            str(batch): [count, round(seconds, 6)]
            for batch, (count, seconds) in sorted(self._by_batch.items())
        }


def _append_ascending(times: array[float], at_s: float) -> None:
    """Appends a time; where the wall clock was set back, the last one again: the order matters."""
    times.append(times[-1] if times and at_s < times[-1] else at_s)


class Prefill:
    """Prompt tokens computed, and the time of the steps that went to them."""

    def __init__(self) -> None:
        self.tokens = 0
        self.seconds = 0.0
        self._recent: deque[tuple[float, int, float]] = deque(maxlen=PREFILL_STEPS)

    def record(self, tokens: int, elapsed_s: float, decode_s: float) -> None:
        """Adds a step that computed `tokens` of prompts (more than 0) in `elapsed_s`; without the
        prompts it would have taken `decode_s`."""
        seconds = max(0.0, elapsed_s - decode_s)
        self.tokens += tokens
        self.seconds += seconds
        self._recent.append((seconds / tokens, tokens, seconds))

    def tokens_per_s(self) -> float | None:
        """Returns the prompt tokens per second of the recent steps; None until it is known."""
        kept = sorted(self._recent)
        if len(kept) >= 3:
            cut = max(1, int(len(kept) * PREFILL_TRIMMED))
            kept = kept[cut:-cut]
        tokens = sum(step[1] for step in self._recent)
        seconds = sum(step[2] for step in kept)
        if tokens < PREFILL_LEAST_TOKENS or seconds <= 0:
            return None
        return sum(step[1] for step in kept) / seconds

    def document(self) -> dict[str, Any]:
        """Returns the cumulative counts, as in `/v1/capabilities`."""
        return {"tokens": self.tokens, "seconds": round(self.seconds, 6)}

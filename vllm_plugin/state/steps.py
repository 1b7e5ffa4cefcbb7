"""Keeps statistics of engine steps: batch sizes, busy time, the rate of prefill, and the prompt
tokens that were looked up and found in the prefix cache instead.

Times are seconds of one clock, whichever the caller uses; durations are seconds.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

# 10 minutes of steps of 10 ms; longer requests are described by their last steps.
RING_STEPS = 65_536

# Reports with a lookup: 10 minutes of a hundred requests per second.
RING_REPORTS: Final = 65_536

# Decode steps whose batches are reported one by one: with a heartbeat each second, all of them from
# 8 ms a step on.
LAST_STEPS: Final = 120

# Reports are delayed by no more than this, unless the API server is overwhelmed: in a longer gap
# before a step the engine was idle.
MAX_REPORT_DELAY_S: Final = 0.5

# Recent enough to follow a machine whose speed drifts, enough for prompts of all lengths.
PREFILL_STEPS: Final = 64
# A few chat prompts. With fewer tokens the fixed cost of a step dominates the rate.
MIN_PREFILL_TOKENS: Final = 256
# This share of those steps is trimmed at either end (of three or more, one at least): a
# compilation of many seconds must not distort the rate.
TRIMMED_PREFILL_SHARE: Final = 0.125


@dataclass(frozen=True, slots=True)
class BatchStatistics:
    """The decode steps of a window: their number, largest and mean batch (sequences)."""

    steps: int
    largest: int
    mean: float


class StepRing:
    """The most recent steps, and cumulative counts of the decode steps by batch size.

    A step that also computed prompts counts as a step of any kind only, so that batch sizes in
    spans and in `by_batch` are those of decoding alone.
    """

    def __init__(self, capacity: int = RING_STEPS) -> None:
        self._capacity = capacity
        # Of decode steps: when they were reported (ascending), and their batches.
        self._reported = array("d")
        self._batches = array("L")
        self._others_reported = array("d")  # of all other steps, ascending
        self._by_batch: dict[int, list[float]] = {}
        self.count = 0
        self.decode_count = 0  # decode steps, of the `count`
        self.decode_sequences = 0  # the sum of their batches
        self.busy_s = 0.0  # in steps of any kind
        self._busy_until_s = float("-inf")

    def record(self, end_s: float, elapsed_s: float, batch: int, *, decode_only: bool) -> None:
        """Adds a step that was reported at `end_s` and ran `batch` sequences for `elapsed_s`."""
        self.count += 1
        self._add_busy(end_s, elapsed_s)
        if not (decode_only and batch):
            _append_ascending(self._others_reported, end_s)
            if len(self._others_reported) >= 2 * self._capacity:
                del self._others_reported[: -self._capacity]
            return
        entry = self._by_batch.setdefault(batch, [0, 0.0])
        entry[0] += 1
        entry[1] += elapsed_s
        self.decode_count += 1
        self.decode_sequences += batch
        _append_ascending(self._reported, end_s)
        self._batches.append(batch)
        if len(self._reported) >= 2 * self._capacity:
            # Halved at times instead of shifted at each step: amortised O(1).
            del self._reported[: -self._capacity]
            del self._batches[: -self._capacity]

    def _add_busy(self, end_s: float, elapsed_s: float) -> None:
        """Adds the time of a step, no moment twice: busy time never exceeds elapsed time.

        A step follows the previous one directly, unless that was long ago: a short gap is the
        delay of a report, which must not shorten the next step.
        """
        start_s = end_s - elapsed_s
        if start_s - self._busy_until_s <= MAX_REPORT_DELAY_S and self._busy_until_s <= end_s:
            start_s = self._busy_until_s
        until_s = min(end_s, start_s + elapsed_s)
        self.busy_s += until_s - start_s
        self._busy_until_s = until_s

    def since(self, start_s: float) -> BatchStatistics:
        """Returns the statistics of the decode steps that were reported after `start_s`.

        From a sequence's first token on, by the clock of the reports, these are exactly its own,
        however late the reports are: the step of the first token computed its prompt.
        """
        batches = self._batches[bisect_right(self._reported, start_s) :]
        if not batches:
            return BatchStatistics(0, 0, 0.0)
        steps = len(batches)
        return BatchStatistics(steps, max(batches), sum(batches) / steps)

    def count_since(self, start_s: float) -> int:
        """Returns the number of steps of any kind that were reported after `start_s`."""
        decode = len(self._reported) - bisect_right(self._reported, start_s)
        return decode + len(self._others_reported) - bisect_right(self._others_reported, start_s)

    def last_batches(self) -> list[int]:
        """Returns the batch sizes of the last decode-only steps, the newest at the end."""
        return self._batches[-LAST_STEPS:].tolist()

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
            cut = max(1, int(len(kept) * TRIMMED_PREFILL_SHARE))
            kept = kept[cut:-cut]
        tokens = sum(step[1] for step in self._recent)
        seconds = sum(step[2] for step in kept)
        if tokens < MIN_PREFILL_TOKENS or seconds <= 0:
            return None
        return sum(step[1] for step in kept) / seconds

    def document(self) -> dict[str, Any]:
        """Returns the cumulative counts, as in `/v1/capabilities`."""
        return {"tokens": self.tokens, "seconds": round(self.seconds, 6)}


class PrefixCounts(NamedTuple):
    """Prompt tokens since the engine started."""

    queries: int  # looked up
    hits: int  # found


class PrefixCache:
    """The counts now, and as they were at a moment of the recent past.

    A sequence that was preempted and computes its tokens again is not counted: what it finds are
    its own blocks, not those of an earlier prompt. vLLM's own metrics leave it out, too.
    """

    def __init__(self, capacity: int = RING_REPORTS) -> None:
        self._capacity = capacity
        self._ends = array("d")  # times of the reports, ascending
        # The counts before each of these reports.
        self._queries = array("Q")
        self._hits = array("Q")
        self.now = PrefixCounts(0, 0)
        self._complete = True  # no report was dropped

    def record(self, at_s: float, queries: int, hits: int) -> None:
        """Adds the lookups of a report. Amortised O(1)."""
        _append_ascending(self._ends, at_s)
        self._queries.append(self.now.queries)
        self._hits.append(self.now.hits)
        self.now = PrefixCounts(self.now.queries + queries, self.now.hits + hits)
        if len(self._ends) >= 2 * self._capacity:
            # Halved at times instead of shifted at each report.
            for column in (self._ends, self._queries, self._hits):
                del column[: -self._capacity]
            self._complete = False

    def before(self, at_s: float) -> PrefixCounts | None:
        """Returns the counts of all reports before `at_s`; None if that is too long ago."""
        first = bisect_left(self._ends, at_s)
        if not first and not self._complete:
            return None
        if first == len(self._ends):
            return self.now
        return PrefixCounts(self._queries[first], self._hits[first])

    def document(self) -> dict[str, int]:
        """Returns the counts, as in `/v1/capabilities`."""
        return {"queries_total": self.now.queries, "hits_total": self.now.hits}

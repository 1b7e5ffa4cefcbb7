"""Counts the prompt tokens that were looked up and found in the prefix cache, over time.

A sequence that was preempted and computes its tokens again is not counted: what it finds are its
own blocks, not those of an earlier prompt. vLLM's own metrics leave it out, too.

Pure.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import Final, NamedTuple

# Reports with a lookup: 10 minutes of a hundred requests per second.
RING_REPORTS: Final = 65_536


class PrefixCounts(NamedTuple):
    """Prompt tokens since the engine started."""

    queries: int  # looked up
    hits: int  # found


class PrefixCache:
    """The counts now, and as they were at a moment of the recent past."""

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
        if self._ends and at_s < self._ends[-1]:
            at_s = self._ends[-1]  # the wall clock was set back; the order matters
        self._ends.append(at_s)
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

"""When slots come free, and so when those who wait will start.

Pure: times are seconds from now. The slots are a heap of the times at which they come free;
a request takes the earliest it can get and gives them back when it should have ended.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable


class Schedule:
    """The slots of an engine, as far as can be foreseen."""

    def __init__(self, free_in_s: Iterable[float]) -> None:
        self._free = sorted(free_in_s)  # a sorted list is a heap

    def __len__(self) -> int:
        return len(self._free)

    def copy(self, *, without: int = 0) -> Schedule:
        """The same plan, without the slots that come free first: those are kept for others."""
        return Schedule(sorted(self._free)[without:])

    def place(self, cost: int, service_s: float) -> float | None:
        """Takes `cost` slots for so long. Returns when they are had; None: it has not so many."""
        if cost > len(self._free):
            return None
        start = 0.0
        for _ in range(cost):
            start = heapq.heappop(self._free)
        for _ in range(cost):
            heapq.heappush(self._free, start + service_s)
        return start

    def start(self, cost: int) -> float | None:
        """When `cost` slots are had, without taking them."""
        if cost > len(self._free):
            return None
        return self._free[0] if cost == 1 else heapq.nsmallest(cost, self._free)[-1]

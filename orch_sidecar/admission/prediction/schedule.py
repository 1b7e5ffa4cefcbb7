"""Predicts when slots come free, and so when queued requests will start.

Pure: times are seconds of decoding from now; the prompts that the engine reads meanwhile are
counted apart, in `prompt_tokens`: they delay all slots. The slots are a heap of the times at
which they come free; a request takes the earliest ones and frees them at its predicted end.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from math import ceil


class Schedule:
    """The predicted use of an engine's slots."""

    def __init__(self, free_in_s: Iterable[float], prompt_tokens: float = 0.0) -> None:
        self._free = sorted(free_in_s)  # a sorted list is a heap
        self.prompt_tokens = prompt_tokens

    def __len__(self) -> int:
        return len(self._free)

    def copy(self, *, without: int = 0) -> Schedule:
        """Returns a copy without the first slots to come free, which are reserved for others."""
        return Schedule(sorted(self._free)[without:], self.prompt_tokens)

    def with_slots(self, least: int, free_in_s: float) -> Schedule:
        """Returns a copy with `least` slots or more; added ones come free after `free_in_s`."""
        added = [free_in_s] * (least - len(self._free))
        return Schedule(self._free + added, self.prompt_tokens)

    def with_share(self, share: float) -> Schedule:
        """Returns a copy with this share of the slots: at 1/2 the second, the fourth, and so on, in
        the order in which they come free."""
        free = sorted(self._free)
        last, kept = len(free) - 1, int(len(free) * share)
        # Rounding must not lead beyond the last one: 11 / (22 / 30) is above 15.
        at = (min(last, ceil((i + 1) / share) - 1) for i in range(kept))
        return Schedule((free[i] for i in at), self.prompt_tokens)

    def place(self, cost: int, service_s: float) -> float | None:
        """Takes `cost` slots for `service_s`. Returns the start; None: there are too few slots."""
        if cost > len(self._free):
            return None
        start = 0.0
        for _ in range(cost):
            start = heapq.heappop(self._free)
        for _ in range(cost):
            heapq.heappush(self._free, start + service_s)
        return start

    def fill(self, count: int, service_s: float) -> None:
        """Places `count` equal sequences one by one, in the time of sorting the slots.

        Each slot takes as many as fit below the level to which all the work would fill the slots;
        the few that are left take the slots that are free first.
        """
        free = self._free
        if not free or count <= 0 or service_s <= 0:
            return
        free.sort()
        level, total = 0.0, count * service_s
        for used, at in enumerate(free, 1):
            total += at
            level = total / used
            if used == len(free) or level <= free[used]:
                break
        rest = count
        for slot, at in enumerate(free):
            fitting = int((level - at) / service_s)
            if fitting <= 0:
                continue
            free[slot] = at + fitting * service_s
            rest -= fitting
        heapq.heapify(free)
        for _ in range(rest):
            heapq.heapreplace(free, free[0] + service_s)

    def start(self, cost: int) -> float | None:
        """Returns when `cost` slots will be free, without taking them."""
        if cost > len(self._free):
            return None
        return self._free[0] if cost == 1 else heapq.nsmallest(cost, self._free)[-1]

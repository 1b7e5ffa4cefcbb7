"""The share of one API key in the slots of one class.

Pure.
"""

from __future__ import annotations

from collections import OrderedDict
from operator import attrgetter
from typing import Final

from orch_sidecar.admission.types import QueuedRequest

# Tokens of a request, before any of the key has ended.
FIRST_MEAN_TOKENS: Final = 512


class KeyShare:
    """What a key was served, what it has running, and what it has queued; in tokens.

    `level`: the settled part of its virtual time: what it was served for its weight, but at least
    the system's virtual time when it came back. `running_tokens`: expected of its `running`
    requests; `queued_tokens`: of its queued ones. `later_parts`: queued parts of requests after the
    first ones. `served`: since the start. `mean_tokens`: of a request. `entry`: its entry in the
    heap, 0 without queued requests.
    """

    __slots__ = (
        "entry",
        "key",
        "later_parts",
        "level",
        "mean_tokens",
        "queue",
        "queued_tokens",
        "running",
        "running_tokens",
        "served",
        "weight",
    )

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.weight = 1.0
        self.level = 0.0
        self.running = self.running_tokens = self.queued_tokens = self.served = 0
        self.entry = self.later_parts = 0
        self.queue: OrderedDict[str, QueuedRequest] = OrderedDict()
        self.mean_tokens = FIRST_MEAN_TOKENS

    @property
    def tag(self) -> float:
        """Its virtual time."""
        return self.level + self.running_tokens / self.weight

    @property
    def places(self) -> float:
        """The places of its queued requests, divided by its weight."""
        return (len(self.queue) - self.later_parts) / self.weight

    @property
    def is_idle(self) -> bool:
        return not self.running and not self.queue

    def add(self, queued: QueuedRequest) -> None:
        self.queue[queued.ticket] = queued
        self.queued_tokens += queued.expected_tokens
        self.later_parts += queued.request.is_later_part

    def with_place(self, *, last: bool) -> QueuedRequest | None:
        """Returns the first or the last of its queued requests that takes a place."""
        queue = self.queue.values()
        ordered = reversed(queue) if last else iter(queue)
        return next((each for each in ordered if not each.request.is_later_part), None)

    def remove(self, queued: QueuedRequest) -> None:
        del self.queue[queued.ticket]
        self.queued_tokens -= queued.expected_tokens
        self.later_parts -= queued.request.is_later_part

    def reweigh(self, weight: float, now: float) -> None:
        """Sets another weight, also for what it was served beyond the system's virtual time
        `now`."""
        if self.level > now:
            self.level = now + (self.level - now) * self.weight / weight
        self.weight = weight


def forget_idle(shares: dict[bytes, KeyShare]) -> None:
    """Forgets the half of the idle keys that was served least; they may come back as new ones."""
    idle = sorted((each for each in shares.values() if each.is_idle), key=attrgetter("level"))
    for each in idle[: (len(idle) + 1) // 2]:
        del shares[each.key]

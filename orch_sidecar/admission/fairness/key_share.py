"""The share of one API key in the slots of one class.

Pure: times are seconds of a monotonic clock.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from orch_sidecar.admission.fairness.queued_request import QueuedRequest

# The tokens of a key are reported for the last one to two of these intervals.
RECENT_S: Final = 60.0


class KeyShare:
    """What a key was served, is charged in advance, and has queued; in tokens.

    `level`: what it was served, by its weight, at the least the system's virtual time when it came
    back. `charged`: in advance for its `running` requests. `backlog`: of its queued requests.
    `served`: since the start. `entry`: of the heap in which it waits, 0 without queued requests.
    """

    __slots__ = (
        "_before",
        "_recent",
        "_since",
        "backlog",
        "charged",
        "entry",
        "key",
        "level",
        "queue",
        "running",
        "served",
        "weight",
    )

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.weight = 1.0
        self.level = 0.0
        self.charged = self.running = self.backlog = self.served = self.entry = 0
        self.queue: OrderedDict[str, QueuedRequest] = OrderedDict()
        self._since = 0.0
        self._recent = self._before = 0

    @property
    def tag(self) -> float:
        """Its virtual time."""
        return self.level + self.charged / self.weight

    @property
    def places(self) -> float:
        """Its queued requests, by its weight."""
        return len(self.queue) / self.weight

    @property
    def is_idle(self) -> bool:
        return not self.running and not self.queue

    def lift(self, virtual_time: float) -> None:
        """It comes back, at the system's virtual time if its own is earlier."""
        if self.level < virtual_time:
            self.level = virtual_time

    def add(self, queued: QueuedRequest) -> None:
        self.queue[queued.ticket] = queued
        self.backlog += queued.charge

    def remove(self, queued: QueuedRequest) -> None:
        del self.queue[queued.ticket]
        self.backlog -= queued.charge

    def settle(self, charged: int, took: int, now: float) -> None:
        """A running request ended."""
        self.charged -= charged
        self.running -= 1
        self.level += took / self.weight
        self.served += took
        if now - self._since >= RECENT_S:
            self._turn(now)
        self._recent += took

    def recent(self, now: float) -> int:
        """The tokens that it was served within the last one to two intervals."""
        if now - self._since >= RECENT_S:
            self._turn(now)
        return self._recent + self._before

    def _turn(self, now: float) -> None:
        """Begins another interval."""
        self._before = self._recent if now - self._since < 2 * RECENT_S else 0
        self._recent, self._since = 0, now

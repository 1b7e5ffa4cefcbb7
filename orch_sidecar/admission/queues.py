"""Who waits: one queue for each class, and when each of those who wait has waited too long.

Pure: times are seconds of a monotonic clock.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile

from orch_sidecar.admission.types import AdmissionRequest
from orch_sidecar.api.refusal import Reason
from vllm_plugin.profile import ServiceClass


@dataclass(frozen=True, slots=True)
class QueuedRequest:
    """A queued request. `delay_s`: what the delay clock showed when it came."""

    request: str
    ask: AdmissionRequest
    arrived: float
    expires: float
    expiry: Reason  # which of its time limits that is
    delay_s: float


class Queues:
    """First come, first served within a class."""

    def __init__(self) -> None:
        self._by_class: dict[ServiceClass, OrderedDict[str, QueuedRequest]] = {
            service_class: OrderedDict() for service_class in ServiceClass
        }
        self._costs = dict.fromkeys(ServiceClass, 0)
        self._expiring: list[tuple[float, str, ServiceClass]] = []
        self.depth = 0  # requests of both classes

    def size(self, service_class: ServiceClass) -> int:
        """Requests of a class."""
        return len(self._by_class[service_class])

    def cost(self, service_class: ServiceClass) -> int:
        """Sequences of a class."""
        return self._costs[service_class]

    def head(self, service_class: ServiceClass) -> QueuedRequest | None:
        return next(iter(self._by_class[service_class].values()), None)

    def of(self, service_class: ServiceClass) -> Iterator[QueuedRequest]:
        return iter(self._by_class[service_class].values())

    def all(self) -> list[QueuedRequest]:
        return [waiting for queue in self._by_class.values() for waiting in queue.values()]

    def __contains__(self, request: str) -> bool:
        return any(request in queue for queue in self._by_class.values())

    def tickets(self) -> set[str]:
        """The ids of all requests."""
        return {request for queue in self._by_class.values() for request in queue}

    def add(self, waiting: QueuedRequest, *, at_head: bool = False) -> None:
        service_class = waiting.ask.service_class
        queue = self._by_class[service_class]
        queue[waiting.request] = waiting
        if at_head:
            earlier = list(takewhile(lambda other: other.arrived < waiting.arrived, queue.values()))
            for each in (waiting, *reversed(earlier)):
                queue.move_to_end(each.request, last=False)
        self._costs[service_class] += waiting.ask.cost
        self.depth += 1
        heapq.heappush(self._expiring, (waiting.expires, waiting.request, service_class))

    def remove(self, request: str) -> QueuedRequest | None:
        """Takes a request out; None if it is not here."""
        for service_class, queue in self._by_class.items():
            waiting = queue.pop(request, None)
            if waiting is not None:
                self._costs[service_class] -= waiting.ask.cost
                self.depth -= 1
                if len(self._expiring) > 2 * self.depth + 64:
                    self._expiring = [entry for entry in self._expiring if self._live(entry)]
                    heapq.heapify(self._expiring)
                return waiting
        return None

    def next_expiry(self) -> float | None:
        """When the first of those who wait will have waited too long."""
        while self._expiring and not self._live(self._expiring[0]):
            heapq.heappop(self._expiring)
        return self._expiring[0][0] if self._expiring else None

    def expired(self, now: float) -> list[QueuedRequest]:
        """Takes out all who have waited too long, in the order of their limits."""
        found = []
        while (expiry := self.next_expiry()) is not None and expiry <= now:
            waiting = self.remove(heapq.heappop(self._expiring)[1])
            assert waiting is not None
            found.append(waiting)
        return found

    def _live(self, entry: tuple[float, str, ServiceClass]) -> bool:
        return entry[1] in self._by_class[entry[2]]

"""The queued requests: one queue per class, and the times at which their waits expire.

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
    """A queued request. `delay_s`: the delay clock when it was queued."""

    ticket: str
    request: AdmissionRequest
    arrived: float
    expires: float
    expiry: Reason  # of the time limit that expires first
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
        return [queued for queue in self._by_class.values() for queued in queue.values()]

    def __contains__(self, ticket: str) -> bool:
        return any(ticket in queue for queue in self._by_class.values())

    def tickets(self) -> set[str]:
        return {ticket for queue in self._by_class.values() for ticket in queue}

    def add(self, queued: QueuedRequest, *, at_head: bool = False) -> None:
        """Adds a request; `at_head`: only behind those that arrived before it."""
        service_class = queued.request.service_class
        queue = self._by_class[service_class]
        queue[queued.ticket] = queued
        if at_head:
            earlier = list(takewhile(lambda other: other.arrived < queued.arrived, queue.values()))
            for each in (queued, *reversed(earlier)):
                queue.move_to_end(each.ticket, last=False)
        self._costs[service_class] += queued.request.cost
        self.depth += 1
        heapq.heappush(self._expiring, (queued.expires, queued.ticket, service_class))

    def remove(self, ticket: str) -> QueuedRequest | None:
        """Removes and returns a request; None if it is not queued."""
        for service_class, queue in self._by_class.items():
            queued = queue.pop(ticket, None)
            if queued is not None:
                self._costs[service_class] -= queued.request.cost
                self.depth -= 1
                if len(self._expiring) > 2 * self.depth + 64:
                    self._expiring = [entry for entry in self._expiring if self._live(entry)]
                    heapq.heapify(self._expiring)
                return queued
        return None

    def next_expiry(self) -> float | None:
        """When the first wait expires; None if no request is queued."""
        while self._expiring and not self._live(self._expiring[0]):
            heapq.heappop(self._expiring)
        return self._expiring[0][0] if self._expiring else None

    def expired(self, now: float) -> list[QueuedRequest]:
        """Removes and returns all requests whose waits have expired, in that order."""
        found = []
        while (expiry := self.next_expiry()) is not None and expiry <= now:
            queued = self.remove(heapq.heappop(self._expiring)[1])
            assert queued is not None
            found.append(queued)
        return found

    def _live(self, entry: tuple[float, str, ServiceClass]) -> bool:
        return entry[1] in self._by_class[entry[2]]

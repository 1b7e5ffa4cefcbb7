"""The queued requests: one fair queue per class, and the times at which their waits expire.

Pure: times are seconds of a monotonic clock.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from orch_sidecar.admission.fairness.backlog import Ahead
from orch_sidecar.admission.fairness.fair_queue import FairQueue
from orch_sidecar.admission.fairness.key_share import KeyShare
from orch_sidecar.admission.fairness.queued_request import QueuedRequest
from orch_sidecar.admission.types import AdmissionRequest, Lease
from vllm_plugin.profile import ServiceClass

_BULK = ServiceClass.BULK


class Queues:
    """Fair between the API keys of a class; of one key first come, first served."""

    def __init__(self) -> None:
        self._interactive, self._bulk = FairQueue(), FairQueue()
        self._queued: dict[str, QueuedRequest] = {}
        self._expiring: list[tuple[float, str]] = []
        self.depth = 0  # requests of both classes

    def _of(self, service_class: ServiceClass) -> FairQueue:
        return self._bulk if service_class is _BULK else self._interactive

    # What is queued

    def size(self, service_class: ServiceClass) -> int:
        """Requests of a class."""
        return self._of(service_class).size

    def cost(self, service_class: ServiceClass) -> int:
        """Sequences of a class."""
        return self._of(service_class).cost

    def tokens(self, service_class: ServiceClass) -> tuple[int, int]:
        """Prompt tokens of a class, each as often as its request has sequences, and the tokens
        charged for its requests."""
        queue = self._of(service_class)
        return queue.prompt_work, queue.charge

    def head(self, service_class: ServiceClass) -> QueuedRequest | None:
        """The request to dispatch next."""
        queue = self._bulk if service_class is _BULK else self._interactive
        return queue.head() if queue.size else None

    def of(self, service_class: ServiceClass) -> Iterator[QueuedRequest]:
        """The requests of a class in the order of their dispatch."""
        return iter(self._of(service_class))

    def before(self, request: AdmissionRequest) -> Iterator[QueuedRequest]:
        """Those of its class that go before a request that arrives now, in that order."""
        return self._of(request.service_class).before(request)

    def ahead(self, request: AdmissionRequest) -> Ahead:
        """How much of its class goes before a request that arrives now."""
        return self._of(request.service_class).ahead(request)

    def displaces(self, request: AdmissionRequest) -> QueuedRequest | None:
        """Which request of its class leaves a full queue for it, for its key has more queued."""
        return self._of(request.service_class).displaces(request)

    def oldest(self, service_class: ServiceClass) -> QueuedRequest | None:
        """The first request of the key that has most queued by its weight."""
        return self._of(service_class).oldest()

    def all(self) -> list[QueuedRequest]:
        """All requests, interactive ones first, in the order of their dispatch."""
        return [*self._interactive, *self._bulk]

    def __contains__(self, ticket: str) -> bool:
        return ticket in self._queued

    def tickets(self) -> set[str]:
        return set(self._queued)

    # What leaves and comes

    def add(self, queued: QueuedRequest, *, at_head: bool = False) -> None:
        """Adds a request; `at_head`: it was dispatched before, and goes before those that were
        not."""
        self._of(queued.request.service_class).add(queued, at_head=at_head)
        self._queued[queued.ticket] = queued
        self.depth += 1
        heapq.heappush(self._expiring, (queued.expires, queued.ticket))

    def remove(self, ticket: str) -> QueuedRequest | None:
        """Removes and returns a request; None if it is not queued."""
        queued = self._queued.pop(ticket, None)
        if queued is None:
            return None
        self._of(queued.request.service_class).remove(queued)
        self.depth -= 1
        if len(self._expiring) > 2 * self.depth + 64:
            self._expiring = [entry for entry in self._expiring if entry[1] in self._queued]
            heapq.heapify(self._expiring)
        return queued

    def next_expiry(self) -> float | None:
        """When the first wait expires; None if no request is queued."""
        while self._expiring and self._expiring[0][1] not in self._queued:
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

    # Shares of keys

    def dispatched(self, lease: Lease, charge: int, *, at_once: bool) -> None:
        """Charges the key of a dispatched request in advance. `at_once`: it was never queued."""
        request = lease.request
        assert request is not None
        lease.charge = charge
        queue = self._bulk if request.service_class is _BULK else self._interactive
        queue.dispatched(request, charge, at_once=at_once)

    def settle(self, lease: Lease, took: int, now: float) -> None:
        """The request of a lease ended after it `took` so many tokens."""
        request = lease.request
        assert request is not None
        queue = self._bulk if request.service_class is _BULK else self._interactive
        queue.settle(request, lease.charge, took, now)

    def forget_running(self) -> None:
        """The engine restarted: nothing runs."""
        self._interactive.forget_running()
        self._bulk.forget_running()

    def shares(self, service_class: ServiceClass) -> dict[bytes, KeyShare]:
        """The shares of the keys in a class."""
        return self._of(service_class).shares

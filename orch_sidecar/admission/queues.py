"""Keeps the queued requests: in line, or set aside for others to pass; knows when waits expire.

Pure: times are seconds of a monotonic clock. A request that waits for something which only some
need (`Scope.REQUEST`) is set aside: those behind it go on, and it goes as soon as it can, before
all that are in line. Those that need the same form a group, and go in their order. A request that
passes a group and uses what it waits for prolongs its wait. So after as many such sequences as the
engine has slots, or after PASSED_S, no request passes the group's first one. A group
keeps its turn for as long, so that groups alternate in batches. Of several groups that have waited
long enough, the order of dispatch decides, then which has waited longest.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field

from orch_sidecar.admission.constraints.constraint import Constraint
from orch_sidecar.admission.fair_queue import FairQueue
from orch_sidecar.admission.key_share import KeyShare, WorkAhead
from orch_sidecar.admission.types import AdmissionRequest, QueuedRequest
from vllm_plugin.contracts.lease_protocol import PASSED_S
from vllm_plugin.contracts.profile import BULK, IDLE, ServiceClass


@dataclass(slots=True)
class Group:
    """Requests that wait for the same. `since`: when its first request became the first. `passed`:
    sequences that have gone before it since then, in the turn that began at `turn_at`, and that
    prolong its wait."""

    constraint: Constraint
    since: float
    turn_at: float
    passed: int = 0
    cost: int = 0  # sequences
    queued: OrderedDict[str, QueuedRequest] = field(default_factory=OrderedDict)

    def __iter__(self) -> Iterator[QueuedRequest]:
        return iter(self.queued.values())

    @property
    def first(self) -> QueuedRequest:
        return next(iter(self.queued.values()))

    def passed_by(self, request: AdmissionRequest) -> None:
        """Counts a request that went before it."""
        if self.turn_at != self.constraint.turn_at:
            self.turn_at, self.passed = self.constraint.turn_at, 0
        self.passed += request.cost

    def passable_until(self, slots_total: int) -> float:
        """Returns until when others may pass it."""
        turn_at = self.constraint.turn_at
        if self.passed >= slots_total and turn_at == self.turn_at:
            return float("-inf")
        return max(self.since, turn_at) + PASSED_S


class SetAside:
    """The groups of one class that are set aside, the one that has waited longest first."""

    def __init__(self) -> None:
        self.size = 0  # requests
        self.cost = 0  # sequences
        self._groups: dict[tuple[Constraint, Hashable], Group] = {}
        self._group_of: dict[str, tuple[Constraint, Hashable]] = {}

    def __iter__(self) -> Iterator[Group]:
        return iter(self._groups.values())

    @property
    def groups(self) -> int:
        return len(self._groups)

    def add(self, queued: QueuedRequest, constraint: Constraint, now: float) -> None:
        """Sets a request aside."""
        key = constraint, constraint.group(queued.request)
        group = self._groups.setdefault(key, Group(constraint, now, constraint.turn_at))
        group.queued[queued.ticket] = queued
        self._group_of[queued.ticket] = key
        self.size += 1
        self.cost += queued.request.cost
        group.cost += queued.request.cost

    def remove(self, queued: QueuedRequest) -> bool:
        """Removes a request. Returns whether it was set aside."""
        key = self._group_of.pop(queued.ticket, None)
        if key is None:
            return False
        group = self._groups[key]
        del group.queued[queued.ticket]
        group.cost -= queued.request.cost
        if not group.queued:
            del self._groups[key]
        self.size -= 1
        self.cost -= queued.request.cost
        return True

    def granted(self, request: AdmissionRequest, now: float) -> None:
        """Begins the turn of a request's group anew: it got its slots. Counts it at the others."""
        for key, group in list(self._groups.items()):
            constraint, name = key
            if not constraint.is_used_by(request):
                continue
            if constraint.group(request) == name:
                group.passed, group.since = 0, now
                self._groups[key] = self._groups.pop(key)  # behind the others
            else:
                group.passed_by(request)


class _LeastFirst:
    """A heap of queued requests by some value. Those that have left are dropped lazily."""

    def __init__(self, queued: Mapping[str, QueuedRequest]) -> None:
        self._queued = queued
        self._heap: list[tuple[float, str]] = []

    def add(self, value: float, ticket: str) -> None:
        heapq.heappush(self._heap, (value, ticket))

    def first(self) -> tuple[float, str] | None:
        """Returns the least value and its ticket; None if nothing is queued."""
        while self._heap and self._heap[0][1] not in self._queued:
            heapq.heappop(self._heap)
        return self._heap[0] if self._heap else None

    def prune(self) -> None:
        """Bounds what is dropped lazily; to be called after each request that left."""
        if len(self._heap) > 2 * len(self._queued) + 64:
            self._heap = [entry for entry in self._heap if entry[1] in self._queued]
            heapq.heapify(self._heap)


class Queues:
    """The queued requests of all classes, each a fair line, and those that are set aside."""

    def __init__(self) -> None:
        self.lines = tuple(FairQueue() for _ in ServiceClass)  # by the rank of their class
        self._aside = tuple(SetAside() for _ in ServiceClass)
        self._later = [0 for _ in ServiceClass]  # parts of requests after the first ones
        self.aside_count = 0  # requests of all classes that are set aside
        self._queued: dict[str, QueuedRequest] = {}
        self._expiring = _LeastFirst(self._queued)
        self._delayed = _LeastFirst(self._queued)  # bulk requests, by `delay_s`
        self.depth = 0  # requests of all classes
        self.urgent = 0  # those of them that are not idle ones, which keep nobody waiting

    def line(self, service_class: ServiceClass) -> FairQueue:
        """Returns the line of a class, with the shares of its keys."""
        return self.lines[service_class.rank]

    def aside(self, service_class: ServiceClass) -> SetAside:
        """Returns the requests of a class that others pass."""
        return self._aside[service_class.rank]

    # What is queued

    def size(self, service_class: ServiceClass) -> int:
        """Returns how many requests of a class are queued."""
        return self.lines[service_class.rank].size + self._aside[service_class.rank].size

    def places(self, service_class: ServiceClass) -> int:
        """Returns how many places requests of a class take: later parts take none."""
        return self.size(service_class) - self._later[service_class.rank]

    def cost(self, service_class: ServiceClass) -> int:
        """Returns how many sequences of a class are queued."""
        return self.lines[service_class.rank].cost + self._aside[service_class.rank].cost

    def head(self, service_class: ServiceClass) -> QueuedRequest | None:
        """Returns the first request in line."""
        return self.lines[service_class.rank].head()

    def ahead(self, request: AdmissionRequest) -> WorkAhead:
        """Returns how much of its class goes before a request that arrives now."""
        return self.lines[request.service_class.rank].ahead(request)

    def ahead_in_all_classes(self, request: AdmissionRequest) -> WorkAhead:
        """Returns how much of its own and of more urgent classes goes before a new request."""
        ahead, rank = self.ahead(request), request.service_class.rank
        if not rank or self.depth == self.lines[rank].size:
            return ahead
        urgent = [each for each in ServiceClass if each.rank < rank]
        return WorkAhead(
            sum(self.size(each) for each in urgent) + ahead.requests,
            sum(self.cost(each) for each in urgent) + ahead.sequences,
            ahead.tokens,
        )

    def all(self) -> list[QueuedRequest]:
        """Returns all requests: those set aside, then those in line, the most urgent first."""
        aside = (each for groups in self._aside for group in groups for each in group)
        return [*aside, *(each for line in self.lines for each in line)]

    def __contains__(self, ticket: str) -> bool:
        return ticket in self._queued

    def tickets(self) -> set[str]:
        return set(self._queued)

    # What leaves and comes

    def add(self, queued: QueuedRequest, *, at_head: bool = False) -> None:
        """Adds a request; `at_head`: it was dispatched before, and goes before all others."""
        request = queued.request
        rank = request.service_class.rank
        self.lines[rank].add(queued, at_head=at_head)
        self._queued[queued.ticket] = queued
        self.depth += 1
        if request.service_class is not IDLE:
            self.urgent += 1
        if request.is_later_part:
            self._later[rank] += 1
        self._expiring.add(queued.expires_at, queued.ticket)
        if request.service_class is BULK:
            self._delayed.add(queued.delay_s, queued.ticket)

    def remove(self, ticket: str) -> QueuedRequest | None:
        """Removes and returns a request; None if it is not queued."""
        queued = self._queued.pop(ticket, None)
        if queued is None:
            return None
        rank = queued.request.service_class.rank
        if self.aside_count and self._aside[rank].remove(queued):
            self.aside_count -= 1
        else:
            self.lines[rank].remove(queued)
        self.depth -= 1
        if queued.request.service_class is not IDLE:
            self.urgent -= 1
        if queued.request.is_later_part:
            self._later[rank] -= 1
        self._expiring.prune()
        self._delayed.prune()
        return queued

    def set_aside(self, queued: QueuedRequest, constraint: Constraint, now: float) -> None:
        """Takes a request out of the line: those behind it do not wait for what it waits for."""
        rank = queued.request.service_class.rank
        self.lines[rank].remove(queued)
        self._aside[rank].add(queued, constraint, now)
        self.aside_count += 1

    def next_expiry(self) -> float | None:
        """Returns when the first wait expires; None if no request is queued."""
        first = self._expiring.first()
        return None if first is None else first[0]

    def has_expired(self, now: float) -> bool:
        """Whether there is a request whose wait has expired."""
        first = self._expiring.first() if self.depth else None
        return first is not None and first[0] <= now

    def first_bulk_delay_s(self) -> float | None:
        """Returns what the delay clock showed when the first bulk request was queued; None: none
        is queued."""
        first = self._delayed.first()
        return None if first is None else first[0]

    def expired(self, now: float) -> list[QueuedRequest]:
        """Removes and returns all requests whose waits have expired, in that order."""
        found = []
        while (first := self._expiring.first()) is not None and first[0] <= now:
            queued = self.remove(first[1])
            assert queued is not None
            found.append(queued)
        return found

    # Shares of keys

    def forget_running(self) -> None:
        """Forgets running requests: the engine restarted."""
        for line in self.lines:
            line.forget_running()

    def shares(
        self, names: Mapping[bytes, str]
    ) -> Iterator[tuple[ServiceClass, str, KeyShare, float | None]]:
        """Yields the shares of the keys with these `names` (by digest) in each class, and which
        part of all served tokens each key got; None: there were none."""
        for service_class in ServiceClass:
            shares = self.line(service_class).shares
            total = sum(each.served for each in shares.values())
            for digest, share in shares.items():
                if digest in names:
                    served = round(share.served / total, 4) if total else None
                    yield service_class, names[digest], share, served

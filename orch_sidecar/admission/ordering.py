"""Decides which queued request is dispatched next.

Pure: times are seconds of a monotonic clock. The order: a bulk request that is due (it is owed
slots, or interactive traffic has delayed it for as long as it may), then interactive requests, then
bulk ones, then idle ones; within a class fair between API keys (`fairness`). A blocked request
keeps those behind it waiting, so that one that needs many slots is not overtaken forever, except
those that the `Scope` of what blocks it lets pass. Dispatch is work-conserving: the head of the
queue waits only for a constraint.
"""

from __future__ import annotations

from typing import Final

from orch_sidecar.admission.constraints.constraint import Constraint, Scope
from orch_sidecar.admission.constraints.rules import AdmissionConstraints
from orch_sidecar.admission.queues import Group
from orch_sidecar.admission.types import AdmissionRequest, QueuedRequest
from vllm_plugin.contracts.lease_protocol import Claim
from vllm_plugin.contracts.profile import BULK, IDLE, INTERACTIVE, ServiceClass

# Tuples: to iterate over an enumeration takes long (Python 3.11).
_BY_RANK: Final = tuple(ServiceClass)
_BULK_FIRST: Final = BULK, INTERACTIVE, IDLE


class QueueOrder:
    """Chooses the next of the queued requests of one engine."""

    def __init__(self, constraints: AdmissionConstraints) -> None:
        self.blocked_by: Constraint | None = None  # what the first request waits for
        self.claim: Claim | None = None  # of slots, if the head of the queue lacks some
        self.blocked: QueuedRequest | None = None  # the one that keeps others waiting
        self._ledger, self._queues = constraints.ledger, constraints.queues
        self._constraints = constraints
        self._reserve = constraints.reserve

    def next(self, now: float) -> QueuedRequest | None:
        """Returns the request to dispatch now; None: what waits is blocked by `blocked_by`."""
        self.blocked_by = self.blocked = self.claim = None
        queues = self._queues
        if not queues.depth:
            return None
        bulk = queues.lines[BULK.rank].head()
        bulk_first = bulk is not None and self._reserve.is_due(bulk, now)
        for service_class in _BULK_FIRST if bulk_first else _BY_RANK:
            if not queues.aside_count and not queues.lines[service_class.rank].size:
                continue
            due = bulk_first and service_class is BULK
            head, blocked_by = self._head(service_class, now, due=due)
            if head is None:
                continue
            if blocked_by is None:
                return head
            shared = self._constraints.offers.shared and service_class is not IDLE
            if shared and blocked_by.lacks_slots:
                blocked_by = self._claim(head.request, blocked_by, now, due=due)
            if self.blocked is None:
                self.blocked_by, self.blocked = blocked_by, head
            if due or blocked_by.scope is not Scope.CLASS:
                break
        if self.blocked_by is None and queues.aside_count:
            self.blocked_by = self._first_reason_aside()
        return None

    def _head(
        self, service_class: ServiceClass, now: float, *, due: bool
    ) -> tuple[QueuedRequest | None, Constraint | None]:
        """Returns the first request of a class that nobody passes, if any, and what blocks it."""
        if self._queues.aside_count:
            for group in self._queues.aside(service_class):
                first = group.first
                due = service_class is BULK and self._reserve.is_due(first, now)
                blocked_by = self._blocking(first.request, now, due=due)
                if blocked_by is None or blocked_by.scope is not Scope.REQUEST:
                    return first, blocked_by
        line = self._queues.lines[service_class.rank]
        while (head := line.head()) is not None:
            blocked_by = self._blocking(head.request, now, due=due)
            if blocked_by is None or blocked_by.scope is not Scope.REQUEST:
                return head, blocked_by
            self._queues.set_aside(head, blocked_by, now)
        return None, None

    def _blocking(self, request: AdmissionRequest, now: float, *, due: bool) -> Constraint | None:
        if request.cost <= self._ledger.room:  # else it lacks slots, whatever it needs of the cache
            self._constraints.set_kv(request)
        blocked_by = self._constraints.blocking(request, now, due=due)
        if blocked_by is None and self._queues.aside_count:
            return self._next_in_turn(request, now)
        return blocked_by

    def _next_in_turn(self, request: AdmissionRequest, now: float) -> Constraint | None:
        """Returns the constraint of a group whose turn it is before that of a request; None: the
        request may go."""
        rank, slots_total = request.service_class.rank, self._ledger.slots_total
        waiting: list[tuple[tuple[bool, int, float], int, Group]] = []
        for service_class in _BY_RANK:
            for group in self._queues.aside(service_class):
                is_passable = now < group.passable_until(slots_total)
                if not is_passable and group.constraint.is_used_by(request):
                    due = service_class is BULK and self._reserve.is_due(group.first, now)
                    if due or service_class.rank <= rank:
                        order = not due, service_class.rank, group.since
                        waiting.append((order, len(waiting), group))
        for _, _, group in sorted(waiting):
            constraint, first = group.constraint, group.first.request
            return None if constraint.group(request) == constraint.group(first) else constraint
        return None

    def blocking(self, request: AdmissionRequest, now: float) -> Constraint | None:
        """Returns what blocks a request that arrives now; None: nothing. Its `kv` has to be set."""
        queued = self._queues.depth
        if queued and not self._constraints.offers.left and self._must_queue(request, now):
            return self.blocked_by or self._constraints.slots
        blocked_by = self._constraints.blocking(request, now)
        if blocked_by is None and self._queues.aside_count:
            return self._next_in_turn(request, now)
        return blocked_by

    def granted(self, request: AdmissionRequest, now: float) -> None:
        """Counts a request that got its slots at the groups that it may have passed."""
        for service_class in _BY_RANK:
            self._queues.aside(service_class).granted(request, now)

    def changes_at(self, now: float) -> float | None:
        """Returns when a request may be dispatched without any event; None: nobody knows."""
        times: list[float | None] = []
        if self.blocked_by is not None:
            blocked = self.blocked
            if blocked is None:
                heads = (self._queues.head(each) for each in _BY_RANK)
                blocked = next(filter(None, heads), None)
            if blocked is not None:
                times.append(self.blocked_by.clears_at(blocked.request, now))
        if (bulk := self._queues.lines[BULK.rank].head()) is not None:
            times.append(self._reserve.due_at(bulk, now))
        if self._queues.aside_count:
            for service_class in _BY_RANK:
                for group in self._queues.aside(service_class):
                    times.append(group.constraint.clears_at(group.first.request, now))
        return min((at for at in times if at is not None), default=None)

    def _first_reason_aside(self) -> Constraint | None:
        """Returns the constraint that the first request set aside waits for."""
        for service_class in _BY_RANK:
            for group in self._queues.aside(service_class):
                return group.constraint
        return None

    def _claim(
        self, request: AdmissionRequest, blocked_by: Constraint, now: float, *, due: bool
    ) -> Constraint:
        """Claims slots for the head of the queue and those behind it, unless it would still be
        blocked with them. Returns what blocks it."""
        obstacle = self._constraints.obstacle(request, now, due=due)
        if obstacle is not None:
            return obstacle
        urgent = due or request.service_class is INTERACTIVE
        most = self._constraints.room_to_claim(request, now, due=due)
        more = min(most, self._queues.line(request.service_class).cost) - request.cost
        self.claim = Claim(request.cost, urgent, max(0, more))
        return blocked_by

    def _must_queue(self, request: AdmissionRequest, now: float) -> bool:
        """Whether a request is queued that this new one must not overtake. An expired one does not
        count: it leaves, and the next may wait for another constraint."""
        if request.service_class is IDLE:
            return True
        bulk, interactive = self._queues.head(BULK), self._queues.head(INTERACTIVE)
        blocked, blocked_by = self.blocked, self.blocked_by
        if blocked is not None and blocked.request.service_class is BULK:
            bulk = bulk or blocked
        elif blocked is not None and blocked.request.service_class is INTERACTIVE:
            interactive = interactive or blocked
        if request.service_class is INTERACTIVE:
            return interactive is not None or (bulk is not None and self._reserve.is_due(bulk, now))
        if bulk is not None or interactive is None:
            return bulk is not None
        # Interactive requests that wait only for each other let bulk ones pass.
        passes = blocked_by is not None and blocked_by.scope is Scope.CLASS
        return not (passes and now < interactive.expires_at)

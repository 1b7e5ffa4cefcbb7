"""Decides which request goes before which: the next of the queue, and those that give way to it.

Pure: times are seconds of a monotonic clock.

The order of dispatch: a bulk request that is due (it is owed slots, or interactive traffic has
delayed it for as long as it may), then interactive requests, then bulk ones, then idle ones; within
a class fair between API keys (`fair_queue`). A blocked request keeps those behind it waiting, so
that one that needs many slots is not overtaken forever, except those that the `Scope` of what
blocks it lets pass. Dispatch is work-conserving: the head of the queue waits only for a constraint.

Only a running request whose client has seen nothing of the response gives its slots back: it is
aborted, and then queued again at the head of its class.

An idle one is, as soon as another request needs its slot or its part of the KV cache, idle requests
have more than they may (`idle`), or an interactive request arrives while its prompt is read. The
last ones go first: they lose least.

A bulk one may be for an interactive request that would miss its SLO otherwise. What it has
generated is lost: so the request with the least work done is chosen, and none with more than the
interactive one will take. Each is aborted at most MAX_RECLAIMS times, and all losses together are
at most LOST_SHARE of the slots' time, and so of the tokens. Bulk requests keep what they are
guaranteed: none is aborted while another that waits, or it itself, would get the slots again before
the interactive one; nor one with a time limit of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from orch_sidecar.admission.constraints.constraint import Constraint, Scope
from orch_sidecar.admission.constraints.reserve import ACCOUNT_S
from orch_sidecar.admission.constraints.rules import AdmissionConstraints
from orch_sidecar.admission.prediction.freed_slots import FreedSlots
from orch_sidecar.admission.queues import Group
from orch_sidecar.admission.types import AdmissionRequest, Lease, Queued, QueuedRequest
from orch_sidecar.api.refusal import Reason, Refusal
from vllm_plugin.contracts.lease_protocol import Claim
from vllm_plugin.contracts.profile import BULK, IDLE, INTERACTIVE, AdmissionRules, ServiceClass

# Tuples: to iterate over an enumeration takes long (Python 3.11).
_BY_RANK: Final = tuple(ServiceClass)
_BULK_FIRST: Final = BULK, INTERACTIVE, IDLE

MAX_RECLAIMS: Final = 2
LOST_SHARE: Final = 0.05
# A search looks at all leases: after one in vain, the next has to wait.
SEARCH_EVERY_S: Final = 0.05


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


class Reclaim:
    """Chooses bulk and idle requests to abort, and accounts for what that costs."""

    def __init__(
        self, constraints: AdmissionConstraints, order: QueueOrder, freed_slots: FreedSlots
    ) -> None:
        self.count = self.cut = 0  # bulk requests, and idle ones, since the start
        # Whether the client of a lease has seen nothing of its response; set by the owner.
        self.is_unseen: Callable[[str], bool] = lambda _: False
        self._ledger, self._queues = constraints.ledger, constraints.queues
        self._service_times = constraints.service_times
        self._constraints, self._order = constraints, order
        self._freed_slots = freed_slots
        self._reserve, self._offers = constraints.reserve, constraints.offers
        self._allowed = 0.0  # slot-seconds that may be lost
        self._updated_at: float | None = None
        self._in_vain_at = float("-inf")
        self._chosen: list[str] = []

    def victim(
        self,
        request: AdmissionRequest,
        outcome: Lease | Refusal | Queued,
        blocked_by: Constraint,
        rules: AdmissionRules,
        now: float,
    ) -> Lease | None:
        """Chooses a lease whose end would make room for an interactive request. None: there is
        none, or the `outcome` is no refusal for an SLO that it misses because it lacks a slot.

        Until `settle`, predictions count it as about to end.
        """
        if self._ledger.idle and type(outcome) is Refusal and request.service_class is not IDLE:
            self._constraints.idle.keep_free(request.cost, now)
        if not rules.reclaim or not blocked_by.lacks_slots or self._offers.contended:
            return None  # what others claim might go to them
        if not isinstance(outcome, Refusal) or outcome.reason is not Reason.SLO_MISS:
            return None
        slo_ms = rules.of(request.service_class).ttft_p95_ms
        self._refill(now)
        if request.service_class is not INTERACTIVE or slo_ms is None or self._allowed <= 0:
            return None
        if now - self._in_vain_at < SEARCH_EVERY_S:
            return None
        head = self._queues.head(BULK)
        if rules.bulk.ttft_p95_ms is not None or (
            head is not None and self._reserve.is_due(head, now)
        ):
            return None
        found = self._least_done(request, slo_ms, rules, now)
        if found is None:
            self._in_vain_at = now
        else:
            found.closing = True
            self._freed_slots.invalidate()
        return found

    def settle(self, lease: Lease, now: float, *, kept: bool) -> None:
        """Has the lease of `victim` aborted; `kept`: it is not, because that would not suffice."""
        self._freed_slots.invalidate()
        if kept:
            lease.closing = False
            self._in_vain_at = now
            return
        assert lease.request is not None
        lease.reclaimed = True
        lease.request.reclaimed += 1
        self.count += 1
        self._allowed -= lease.cost * (now - lease.granted_at)
        self._chosen.append(lease.id)

    def cut_idle(self, now: float) -> list[str]:
        """Returns the leases of the idle requests to be aborted and queued again. To be called
        after each change while some run."""
        constraints, blocked, blocks = self._constraints, self._order.blocked, 0  # of the KV cache
        if self._order.blocked_by is constraints.kv and blocked and self._queues.urgent:
            blocks = 0 if blocked.request.service_class is IDLE else blocked.request.kv.at_end
        excess = constraints.excess_idle(now)
        leases = [(each, each.request) for each in self._ledger.all() if each.request is not None]
        idle = [each for each, of in leases if of.service_class is IDLE]
        excess -= sum(each.cost for each in idle if each.closing)
        blocks -= sum(each.kv.at_end for each in idle if each.closing)
        chosen, is_overtaken = [], False
        for lease, request in reversed(leases):
            is_overtaken |= request.service_class is INTERACTIVE
            if request.service_class is not IDLE or lease.closing or not self.is_unseen(lease.id):
                continue
            in_the_way = is_overtaken and constraints.idle.is_in_the_way(lease, request, now)
            if excess <= 0 and blocks <= 0 and not in_the_way:
                continue
            constraints.idle.cut(lease, request, now)
            lease.closing = lease.reclaimed = True
            request.reclaimed += 1
            excess -= lease.cost
            blocks -= lease.kv.at_end
            chosen.append(lease.id)
        self.cut += len(chosen)
        if chosen:
            self._freed_slots.invalidate()
        return chosen

    def take(self) -> list[str]:
        """Returns each lease to be aborted once: its request is queued again."""
        chosen, self._chosen = self._chosen, []
        return chosen

    def _least_done(
        self, request: AdmissionRequest, slo_ms: float, rules: AdmissionRules, now: float
    ) -> Lease | None:
        needed = request.cost - max(0, self._ledger.room)
        ending = sum(
            lease.cost
            for lease in self._ledger.all()
            if lease.closing and lease.request and lease.request.service_class is BULK
        )
        spare = self._ledger.bulk - ending - rules.bulk_share * self._ledger.slots_total
        gained_s = self._service_times.service_s(request)
        least = self._allowed if gained_s is None else min(self._allowed, request.cost * gained_s)
        found = None
        for lease in self._ledger.all():
            of, elapsed_s = lease.request, now - lease.granted_at
            if of is None or of.service_class is not BULK or lease.closing:
                continue
            lost = lease.cost * elapsed_s
            if not needed <= lease.cost <= spare or of.reclaimed >= MAX_RECLAIMS or lost > least:
                continue
            remaining_s = self._service_times.remaining_s(lease, of, now)
            in_time = remaining_s is None or 1000 * remaining_s <= slo_ms
            own_limit = of.deadline_ms is not None or of.max_wait_ms is not None
            if in_time or own_limit or self._reserve.would_be_due(of, now):
                continue
            if self.is_unseen(lease.id):
                found, least = lease, lost
        return found

    def _refill(self, now: float) -> None:
        passed_s = ACCOUNT_S if self._updated_at is None else max(0.0, now - self._updated_at)
        self._updated_at = now
        most = LOST_SHARE * ACCOUNT_S / 2 * self._ledger.slots_total
        self._allowed = min(most, self._allowed + LOST_SHARE * self._ledger.leased * passed_s)

"""Decides which bulk and idle requests give their slots back to others.

Pure: times are seconds of a monotonic clock. Only a request whose client has seen nothing of the
response is aborted, and then queued again at the head of its class.

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
from typing import Final, Protocol

from orch_sidecar.admission.constraints.constraint import Constraint
from orch_sidecar.admission.constraints.reserve import ACCOUNT_S
from orch_sidecar.admission.constraints.rules import AdmissionConstraints
from orch_sidecar.admission.types import AdmissionRequest, Lease, Queued, QueuedRequest
from orch_sidecar.api.refusal import Reason, Refusal
from vllm_plugin.contracts.profile import BULK, IDLE, INTERACTIVE, AdmissionRules

MAX_RECLAIMS: Final = 2
LOST_SHARE: Final = 0.05
# A search looks at all leases: after one in vain, the next has to wait.
SEARCH_EVERY_S: Final = 0.05


class Order(Protocol):
    """The request that keeps others waiting, and what it waits for."""

    blocked: QueuedRequest | None
    blocked_by: Constraint | None


class Reclaim:
    """Chooses bulk and idle requests to abort, and accounts for what that costs."""

    def __init__(self, constraints: AdmissionConstraints, order: Order) -> None:
        self.count = self.cut = 0  # bulk requests, and idle ones, since the start
        # Whether the client of a lease has seen nothing of its response; set by the owner.
        self.is_unseen: Callable[[str], bool] = lambda _: False
        self._ledger, self._queues = constraints.ledger, constraints.queues
        self._service_times = constraints.service_times
        self._constraints, self._order = constraints, order
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
            self._service_times.invalidate()
        return found

    def settle(self, lease: Lease, now: float, *, kept: bool) -> None:
        """Has the lease of `victim` aborted; `kept`: it is not, because that would not suffice."""
        self._service_times.invalidate()
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
            self._service_times.invalidate()
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

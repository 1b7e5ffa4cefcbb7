"""Decides which queued request is dispatched next.

Pure: times are seconds of a monotonic clock. The order: a bulk request that is due (it is owed
slots, or interactive traffic has delayed it for as long as it may); else interactive requests;
else bulk ones; within a class fair between API keys (`fairness`). A blocked request blocks those
behind it, so that one that needs many slots is not overtaken forever; only a request that waits for
others of its own class to end (an interactive one for `BlockedBy.BATCH`) lets the other class pass.
Dispatch is work-conserving: the head of the queue waits only for what `BlockedBy` names.
"""

from __future__ import annotations

from typing import Final

from orch_sidecar.admission.constraints.rules import AdmissionConstraints
from orch_sidecar.admission.fairness.queued_request import QueuedRequest
from orch_sidecar.admission.queues import Queues
from orch_sidecar.admission.types import AdmissionRequest, BlockedBy, KvNeed
from vllm_plugin.contracts.lease_protocol import Claim
from vllm_plugin.contracts.profile import ServiceClass

_INTERACTIVE, _BULK = ServiceClass.INTERACTIVE, ServiceClass.BULK

# How long dispatch pauses after an upstream rejected a request.
_SHORTEST_PAUSE_S: Final = 0.02
_LONGEST_PAUSE_S: Final = 1.0


class QueueOrder:
    """The order in which the queued requests of one engine are dispatched."""

    def __init__(self, queues: Queues, constraints: AdmissionConstraints) -> None:
        self.blocked_by: BlockedBy | None = None  # the head of the queue
        self.paused_until = float("-inf")
        self._claims_in_pause = False
        self.claim: Claim | None = None  # if the head of the queue lacks slots
        self._queues = queues
        self._constraints = constraints
        self._reserve = constraints.reserve

    def pause(self, pause_s: float, now: float, *, offered: bool = False) -> None:
        """Dispatches nothing for `pause_s`, within bounds, but under an offer.

        `offered`: the request that the upstream rejected came under an offer. Then it lacks
        something else than slots, and none are claimed meanwhile.
        """
        pause_s = min(max(pause_s, _SHORTEST_PAUSE_S), _LONGEST_PAUSE_S)
        self.paused_until = max(self.paused_until, now + pause_s)
        self._claims_in_pause = not offered

    def next(self, now: float) -> QueuedRequest | None:
        """The request to dispatch now; if there is none, `blocked_by` names the constraint."""
        self.blocked_by = self.claim = None
        if not self._queues.depth:
            return None
        offers = self._constraints.offers
        paused = now < self.paused_until and not offers.left
        if paused and not (offers.shared and self._claims_in_pause):
            self.blocked_by = BlockedBy.PAUSE
            return None
        bulk, interactive = self._queues.head(_BULK), self._queues.head(_INTERACTIVE)
        due = bulk is not None and self._reserve.is_due(bulk, now)
        for head in (bulk, interactive) if due else (interactive, bulk):
            if head is None:
                continue
            kv = self._constraints.kv_need(head.request)
            is_bulk = head is bulk
            blocked_by = self._constraints.blocked_by(head.request, kv, now, due=due and is_bulk)
            if blocked_by is None and not paused:
                return head
            if blocked_by in (None, BlockedBy.SLOT) and offers.shared:
                blocked_by = self._claim(head.request, now, due=due and is_bulk)
                if paused and blocked_by is BlockedBy.SLOT:
                    blocked_by = BlockedBy.PAUSE
            self.blocked_by = self.blocked_by or blocked_by
            if is_bulk or blocked_by is not BlockedBy.BATCH:
                return None
        return None

    def blocks(self, request: AdmissionRequest, kv: KvNeed, now: float) -> BlockedBy | None:
        """What blocks a request that arrives now; None: nothing. `kv`: its KV need."""
        offered = self._constraints.offers.left  # for this request, of a parent sidecar
        if self._queues.depth and not offered and self._must_queue(request.service_class, now):
            return self.blocked_by or BlockedBy.SLOT
        if now < self.paused_until and not offered:
            return BlockedBy.PAUSE
        return self._constraints.blocked_by(request, kv, now)

    def clears_at(self, blocked_by: BlockedBy, now: float) -> float | None:
        """When the constraint may clear without any event; None: unpredictable."""
        if blocked_by is BlockedBy.PAUSE:
            return self.paused_until
        return self._constraints.clears_at(blocked_by, now)

    def changes_at(self, now: float) -> float | None:
        """When a request may be dispatched without any event; None: unpredictable."""
        bulk = self._queues.head(_BULK)
        times = [] if self.blocked_by is None else [self.clears_at(self.blocked_by, now)]
        if bulk is not None:
            times.append(self._reserve.due_at(bulk, now))
        return min((at for at in times if at is not None), default=None)

    def _claim(self, request: AdmissionRequest, now: float, *, due: bool) -> BlockedBy:
        """Claims slots for the head of the queue and those behind it, unless it would be blocked
        with them, too. Returns what blocks it."""
        obstacle = self._constraints.obstacle_to_claim(request, now, due=due)
        if obstacle is not None:
            return obstacle
        urgent = due or request.service_class is _INTERACTIVE
        most = self._constraints.claimable(request, now, due=due)
        more = min(most, self._queues.cost(request.service_class)) - request.cost
        self.claim = Claim(request.cost, urgent, max(0, more))
        return BlockedBy.SLOT

    def _must_queue(self, service_class: ServiceClass, now: float) -> bool:
        """Whether a request is queued that a new one of this class must not overtake."""
        bulk, interactive = self._queues.head(_BULK), self._queues.head(_INTERACTIVE)
        if service_class is _BULK:
            # Interactive requests that wait only for each other let bulk ones pass.
            return bulk is not None or not self._waits_only_for(BlockedBy.BATCH, interactive, now)
        if interactive is not None:
            return True
        return bulk is not None and self._reserve.is_due(bulk, now)

    def _waits_only_for(
        self, blocked_by: BlockedBy, head: QueuedRequest | None, now: float
    ) -> bool:
        """Whether the head waits for that. An expired one leaves, and the next may wait for
        another constraint."""
        return self.blocked_by is blocked_by and head is not None and now < head.expires

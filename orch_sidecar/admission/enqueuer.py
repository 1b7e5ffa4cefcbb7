"""Decides which requests may queue, for how long, and which are evicted for others.

Pure: times are seconds of a monotonic clock. Queues and waits are bounded here; `ordering` decides
the order of dispatch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from orch_sidecar.admission import refusals
from orch_sidecar.admission.constraints.rules import AdmissionConstraints
from orch_sidecar.admission.forecast import Forecaster
from orch_sidecar.admission.prediction.prompts import MAX_SHORTER_FACTOR
from orch_sidecar.admission.prediction.service_time import Start
from orch_sidecar.admission.types import AdmissionRequest, Decision, Queued, QueuedRequest
from orch_sidecar.api.refusal import Reason, Refusal
from vllm_plugin.contracts.profile import BULK, IDLE, INTERACTIVE, AdmissionRules, FullQueue

# For how long a later part of a request may wait: until the parts before it have had their turns.
_MAX_PART_WAIT_S: Final = 86_400.0


class Enqueuer:
    """Adds requests to the queues of one engine, and refuses those that may wait no longer."""

    def __init__(self, constraints: AdmissionConstraints, forecaster: Forecaster) -> None:
        self._constraints = constraints
        self._ledger, self._queues = constraints.ledger, constraints.queues
        self._reserve, self._service_times = constraints.reserve, constraints.service_times
        self._forecaster = forecaster

    @property
    def _rules(self) -> AdmissionRules:
        return self._constraints.rules

    def enqueue(
        self,
        ticket: str,
        request: AdmissionRequest,
        start: Start | None,
        now: float,
    ) -> tuple[Queued | Refusal, list[Decision]]:
        """Queues a request, unless its predicted `start` is too late for it. Returns its outcome,
        and the evictions that made room for it."""
        forecaster = self._forecaster
        position = self._queues.ahead_in_all_classes(request).requests
        start_ms = None if start is None else start.ms
        rules = self._rules.of(request.service_class)
        refusal: Refusal | None = None
        if not request.is_later_part:
            refusal = forecaster.queue_refusal(request, rules, start, now)
        evicted: list[Decision] = []
        if refusal is None and self._is_full(request):
            displaced = self._displaced_by(request)
            if displaced is not None:
                evicted = [self._evict(displaced, now)]
            else:
                refusal = refusals.full(request, self._ledger.slots_total, self._capacity(request))
        if refusal is not None:
            refusal = replace(refusal, queue_position=position, predicted_start_ms=start_ms)
            return forecaster.with_retry_after(refusal, request, now), evicted
        self._queues.add(self._queued(ticket, request, now, now))
        return Queued(position, start_ms), evicted

    def refuse_at_once(self, request: AdmissionRequest, now: float) -> Refusal | None:
        """Returns the refusal of a request that could start at once, but would be slow or late;
        None: it may start."""
        slow = self._forecaster.slow_refusal(request, joins=True)
        if slow is not None:
            return slow
        rules = self._rules.of(request.service_class)
        slo_ms, prompts = rules.ttft_p95_ms, self._service_times.prompts
        if request.deadline_ms is None and (
            slo_ms is None
            or not prompts.may_be_late(request, 1 + MAX_SHORTER_FACTOR, slo_ms / 1000, now)
        ):
            return None
        refusal = self._forecaster.late_refusal(request, rules, 0.0, now)
        if refusal is None or refusal.reason is Reason.DEADLINE_MISS:
            return refusal
        return self._forecaster.with_retry_after(refusal, request, now)

    def requeue(
        self,
        ticket: str,
        request: AdmissionRequest,
        since: float,
        unavailable: Refusal | None,
        now: float,
    ) -> Queued | Refusal:
        """Requeues a request that arrived at `since`, before all that arrived later."""
        queued = self._queued(ticket, request, since, now)
        if queued.expires_at <= now:
            return unavailable or self._expired(queued, now)
        if request.cost > self._ledger.slots_total:
            return refusals.too_large(request.cost, self._ledger.slots_total)
        self._queues.add(queued, at_head=True)
        return Queued(0, None)

    def expire(self, unavailable: Refusal | None, now: float) -> list[Decision]:
        """Refuses requests that have waited too long, as `unavailable` if the engine is."""
        decisions = []
        for each in self._queues.expired(now):
            self._reserve.expired(each, now)
            decisions.append(Decision(each.ticket, unavailable or self._expired(each, now)))
        return decisions

    def refuse_late(self, queued: QueuedRequest, now: float) -> Refusal | None:
        """Returns the refusal of a request that is about to be dispatched, but has waited too long
        for its first token to be in time; None: it may start."""
        request, since = queued.request, queued.arrived
        if request.is_later_part:
            return None
        rules, prompts = self._rules.of(request.service_class), self._service_times.prompts
        if prompts.clears_at <= now or (rules.ttft_p95_ms is None and request.deadline_ms is None):
            return None
        refusal = self._forecaster.late_refusal(request, rules, now - since, now)
        if refusal is None:
            return None
        self._reserve.expired(replace(queued, expiry_reason=refusal.reason), now)
        return self._forecaster.with_retry_after(refusal, request, now)

    def refuse_all(self, refusal: Refusal) -> list[Decision]:
        """Refuses all queued requests."""
        return [self._refuse(each, refusal) for each in self._queues.all()]

    def refuse_too_large(self, slots_before: int) -> list[Decision]:
        """Refuses queued requests that need more slots than the engine has now."""
        slots_total = self._ledger.slots_total
        if 0 < slots_before <= slots_total:
            return []
        return [
            self._refuse(each, refusals.too_large(each.request.cost, slots_total))
            for each in self._queues.all()
            if each.request.cost > slots_total
        ]

    def _queued(
        self, ticket: str, request: AdmissionRequest, since: float, now: float
    ) -> QueuedRequest:
        rules = self._rules.of(request.service_class)
        first_token_s = self._service_times.first_token_s(request)
        longest_s, expiry_reason = refusals.longest_wait(request, rules, first_token_s or 0.0)
        if request.is_later_part:
            longest_s = _MAX_PART_WAIT_S
        if request.delay_s is None:
            request.delay_s = self._reserve.clock.value(now)
        tokens = self._service_times.expected_tokens(request)
        return QueuedRequest(
            ticket, request, since, since + longest_s, expiry_reason, request.delay_s, tokens
        )

    def _is_full(self, request: AdmissionRequest) -> bool:
        if request.is_later_part:
            return False
        return self._queues.places(request.service_class) >= self._capacity(request)

    def _capacity(self, request: AdmissionRequest) -> int:
        capacity = self._rules.of(request.service_class).queue_capacity
        return capacity - self._taken_places() if request.service_class is BULK else capacity

    def _taken_places(self) -> int:
        """Returns how many places of bulk requests interactive ones took by evicting some."""
        if self._rules.full_queue is not FullQueue.DROP_LRU:
            return 0
        queued = self._queues.places(INTERACTIVE)
        return max(0, queued - self._rules.of(INTERACTIVE).queue_capacity)

    def _displaced_by(self, request: AdmissionRequest) -> QueuedRequest | None:
        """Returns the request that leaves a full queue for this one; None: there is none."""
        if self._rules.full_queue is FullQueue.DROP_LRU and request.service_class is not IDLE:
            return self._queues.line(BULK).oldest()
        return self._queues.line(request.service_class).displaced_by(request)

    def _evict(self, queued: QueuedRequest, now: float) -> Decision:
        drops = (
            self._rules.full_queue is FullQueue.DROP_LRU and queued.request.service_class is BULK
        )
        refusal = refusals.evicted() if drops else refusals.displaced(queued.request)
        self._reserve.refused(queued.request, refusal.reason)
        return self._refuse(queued, self._forecaster.with_retry_after(refusal, queued.request, now))

    def _refuse(self, queued: QueuedRequest, refusal: Refusal) -> Decision:
        self._queues.remove(queued.ticket)
        return Decision(queued.ticket, refusal)

    def _expired(self, queued: QueuedRequest, now: float) -> Refusal:
        refusal = refusals.expired(queued)
        return self._forecaster.with_retry_after(refusal, queued.request, now)

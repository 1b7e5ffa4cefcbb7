"""Decides which requests may queue, for how long, and which are evicted for others.

Pure: times are seconds of a monotonic clock. Queues and waits are bounded here, by what `forecast`
predicts; `precedence` decides the order of dispatch. A refusal says when to try again.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Final

from orch_sidecar.admission import refusals
from orch_sidecar.admission.constraints.rules import AdmissionConstraints
from orch_sidecar.admission.prediction.forecast import Forecaster, Start
from orch_sidecar.admission.prediction.freed_slots import MAX_RETRY_MS, MIN_RETRY_MS
from orch_sidecar.admission.prediction.prompts import MAX_SHORTER_FACTOR, ShorterPrompts
from orch_sidecar.admission.types import AdmissionRequest, Decision, Queued, QueuedRequest
from orch_sidecar.api.refusal import Reason, Refusal
from vllm_plugin.contracts.profile import (
    BULK,
    IDLE,
    INTERACTIVE,
    AdmissionRules,
    ClassRules,
    FullQueue,
)

# For how long a later part of a request may wait: until the parts before it have had their turns.
_MAX_PART_WAIT_S: Final = 86_400.0
# Requests that are refused together should not retry together.
_JITTER_SHARE: Final = 0.25


class Enqueuer:
    """Adds requests to the queues of one engine, and refuses those that may wait no longer."""

    def __init__(
        self, constraints: AdmissionConstraints, forecaster: Forecaster, jitter: random.Random
    ) -> None:
        self._constraints = constraints
        self._ledger, self._queues = constraints.ledger, constraints.queues
        self._reserve, self._service_times = constraints.reserve, constraints.service_times
        self._forecaster = forecaster
        self._jitter = jitter
        self.shorter_prompts = ShorterPrompts()

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
        position = self._queues.ahead_in_all_classes(request).requests
        start_ms = None if start is None else start.ms
        rules = self._rules.of(request.service_class)
        refusal: Refusal | None = None
        if not request.is_later_part:
            refusal = self._queue_refusal(request, rules, start, now)
        evicted: list[Decision] = []
        if refusal is None and self._is_full(request):
            displaced = self._displaced_by(request)
            if displaced is not None:
                evicted = [self._evict(displaced, now)]
            else:
                refusal = refusals.full(request, self._ledger.slots_total, self._capacity(request))
        if refusal is not None:
            refusal = replace(refusal, queue_position=position, predicted_start_ms=start_ms)
            return self._with_retry_after(refusal, request, now), evicted
        self._queues.add(self._queued(ticket, request, now, now))
        return Queued(position, start_ms), evicted

    def refuse_at_once(self, request: AdmissionRequest, now: float) -> Refusal | None:
        """Returns the refusal of a request that could start at once, but would be slow or late;
        None: it may start."""
        slow = self._slow_refusal(request, joins=True)
        if slow is not None:
            return slow
        rules = self._rules.of(request.service_class)
        slo_ms, prompts = rules.ttft_p95_ms, self._service_times.prompts
        if request.deadline_ms is None and (
            slo_ms is None
            or not prompts.may_be_late(request, 1 + MAX_SHORTER_FACTOR, slo_ms / 1000, now)
        ):
            return None
        refusal = self._late_refusal(request, rules, 0.0, now)
        if refusal is None or refusal.reason is Reason.DEADLINE_MISS:
            return refusal
        return self._with_retry_after(refusal, request, now)

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
        refusal = self._late_refusal(request, rules, now - since, now)
        if refusal is None:
            return None
        self._reserve.expired(replace(queued, expiry_reason=refusal.reason), now)
        return self._with_retry_after(refusal, request, now)

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

    def _queue_refusal(
        self, request: AdmissionRequest, rules: ClassRules, start: Start | None, now: float
    ) -> Refusal | None:
        """Returns the refusal of a request that must not queue; None: it may."""
        if not request.may_queue:
            return refusals.may_not_queue()
        slow = self._slow_refusal(request, joins=False)
        if slow is not None:
            return slow
        refusal = refusals.too_long_a_wait(request, rules, None if start is None else start.ms)
        if refusal is not None or start is None or start.first_token_s is None:
            return refusal
        alone_s = self._service_times.first_token_s(request) or 0.0
        shorter_s = alone_s * self._shorter_factor(request, rules, now)
        return refusals.late(request, rules, start.first_token_s, shorter_s)

    def _slow_refusal(self, request: AdmissionRequest, *, joins: bool) -> Refusal | None:
        """Returns the refusal of a request that would get its tokens more slowly than its client
        can use, in the batch as it is now; None: it would not, or the step time is unknown.

        `joins`: it enlarges the batch; otherwise it takes the place of another request.
        """
        if request.tpot_ms is None:
            return None
        token_ms = self._service_times.token_ms_p95(request.cost, joins=joins)
        if token_ms is None or token_ms <= request.tpot_ms:
            return None
        return refusals.slow(token_ms, request.tpot_ms)

    def _late_refusal(
        self, request: AdmissionRequest, rules: ClassRules, waited_s: float, now: float
    ) -> Refusal | None:
        """Returns the refusal of a request that can have its slots now, but whose first token would
        be late; None: it is in time.

        Only other prompts are a reason to refuse it for its SLO: one that would be late in an empty
        engine, too, could never be served. Where shorter prompts take all of the time, it is served
        once none is before it.
        """
        times = self._service_times
        first_token_s = times.first_token_s(request, times.prompts.unread(now))
        alone_s = times.first_token_s(request)
        if first_token_s is None or alone_s is None:
            return None
        shorter_factor = 0.0 if waited_s else self._shorter_factor(request, rules, now)
        first_token_s += waited_s
        refusal = refusals.late(request, rules, first_token_s, shorter_factor * alone_s, waited_s)
        if refusal is None or refusal.reason is Reason.DEADLINE_MISS:
            return refusal
        if (
            shorter_factor < MAX_SHORTER_FACTOR
            and refusals.late(request, rules, alone_s) is not None
        ):
            return None
        return refusal

    def _shorter_factor(self, request: AdmissionRequest, rules: ClassRules, now: float) -> float:
        """Returns by which factor of its own time a new prompt waits for shorter ones."""
        prompts, ledger = self._service_times.prompts, self._ledger
        rate = prompts.tokens_per_s
        if rate is None or rules.ttft_p95_ms is None or request.service_class is not INTERACTIVE:
            return 0.0
        bulk = (ledger.bulk + self._queues.cost(BULK)) / ledger.slots_total
        return self.shorter_prompts.factor(request, rate / prompts.read_share, min(1.0, bulk), now)

    def _with_retry_after(self, refusal: Refusal, request: AdmissionRequest, now: float) -> Refusal:
        """Adds a Retry-After: the time in which everything before such a request is dispatched at
        the measured rate, and those that were refused a moment ago, up to one for each slot, come
        back one after the other; where slots are free, that in which the engine reads the prompts
        that it has. A request that would start too late is not asked back before it could be in
        time."""
        ledger = self._ledger
        slots = self._queues.ahead_in_all_classes(request).sequences + request.cost
        unread_s = self._service_times.prompts.clears_at - now
        if slots <= ledger.slots_total - ledger.non_idle and unread_s > 0:
            wait_ms = min(max(int(1000 * unread_s), MIN_RETRY_MS), MAX_RETRY_MS)
        else:
            demand = self._constraints.reserve.demand(request.service_class)
            demand.update(now)
            slots += min(len(demand.retries), ledger.slots_total)
            slots_ahead = slots / self._constraints.offers.share_kept
            wait_ms = self._forecaster.release_rates.all.retry_after_ms(slots_ahead, now)
        if refusal.predicted_start_ms is not None:
            rules = self._constraints.rules.of(request.service_class)
            longest_s = refusals.longest_wait(request, rules)[0] if request.may_queue else 0.0
            late_ms = refusal.predicted_start_ms - int(1000 * longest_s)
            wait_ms = max(wait_ms, min(late_ms, MAX_RETRY_MS))
        wait_ms = int(wait_ms * (1 + _JITTER_SHARE * self._jitter.random()))
        return replace(refusal, retry_after_ms=wait_ms)

    # Places

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
        return self._refuse(queued, self._with_retry_after(refusal, queued.request, now))

    def _refuse(self, queued: QueuedRequest, refusal: Refusal) -> Decision:
        self._queues.remove(queued.ticket)
        return Decision(queued.ticket, refusal)

    def _expired(self, queued: QueuedRequest, now: float) -> Refusal:
        refusal = refusals.expired(queued)
        return self._with_retry_after(refusal, queued.request, now)

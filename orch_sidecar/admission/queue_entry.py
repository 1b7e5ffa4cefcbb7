"""Who may wait, for how long, and who makes room for whom.

Pure: times are seconds of a monotonic clock. The queues are bounded, and so is the wait in them;
the order in which those who wait go is none of its business.
"""

from __future__ import annotations

from dataclasses import replace

from orch_sidecar.admission import refusals
from orch_sidecar.admission.constraints.aging import DelayClock
from orch_sidecar.admission.constraints.rules import BlockedBy
from orch_sidecar.admission.decision import Decision, Statistics
from orch_sidecar.admission.forecast import Forecaster
from orch_sidecar.admission.ledger import Ledger
from orch_sidecar.admission.queues import QueuedRequest, Queues
from orch_sidecar.admission.types import AdmissionRequest, Queued
from orch_sidecar.api.refusal import Reason, Refusal
from vllm_plugin.profile import AdmissionRules, FullQueue, ServiceClass

_INTERACTIVE, _BULK = ServiceClass.INTERACTIVE, ServiceClass.BULK


class QueueEntry:
    """Lets requests into the queues of one engine, and refuses those who may not wait (longer)."""

    def __init__(
        self,
        rules: AdmissionRules,
        ledger: Ledger,
        queues: Queues,
        clock: DelayClock,
        prospects: Forecaster,
        statistics: Statistics,
    ) -> None:
        self.rules = rules
        self._ledger = ledger
        self._queues = queues
        self._clock = clock
        self._prospects = prospects
        self._statistics = statistics

    def enter(
        self, request: str, ask: AdmissionRequest, hold: BlockedBy, at: float | None, now: float
    ) -> tuple[Queued | Refusal, list[Decision]]:
        """A request has to wait for `hold`, which ends of itself `at` (where foreseeable).

        Returns what becomes of it, and what was decided about others to make room for it.
        """
        prospects = self._prospects
        position = prospects.position(ask.service_class)
        plan = prospects.plan(ask.service_class, hold, now)
        start_s = prospects.start_s(plan, ask, hold, at, now)
        start_ms = None if start_s is None else round(1000 * start_s)
        refusal: Refusal | None = None
        if hold is not BlockedBy.WINDOW:  # it could have begun at once: nothing speaks against it
            rules = self.rules.of(ask.service_class)
            refusal = prospects.unqueueable(ask, rules, start_ms)
        dropped: list[Decision] = []
        if refusal is None and self._is_full(ask):
            oldest = self._queues.head(_BULK)
            if self.rules.full_queue is FullQueue.DROP_LRU and oldest is not None:
                dropped = [self._drop(oldest, now)]
            else:
                refusal = refusals.full(ask, self._ledger.slots_total, self._capacity(ask))
        if refusal is not None:
            refusal = replace(refusal, queue_position=position, predicted_start_ms=start_ms)
            refusal = prospects.come_back(refusal, ask.cost, now)
            return self._statistics.refuse(ask, refusal), dropped
        self._queues.add(self._waiting(request, ask, now, now))
        if plan is not None:
            prospects.outlook.placed(plan, ask)
        return Queued(position, start_ms), dropped

    def enter_again(
        self,
        request: str,
        ask: AdmissionRequest,
        since: float,
        unavailable: Refusal | None,
        now: float,
    ) -> Queued | Refusal:
        """One that was already served waits as since then, before all that came later."""
        head = self._queues.head(ask.service_class)
        waiting = self._waiting(request, ask, since, now)
        if head is not None:  # whoever it passes by does not wait the longer for it
            waiting = replace(waiting, delay_s=min(waiting.delay_s, head.delay_s))
        if waiting.expires <= now:
            refusal = unavailable or self._waited_too_long(waiting, now)
            return self._statistics.refuse(ask, refusal)
        if ask.cost > self._ledger.slots_total:
            refusal = refusals.too_large(ask.cost, self._ledger.slots_total)
            return self._statistics.refuse(ask, refusal)
        self._queues.add(waiting, at_head=True)
        self._prospects.outlook.changed()
        return Queued(0, None)

    def close(self, unavailable: Refusal | None, now: float) -> list[Decision]:
        """Refuses those who have waited too long: for that they cannot be served now, if so."""
        decisions = [
            Decision(
                each.request,
                self._statistics.refuse(each.ask, unavailable or self._waited_too_long(each, now)),
            )
            for each in self._queues.expired(now)
        ]
        if decisions:
            self._prospects.outlook.changed()
        return decisions

    def turn_away(self, waiting: QueuedRequest, refusal: Refusal) -> Decision:
        """Refuses one that waits."""
        self._queues.remove(waiting.request)
        return Decision(waiting.request, self._statistics.refuse(waiting.ask, refusal))

    def _waiting(
        self, request: str, ask: AdmissionRequest, since: float, now: float
    ) -> QueuedRequest:
        rules = self.rules.of(ask.service_class)
        limits = [(since + rules.max_wait_s, Reason.QUEUE_TIMEOUT)]
        if ask.max_wait_ms is not None:
            limits.append((since + ask.max_wait_ms / 1000, Reason.QUEUE_TIMEOUT))
        if ask.deadline_ms is not None:
            limits.append((since + ask.deadline_ms / 1000, Reason.DEADLINE_MISS))
        first_token_s = self._prospects.outlook.first_token_s(ask)
        if rules.ttft_p95_ms is not None:
            # Later than that it would be served for nothing.
            latest = max(0.0, rules.ttft_p95_ms / 1000 - (first_token_s or 0.0))
            limits.append((since + latest, Reason.SLO_MISS))
        expires, expiry = min(limits)
        return QueuedRequest(request, ask, since, expires, expiry, self._clock.value(now))

    def _is_full(self, ask: AdmissionRequest) -> bool:
        return self._queues.size(ask.service_class) >= self._capacity(ask)

    def _capacity(self, ask: AdmissionRequest) -> int:
        capacity = self.rules.of(ask.service_class).queue_capacity
        return capacity - self._taken_places() if ask.service_class is _BULK else capacity

    def _taken_places(self) -> int:
        """Places of bulk requests that interactive ones got by dropping some."""
        if self.rules.full_queue is not FullQueue.DROP_LRU:
            return 0
        waiting = self._queues.size(_INTERACTIVE)
        return max(0, waiting - self.rules.of(_INTERACTIVE).queue_capacity)

    def _drop(self, oldest: QueuedRequest, now: float) -> Decision:
        refusal = self._prospects.come_back(refusals.dropped(), oldest.ask.cost, now)
        self._prospects.outlook.changed()
        return self.turn_away(oldest, refusal)

    def _waited_too_long(self, waiting: QueuedRequest, now: float) -> Refusal:
        refusal = refusals.waited_too_long(waiting)
        return self._prospects.come_back(refusal, waiting.ask.cost, now)

"""Predicts when a request will start, and refuses those for which that is too late.

Pure: times are seconds of a monotonic clock. Knows the order of the queues and the service times
of requests; dispatches nothing.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Final

from orch_sidecar.admission import refusals
from orch_sidecar.admission.constraints.rules import AdmissionConstraints
from orch_sidecar.admission.fairness.backlog import Ahead
from orch_sidecar.admission.fairness.fair_queue import FEW
from orch_sidecar.admission.ledger import Ledger
from orch_sidecar.admission.prediction.release_rate import ReleaseRate
from orch_sidecar.admission.prediction.schedule import Schedule
from orch_sidecar.admission.prediction.service_time import Forecast, ServiceTimes
from orch_sidecar.admission.queues import Queues
from orch_sidecar.admission.types import AdmissionRequest, BlockedBy
from orch_sidecar.api.refusal import Refusal
from vllm_plugin.profile import ClassRules, ServiceClass

# Requests that are refused together should not retry together.
_JITTER: Final = 0.25

_INTERACTIVE, _BULK = ServiceClass.INTERACTIVE, ServiceClass.BULK


class Forecaster:
    """Predicts the waits and ends of one engine's requests."""

    def __init__(
        self,
        ledger: Ledger,
        queues: Queues,
        constraints: AdmissionConstraints,
        service_times: ServiceTimes,
        jitter: random.Random,
    ) -> None:
        self._service_times = service_times
        self.release_rate = ReleaseRate()
        self._ledger = ledger
        self._queues = queues
        self._constraints = constraints
        self._jitter = jitter

    def ahead(self, request: AdmissionRequest) -> Ahead:
        """What goes before a request that arrives now: of its class, and of more urgent ones."""
        ahead, queues = self._queues.ahead(request), self._queues
        if request.service_class is not _BULK or not queues.size(_INTERACTIVE):
            return ahead
        return Ahead(
            ahead.requests + queues.size(_INTERACTIVE),
            ahead.sequences + queues.cost(_INTERACTIVE),
            ahead.tokens,
        )

    def schedule(
        self, request: AdmissionRequest, blocked_by: BlockedBy | None, now: float
    ) -> Schedule | None:
        """The slots as a request that arrives now will find them. None: unknown."""
        ledger, is_bulk = self._ledger, request.service_class is _BULK
        free = max(0, ledger.room)
        reserved = ledger.slots_total - self._constraints.bulk_capacity(now)
        if blocked_by in (BlockedBy.KV, BlockedBy.BATCH):  # slots are free, but cannot be used
            reserved -= free
            free = 0
        among_themselves = blocked_by is BlockedBy.BATCH and not is_bulk
        only = _INTERACTIVE if among_themselves else None
        schedule = self._service_times.schedule(now, free, only)
        if schedule is None:
            return None
        if is_bulk:
            self._queue_up(schedule, _INTERACTIVE, None)
            schedule = schedule.copy(without=max(0, reserved))
        self._queue_up(schedule, request.service_class, request)
        return schedule

    def _queue_up(
        self, schedule: Schedule, service_class: ServiceClass, until: AdmissionRequest | None
    ) -> None:
        """Puts the queued requests of a class into the slots: all, or those before a new one."""
        queues, service_times = self._queues, self._service_times
        size = queues.size(service_class)
        if not size:
            return
        if size <= FEW:  # one by one
            for each in queues.of(service_class) if until is None else queues.before(until):
                service_times.place(schedule, each.request)
            return
        prompt_work, charge = queues.tokens(service_class)
        sequences, tokens = queues.cost(service_class), float(charge)
        if until is not None:
            _, sequences, tokens = queues.ahead(until)
        if sequences <= 0:
            return
        share = min(1.0, tokens / charge)
        service_s = service_times.mean_service_s(share * prompt_work, tokens, sequences)
        if service_s is not None:
            schedule.fill(sequences, service_s)

    def start_s(
        self,
        schedule: Schedule | None,
        request: AdmissionRequest,
        blocked_by: BlockedBy | None,
        clears_at: float | None,
        now: float,
    ) -> float | None:
        """Seconds to its slots. `clears_at`: when the constraint clears, if predictable."""
        start_s = None if schedule is None else schedule.start(request.cost)
        if start_s is None or clears_at is None:
            return start_s
        if blocked_by not in (BlockedBy.PAUSE, BlockedBy.WINDOW):
            return start_s
        return max(start_s, clears_at - now)

    def forecast(
        self,
        request: AdmissionRequest,
        blocked_by: BlockedBy | None,
        clears_at: float | None,
        now: float,
    ) -> Forecast | None:
        """Predicts the course of a request that arrives now and is `blocked_by`. None: unknown."""
        service_s = self._service_times.service_s(request, joins=blocked_by is None)
        start_s: float | None = 0.0
        if service_s is None or request.cost > self._ledger.slots_total:
            return None
        if blocked_by is not None:
            schedule = self.schedule(request, blocked_by, now)
            start_s = self.start_s(schedule, request, blocked_by, clears_at, now)
        if start_s is None:
            return None
        first_token_s = self._service_times.first_token_s(request) or 0.0
        return Forecast(
            1000 * start_s, 1000 * (start_s + first_token_s), 1000 * (start_s + service_s)
        )

    def queue_refusal(
        self, request: AdmissionRequest, rules: ClassRules, start_ms: int | None
    ) -> Refusal | None:
        """The refusal of a request that must not queue; None: it may."""
        if not request.may_queue:
            return refusals.may_not_queue()
        refusal = refusals.waits_too_long(request, rules, start_ms)
        return refusal or self.late(request, rules, start_ms)

    def late(
        self, request: AdmissionRequest, rules: ClassRules, start_ms: int | None
    ) -> Refusal | None:
        """The refusal of a request whose first token would be late; None: it is in time."""
        first_token_s = self._service_times.first_token_s(request)
        if first_token_s is None or start_ms is None:
            return None
        return refusals.late(request, rules, start_ms + 1000 * first_token_s)

    def with_retry_after(self, refusal: Refusal, request: AdmissionRequest, now: float) -> Refusal:
        """Adds a Retry-After: the time in which what goes before such a request is dispatched at
        the measured rate."""
        slots = self.ahead(request).sequences + request.cost
        wait_ms = self.release_rate.retry_after_ms(slots, now)
        wait_ms = int(wait_ms * (1 + _JITTER * self._jitter.random()))
        return replace(refusal, retry_after_ms=wait_ms)

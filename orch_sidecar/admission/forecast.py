"""What a request that comes now, or that waits, has to expect; and whether that is good enough.

Pure: times are seconds of a monotonic clock. Knows the order of the queue and how long requests
take; decides nothing.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Final

from orch_sidecar.admission import refusals
from orch_sidecar.admission.constraints.rules import AdmissionConstraints, BlockedBy
from orch_sidecar.admission.ledger import Ledger
from orch_sidecar.admission.prediction.release_rate import ReleaseRate
from orch_sidecar.admission.prediction.schedule import Schedule
from orch_sidecar.admission.prediction.service_time import FEW, Forecast, ServiceTimes
from orch_sidecar.admission.queues import Queues
from orch_sidecar.admission.types import AdmissionRequest
from orch_sidecar.api.refusal import Refusal
from vllm_plugin.profile import ClassRules, ServiceClass

# Those who are refused together should not come back together.
_JITTER: Final = 0.25

_INTERACTIVE, _BULK = ServiceClass.INTERACTIVE, ServiceClass.BULK


class Forecaster:
    """Foresees, for one engine."""

    def __init__(
        self,
        ledger: Ledger,
        queues: Queues,
        scarce: AdmissionConstraints,
        outlook: ServiceTimes,
        jitter: random.Random,
    ) -> None:
        self.outlook = outlook
        self.drain_rate = ReleaseRate()
        self._ledger = ledger
        self._queues = queues
        self._scarce = scarce
        self._jitter = jitter

    def position(self, service_class: ServiceClass) -> int:
        """How many go before one that comes now."""
        ahead = self._queues.size(_INTERACTIVE)
        return ahead + self._queues.size(_BULK) if service_class is _BULK else ahead

    def plan(
        self, service_class: ServiceClass, hold: BlockedBy | None, now: float
    ) -> Schedule | None:
        """The slots as a request of this class will find them. None: unknown."""
        ledger, queues, outlook = self._ledger, self._queues, self.outlook
        free = max(0, ledger.room)
        kept = ledger.slots_total - self._scarce.bulk_capacity(now)
        if hold in (BlockedBy.KV, BlockedBy.BATCH):  # they are there, but not to be had
            kept -= free
            free = 0
        among_themselves = hold is BlockedBy.BATCH and service_class is _INTERACTIVE
        return outlook.plan(
            service_class,
            now,
            free,
            only=_INTERACTIVE if among_themselves else None,
            kept=max(0, kept),
            waiting=lambda which: (each.ask for each in queues.of(which)),
            few=queues.depth <= FEW,
        )

    def start_s(
        self,
        plan: Schedule | None,
        ask: AdmissionRequest,
        hold: BlockedBy | None,
        at: float | None,
        now: float,
    ) -> float | None:
        """When it will get its slots. `at`: when the hold ends of itself, where foreseeable."""
        start_s = None if plan is None else plan.start(ask.cost)
        if start_s is None or at is None or hold not in (BlockedBy.PAUSE, BlockedBy.WINDOW):
            return start_s
        return max(start_s, at - now)

    def forecast(
        self, ask: AdmissionRequest, hold: BlockedBy | None, at: float | None, now: float
    ) -> Forecast | None:
        """What would become of a request that came now and was held so. None: unknown."""
        service_s = self.outlook.service_s(ask, joins=hold is None)
        start_s: float | None = 0.0
        if service_s is None or ask.cost > self._ledger.slots_total:
            return None
        if hold is not None:
            start_s = self.start_s(self.plan(ask.service_class, hold, now), ask, hold, at, now)
        if start_s is None:
            return None
        first_token_s = self.outlook.first_token_s(ask) or 0.0
        return Forecast(
            1000 * start_s, 1000 * (start_s + first_token_s), 1000 * (start_s + service_s)
        )

    def unqueueable(
        self, ask: AdmissionRequest, rules: ClassRules, start_ms: int | None
    ) -> Refusal | None:
        """Why it makes no sense for it to wait; None: it does."""
        if not ask.may_queue:
            return refusals.may_not_queue()
        return refusals.waits_too_long(ask, rules, start_ms) or self.late(ask, rules, start_ms)

    def late(
        self, ask: AdmissionRequest, rules: ClassRules, start_ms: int | None
    ) -> Refusal | None:
        """The refusal of a request whose first token would come too late; None: it would not."""
        first_token_s = self.outlook.first_token_s(ask)
        if first_token_s is None or start_ms is None:
            return None
        return refusals.late(ask, rules, start_ms + 1000 * first_token_s)

    def come_back(self, refusal: Refusal, cost: int, now: float) -> Refusal:
        """Says when: when the queue will have gone at the rate at which slots come free."""
        ahead = self._queues.cost(_INTERACTIVE) + self._queues.cost(_BULK) + cost
        wait_ms = self.drain_rate.retry_after_ms(ahead, now)
        wait_ms = int(wait_ms * (1 + _JITTER * self._jitter.random()))
        return replace(refusal, retry_after_ms=wait_ms)

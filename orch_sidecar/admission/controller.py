"""Who gets a slot, who waits, who is refused.

Pure: times are seconds of a monotonic clock and come as arguments; whatever a call decides
about other requests than its own is in the decisions that it returns.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Final

from orch_sidecar.admission import refusals
from orch_sidecar.admission.constraints.batch import Limits, limits_for
from orch_sidecar.admission.constraints.kv_cache import KvNeed
from orch_sidecar.admission.constraints.rules import AdmissionConstraints, BlockedBy
from orch_sidecar.admission.decision import Decision, Statistics
from orch_sidecar.admission.draining import Drain, of_next_engine, stronger
from orch_sidecar.admission.forecast import Forecaster
from orch_sidecar.admission.ledger import Lease, Ledger
from orch_sidecar.admission.ordering import QueueOrder
from orch_sidecar.admission.prediction.service_time import Forecast, RunningRequest, ServiceTimes
from orch_sidecar.admission.queue_entry import QueueEntry
from orch_sidecar.admission.queues import Queues
from orch_sidecar.admission.types import AdmissionRequest, EngineReport, Queued
from orch_sidecar.api.refusal import Reason, Refusal
from vllm_plugin.profile import AdmissionRules, ServiceClass

# Who turned one away below has its reasons for so long at least; the queue rests no longer.
_SHORTEST_PAUSE_S: Final = 0.02
_LONGEST_PAUSE_S: Final = 1.0
# Bound once: looking up a member of an enum is slow.
_BULK: Final = ServiceClass.BULK

# Between two looks at the same thing, whatever rounding does.
_LEAST_SLEEP_S: Final = 0.001


class AdmissionController:
    """The admission of one engine. Request ids are chosen by the caller, unique and secret."""

    def __init__(self, rules: AdmissionRules, jitter: random.Random | None = None) -> None:
        self.rules = rules
        self.ledger = Ledger()
        self.queues = Queues()
        self.outlook = ServiceTimes(self.ledger)
        self.scarce = AdmissionConstraints(rules, self.ledger, self.queues, self.outlook)
        # It spreads retries, it keeps no secret.
        chance = jitter or random.Random()  # noqa: S311
        self.prospects = Forecaster(self.ledger, self.queues, self.scarce, self.outlook, chance)
        self.order = QueueOrder(rules, self.queues, self.scarce)
        self.statistics = Statistics()
        self.waiting_room = QueueEntry(
            rules, self.ledger, self.queues, self.scarce.clock, self.prospects, self.statistics
        )
        self.displaced: list[Decision] = []  # what the last arrival decided about others
        # Why nothing can be admitted now, if so.
        self.unavailable: Refusal | None = Refusal(
            Reason.ENGINE_STARTING, "the engine has not reported its slots yet"
        )
        self.draining: Drain | None = None

    # What the engine says.

    def engine_reports(self, report: EngineReport, now: float) -> list[Decision]:
        """The engine is ready, and this is how it is."""
        ledger, outlook = self.ledger, self.outlook
        if report.epoch != ledger.epoch:
            ledger.begin_epoch(report.epoch)
            self.scarce.begin_epoch()
            self.outlook.runs.clear()
            self.draining = of_next_engine(self.draining)
        for lease, cost in report.leases:
            ledger.adopt(lease, cost)
        before = (ledger.slots_total, outlook.step_time)
        ledger.slots_total, ledger.foreign = report.slots_total, report.foreign
        outlook.step_time = report.step_time
        outlook.prefill_tokens_per_s = report.prefill_tokens_per_s
        if before != (report.slots_total, report.step_time):
            self._set_limits()
        self.scarce.reported(report, now)
        self.unavailable = None
        outlook.changed()
        if not self.queues.depth:
            return []
        decisions = [
            self.waiting_room.turn_away(each, refusals.too_large(each.ask.cost, report.slots_total))
            for each in self.queues.all()
            if each.ask.cost > report.slots_total
        ]
        return decisions + self._fill(now)

    def engine_unavailable(self, refusal: Refusal) -> None:
        """Nothing is admitted until the engine reports again; who is queued keeps waiting."""
        self.unavailable = refusal

    def engine_ended(self, leases: Iterable[str], now: float) -> list[Decision]:
        """The engine says that nothing carries these leases any more."""
        return [decision for lease in leases for decision in self.release(lease, now)]

    # What requests do.

    def arrive(self, request: str, ask: AdmissionRequest, now: float) -> Lease | Refusal | Queued:
        """A request wants slots. Queued: it waits, and its outcome comes as a decision.

        What it decides about others (who makes room for it, who starts with it) is to be taken
        by `take_displaced`.
        """
        if self.draining is not None:
            return self.statistics.refuse(ask, refusals.draining(self.draining.ordered_by))
        if self.unavailable is not None:
            return self.statistics.refuse(ask, self.unavailable)
        if ask.cost > self.ledger.slots_total:
            return self.statistics.refuse(
                ask, refusals.too_large(ask.cost, self.ledger.slots_total)
            )
        self.scarce.arrived(ask, now)
        bulk = ask.service_class is _BULK  # windows are theirs
        if bulk and self.scarce.ends_window(ask, now):
            self.displaced += self._fill(now)
        need = self.scarce.need(ask)
        hold = self.order.holds(ask, need, now)
        if hold is None and bulk and self.scarce.opens_window(ask, now):
            hold = BlockedBy.WINDOW
        if hold is not None:
            return self._wait(request, ask, hold, now)
        if ask.deadline_ms is not None:
            late = self.prospects.late(ask, self.rules.of(ask.service_class), 0)
            if late is not None and late.reason is Reason.DEADLINE_MISS:
                return self.statistics.refuse(ask, late)
        lease = self._grant(request, ask, need, now)
        if self.queues.depth:
            self.displaced += self._fill(now)
        return lease

    def take_displaced(self) -> list[Decision]:
        """`displaced`, once."""
        displaced, self.displaced = self.displaced, []
        return displaced

    def turned_away(self, pause_s: float, now: float) -> None:
        """A request was turned away below. Nothing is granted for `pause_s`: it would be, too.

        To be called before the lease of that request is released.
        """
        pause_s = min(max(pause_s, _SHORTEST_PAUSE_S), _LONGEST_PAUSE_S)
        self.order.paused_until = max(self.order.paused_until, now + pause_s)

    def put_back(
        self, request: str, ask: AdmissionRequest, since: float, now: float
    ) -> Queued | Refusal:
        """It was turned away below: it waits again, by its old time limits, before all that came
        later."""
        outcome = self.waiting_room.enter_again(request, ask, since, self.unavailable, now)
        if isinstance(outcome, Queued):
            self.order.hold = BlockedBy.PAUSE
            self.scarce.turn_clock(now)
        return outcome

    def leave(self, request: str, now: float) -> list[Decision]:
        """A queued request went away (its client left). Does nothing if it is not queued."""
        if self.queues.remove(request) is None:
            return []
        self.outlook.changed()
        return self._fill(now)

    def release(
        self,
        lease_id: str,
        now: float,
        output_tokens: int | None = None,
        *,
        served: bool = True,
    ) -> list[Decision]:
        """The engine has done with this lease. Does nothing if it was released before.

        `output_tokens`: what the whole request generated, if it ended of itself. `served`: the
        engine had it; else its end says nothing of how fast slots come free.
        """
        cost = self.ledger.release(lease_id)
        if not cost:
            return []
        run = self.outlook.runs.pop(lease_id, None)
        if run is not None:
            self.scarce.released(run, now)
            if output_tokens is not None:
                self.outlook.ended(run, now, output_tokens / cost)
        if served:
            self.prospects.drain_rate.released(cost, now)
        if not self.queues.depth:
            return []
        self.outlook.changed()
        return self._fill(now)

    def abandon(self, lease_id: str) -> None:
        """The answer was cut short; the lease stays out until the engine says that it ended."""
        self.ledger.abandon(lease_id)

    # What time and the operator do.

    def tick(self, now: float) -> list[Decision]:
        """Refuses those who have waited too long, and lets those go whose time has come."""
        return self._fill(now)

    def next_event(self, now: float) -> float | None:
        """When `tick` has something to do; None: not before something else happens."""
        if not self.queues.depth:
            return None
        times = [self.queues.next_expiry()]
        if self.unavailable is None:
            times.append(self.order.changes_at(now))
        first = min((at for at in times if at is not None), default=None)
        return None if first is None else max(first, now + _LEAST_SLEEP_S)

    def drain(self, drain: Drain) -> None:
        """Refuses new requests; those that are queued or run are served."""
        self.draining = stronger(self.draining, drain)

    def resume(self) -> None:
        """Takes requests again."""
        self.draining = None

    def dismiss(self, refusal: Refusal) -> list[Decision]:
        """Refuses all who are still queued."""
        self.order.hold = None
        return [self.waiting_room.turn_away(each, refusal) for each in self.queues.all()]

    def replace_rules(self, rules: AdmissionRules, now: float) -> list[Decision]:
        """Other rules for what comes; who waits keeps the time limits that it came with."""
        self.rules = self.order.rules = self.scarce.rules = self.waiting_room.rules = rules
        self._set_limits()
        return self._fill(now)

    # What is so.

    @property
    def hold(self) -> BlockedBy | None:
        """What the first of those who wait waits for."""
        return self.order.hold if self.queues.depth else None

    @property
    def limits(self) -> Limits:
        return self.scarce.limits

    @property
    def queue_depth(self) -> int:
        return self.queues.depth

    def queued(self, service_class: ServiceClass) -> int:
        """Requests of a class that wait."""
        return self.queues.size(service_class)

    def leased_by(self, service_class: ServiceClass) -> int:
        """Sequences of a class that have leases."""
        scarce = self.scarce
        return scarce.bulk if service_class is ServiceClass.BULK else scarce.interactive

    def forecast(self, ask: AdmissionRequest, now: float) -> Forecast | None:
        """What would become of a request that came now. None: unknown."""
        hold = self.order.holds(ask, self.scarce.need(ask), now)
        at = None if hold is None else self.order.ends_at(hold, now)
        return self.prospects.forecast(ask, hold, at, now)

    # Granting.

    def _fill(self, now: float) -> list[Decision]:
        # A timer may be late: who has waited too long is refused first, whatever came free.
        decisions = self.waiting_room.close(self.unavailable, now)
        while self.unavailable is None and (waiting := self.order.next(now)) is not None:
            self.queues.remove(waiting.request)
            need = self.scarce.need(waiting.ask)
            lease = self._grant(waiting.request, waiting.ask, need, now)
            decisions.append(Decision(waiting.request, lease))
        self.scarce.turn_clock(now)
        return decisions

    def _grant(self, request: str, ask: AdmissionRequest, need: KvNeed, now: float) -> Lease:
        lease = self.ledger.grant(request, ask.cost)
        run = RunningRequest(ask, now, need)
        outlook = self.outlook
        outlook.runs[request] = run
        outlook.changed()
        self.scarce.granted(run, now)
        self.statistics.granted[ask.service_class] += 1
        return lease

    def _wait(
        self, request: str, ask: AdmissionRequest, hold: BlockedBy, now: float
    ) -> Lease | Refusal | Queued:
        until = self.order.ends_at(hold, now)
        outcome: Lease | Refusal | Queued
        outcome, dropped = self.waiting_room.enter(request, ask, hold, until, now)
        self.displaced += dropped
        if isinstance(outcome, Refusal):
            return outcome
        for decision in self._fill(now):  # a window may be full with it, or its time be over
            if decision.request == request:
                outcome = decision.outcome
            else:
                self.displaced.append(decision)
        return outcome

    def _set_limits(self) -> None:
        self.scarce.limits = limits_for(self.rules, self.ledger.slots_total, self.outlook.step_time)

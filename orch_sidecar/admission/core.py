"""Who gets a slot, who waits, who is refused.

Pure: times are seconds of a monotonic clock and come as arguments; whatever a call decides
about other requests than its own is in the decisions that it returns.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from orch_sidecar.admission import refusing
from orch_sidecar.admission.ask import Ask, EngineReport, Queued
from orch_sidecar.admission.ledger import Lease, Ledger
from orch_sidecar.admission.limits import Limits, limits_for
from orch_sidecar.admission.order import Order
from orch_sidecar.admission.outlook import Forecast, Run
from orch_sidecar.admission.prospects import Prospects
from orch_sidecar.admission.queues import Queues, Waiting
from orch_sidecar.admission.scarce import Hold, Scarce
from orch_sidecar.reasons import Reason, Refusal
from vllm_plugin.profile import AdmissionRules, FullQueue, ServiceClass

# A tier below that refused has its reasons for so long at least, and the queue for so long.
_SHORTEST_PAUSE_S: Final = 0.02
_LONGEST_PAUSE_S: Final = 1.0
# Between two looks at the same thing, whatever rounding does.
_LEAST_SLEEP_S: Final = 0.001


@dataclass(frozen=True, slots=True)
class Decision:
    """What became of a request that was waiting. Its id is the id of its lease."""

    request: str
    outcome: Lease | Refusal


@dataclass(slots=True)
class Statistics:
    """Counts since the start, by class."""

    granted: dict[ServiceClass, int]
    refused: dict[ServiceClass, int]


class Admission:
    """The admission of one engine. Request ids are chosen by the caller, unique and secret."""

    def __init__(self, rules: AdmissionRules, jitter: random.Random | None = None) -> None:
        self.rules = rules
        self.ledger = Ledger()
        self.queues = Queues()
        self.scarce = Scarce(rules, self.ledger, self.queues)
        # It spreads retries, it keeps no secret.
        chance = jitter or random.Random()  # noqa: S311
        self.prospects = Prospects(self.ledger, self.queues, self.scarce, chance)
        self.outlook = self.prospects.outlook
        self.order = Order(rules, self.queues, self.scarce, self.prospects)
        self.statistics = Statistics(dict.fromkeys(ServiceClass, 0), dict.fromkeys(ServiceClass, 0))
        self.displaced: list[Decision] = []  # what the last arrival decided about others
        self._unavailable: Refusal | None = Refusal(
            Reason.ENGINE_STARTING, "the engine has not reported its slots yet"
        )
        self._draining = False

    # What the engine says.

    def engine_reports(self, report: EngineReport, now: float) -> list[Decision]:
        """The engine is ready, and this is how it is."""
        ledger, outlook = self.ledger, self.outlook
        if report.epoch != ledger.epoch:
            ledger.begin_epoch(report.epoch)
            self.scarce.begin_epoch()
            self.outlook.runs.clear()
        before = (ledger.slots_total, outlook.step_time)
        ledger.slots_total, ledger.foreign = report.slots_total, report.foreign
        outlook.step_time = report.step_time
        outlook.prefill_tokens_per_s = report.prefill_tokens_per_s
        if before != (report.slots_total, report.step_time):
            self._set_limits()
        self.scarce.reported(report, now)
        self._unavailable = None
        outlook.changed()
        if not self.queues.depth:
            return []
        decisions = [
            self._turned_away(each, refusing.too_large(each.ask.cost, report.slots_total))
            for each in self.queues.all()
            if each.ask.cost > report.slots_total
        ]
        return decisions + self._fill(now)

    def engine_unavailable(self, refusal: Refusal) -> None:
        """Nothing is admitted until the engine reports again; who is queued keeps waiting."""
        self._unavailable = refusal

    def engine_ended(self, leases: Iterable[str], now: float) -> list[Decision]:
        """The engine says that nothing carries these leases any more."""
        return [decision for lease in leases for decision in self.release(lease, now)]

    # What requests do.

    def arrive(self, request: str, ask: Ask, now: float) -> Lease | Refusal | Queued:
        """A request wants slots. Queued: it waits, and its outcome comes as a decision.

        What it decides about others (who makes room for it, who starts with it) is to be taken
        by `take_displaced`.
        """
        if self._draining:
            return self._refused(ask, refusing.shutting_down())
        if self._unavailable is not None:
            return self._refused(ask, self._unavailable)
        if ask.cost > self.ledger.slots_total:
            return self._refused(ask, refusing.too_large(ask.cost, self.ledger.slots_total))
        self.scarce.arrived(ask, now)
        if self.scarce.ends_window(ask, now):
            self.displaced += self._fill(now)
        output = self.prospects.output(ask)
        hold = self.order.holds(ask, output, now)
        if hold is None and self.scarce.opens_window(ask, now):
            hold = Hold.WINDOW
        if hold is not None:
            return self._enqueue(request, ask, hold, now)
        if ask.deadline_ms is not None:
            late = self.prospects.late(ask, self.rules.of(ask.service_class), 0)
            if late is not None and late.reason is Reason.DEADLINE_MISS:
                return self._refused(ask, late)
        lease = self._grant(request, ask, output, now)
        if self.queues.depth:
            self.displaced += self._fill(now)
        return lease

    def take_displaced(self) -> list[Decision]:
        """`displaced`, once."""
        displaced, self.displaced = self.displaced, []
        return displaced

    def turned_away(self, pause_s: float, now: float) -> None:
        """A tier below has refused a request. Nothing is granted for `pause_s`: it would be, too.

        To be called before the lease of that request is released.
        """
        pause_s = min(max(pause_s, _SHORTEST_PAUSE_S), _LONGEST_PAUSE_S)
        self.order.paused_until = max(self.order.paused_until, now + pause_s)

    def put_back(self, request: str, ask: Ask, since: float, now: float) -> Queued | Refusal:
        """It was turned away below: it waits again, by its old time limits, before all that came
        later."""
        head = self.queues.head(ask.service_class)
        waiting = self._waiting(request, ask, since, now)
        if head is not None:  # whoever it passes by does not wait the longer for it
            waiting = replace(waiting, delay_s=min(waiting.delay_s, head.delay_s))
        if waiting.expires <= now:
            return self._refused(ask, self._waited_too_long(waiting, now))
        if ask.cost > self.ledger.slots_total:
            return self._refused(ask, refusing.too_large(ask.cost, self.ledger.slots_total))
        self.queues.add(waiting, at_head=True)
        self.outlook.changed()
        self.order.hold = Hold.PAUSE
        self.scarce.turn_clock(now, Hold.PAUSE)
        return Queued(0, None)

    def leave(self, request: str, now: float) -> list[Decision]:
        """A queued request went away (its client left). Does nothing if it is not queued."""
        if self.queues.remove(request) is None:
            return []
        self.outlook.changed()
        return self._fill(now)

    def release(
        self, lease_id: str, now: float, output_tokens: int | None = None
    ) -> list[Decision]:
        """The engine has done with this lease. Does nothing if it was released before.

        `output_tokens`: what the whole request generated, if it ended of itself.
        """
        cost = self.ledger.release(lease_id)
        if not cost:
            return []
        run = self.outlook.runs.pop(lease_id, None)
        if run is not None:
            self.scarce.released(run, now)
            if output_tokens is not None:
                self.outlook.ended(run, now, output_tokens / cost)
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
        if self._unavailable is None:
            times.append(self.order.changes_at(now))
        first = min((at for at in times if at is not None), default=None)
        return None if first is None else max(first, now + _LEAST_SLEEP_S)

    def drain(self) -> None:
        """Refuses whoever comes from now on; who is queued or served is served."""
        self._draining = True

    def resume(self) -> None:
        """Takes requests again."""
        self._draining = False

    def dismiss(self, refusal: Refusal) -> list[Decision]:
        """Refuses all who are still queued."""
        self.order.hold = None
        return [self._turned_away(each, refusal) for each in self.queues.all()]

    def replace_rules(self, rules: AdmissionRules, now: float) -> list[Decision]:
        """Other rules for what comes; who waits keeps the time limits that it came with."""
        self.rules = self.order.rules = self.scarce.rules = rules
        self._set_limits()
        return self._fill(now)

    # What is so.

    @property
    def draining(self) -> bool:
        return self._draining

    @property
    def unavailable(self) -> Refusal | None:
        """Why nothing can be admitted now, if so."""
        return self._unavailable

    @property
    def hold(self) -> Hold | None:
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

    def forecast(self, ask: Ask, now: float) -> Forecast | None:
        """What would become of a request that came now. None: unknown."""
        hold = self.order.holds(ask, self.prospects.output(ask), now)
        at = None if hold is None else self.order.ends_at(hold, now)
        return self.prospects.forecast(ask, hold, at, now)

    # Granting.

    def _fill(self, now: float) -> list[Decision]:
        # A timer may be late: who has waited too long is refused first, whatever came free.
        decisions = [
            Decision(each.request, self._refused(each.ask, self._waited_too_long(each, now)))
            for each in self.queues.expired(now)
        ]
        if decisions:
            self.outlook.changed()
        while self._unavailable is None and (waiting := self.order.next(now)) is not None:
            self.queues.remove(waiting.request)
            output = self.prospects.output(waiting.ask)
            lease = self._grant(waiting.request, waiting.ask, output, now)
            decisions.append(Decision(waiting.request, lease))
        self.scarce.turn_clock(now, self.order.hold)
        return decisions

    def _grant(self, request: str, ask: Ask, output: float | None, now: float) -> Lease:
        lease = self.ledger.grant(request, ask.cost)
        run = Run(ask, now, self.scarce.kv_output(ask, output) or 0.0)
        self.outlook.runs[request] = run
        self.outlook.changed()
        self.scarce.granted(run, now)
        self.statistics.granted[ask.service_class] += 1
        return lease

    # Waiting.

    def _enqueue(self, request: str, ask: Ask, hold: Hold, now: float) -> Lease | Refusal | Queued:
        prospects = self.prospects
        position = prospects.position(ask.service_class)
        plan = prospects.plan(ask.service_class, hold, now)
        start_s = prospects.start_s(plan, ask, hold, self.order.ends_at(hold, now), now)
        start_ms = None if start_s is None else round(1000 * start_s)
        refusal: Refusal | None = None
        if hold is not Hold.WINDOW:  # it could have begun at once: nothing speaks against it
            rules = self.rules.of(ask.service_class)
            refusal = prospects.unqueueable(ask, rules, start_ms)
        refusal = refusal or self._make_room(ask, now)
        if refusal is not None:
            refusal = replace(refusal, queue_position=position, predicted_start_ms=start_ms)
            return self._refused(ask, prospects.come_back(refusal, ask.cost, now))
        self.queues.add(self._waiting(request, ask, now, now))
        if plan is not None:
            self.outlook.placed(plan, ask)
        outcome: Lease | Refusal | Queued = Queued(position, start_ms)
        for decision in self._fill(now):  # a window may be full with it, or its time be over
            if decision.request == request:
                outcome = decision.outcome
            else:
                self.displaced.append(decision)
        return outcome

    def _waiting(self, request: str, ask: Ask, since: float, now: float) -> Waiting:
        rules = self.rules.of(ask.service_class)
        limits = [(since + rules.max_wait_s, Reason.QUEUE_TIMEOUT)]
        if ask.max_wait_ms is not None:
            limits.append((since + ask.max_wait_ms / 1000, Reason.QUEUE_TIMEOUT))
        if ask.deadline_ms is not None:
            limits.append((since + ask.deadline_ms / 1000, Reason.DEADLINE_MISS))
        first_token_s = self.outlook.first_token_s(ask)
        if rules.ttft_p95_ms is not None and first_token_s is not None:
            # Later than that it would be served for nothing.
            latest = max(0.0, rules.ttft_p95_ms / 1000 - first_token_s)
            limits.append((since + latest, Reason.SLO_MISS))
        expires, expiry = min(limits)
        return Waiting(request, ask, since, expires, expiry, self.scarce.clock.value(now))

    # Refusing.

    def _make_room(self, ask: Ask, now: float) -> Refusal | None:
        """A place in the queue; None: there is one (now)."""
        capacity = self.rules.of(ask.service_class).queue_capacity
        if ask.service_class is ServiceClass.BULK:
            capacity -= self._taken_places()
        if self.queues.size(ask.service_class) < capacity:
            return None
        oldest = self.queues.head(ServiceClass.BULK)
        if self.rules.full_queue is FullQueue.DROP_LRU and oldest is not None:
            refusal = self.prospects.come_back(refusing.dropped(), oldest.ask.cost, now)
            self.displaced.append(self._turned_away(oldest, refusal))
            self.outlook.changed()
            return None
        return refusing.full(ask, self.ledger.slots_total, capacity)

    def _taken_places(self) -> int:
        """Places of bulk requests that interactive ones got by dropping some."""
        if self.rules.full_queue is not FullQueue.DROP_LRU:
            return 0
        waiting = self.queues.size(ServiceClass.INTERACTIVE)
        return max(0, waiting - self.rules.of(ServiceClass.INTERACTIVE).queue_capacity)

    def _waited_too_long(self, waiting: Waiting, now: float) -> Refusal:
        if self._unavailable is not None:
            return self._unavailable
        return self.prospects.come_back(refusing.waited_too_long(waiting), waiting.ask.cost, now)

    def _refused(self, ask: Ask, refusal: Refusal) -> Refusal:
        self.statistics.refused[ask.service_class] += 1
        return refusal

    def _turned_away(self, waiting: Waiting, refusal: Refusal) -> Decision:
        self.queues.remove(waiting.request)
        return Decision(waiting.request, self._refused(waiting.ask, refusal))

    def _set_limits(self) -> None:
        slots_total, step_time = self.ledger.slots_total, self.outlook.step_time
        self.scarce.limits = limits_for(self.rules, slots_total, step_time)

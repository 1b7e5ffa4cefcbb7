"""Decides which requests get slots, which are queued and which are refused.

Pure: times are seconds of a monotonic clock; decisions about other requests are returned as values.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Final

from orch_sidecar.admission import refusals
from orch_sidecar.admission.availability import Absence, Drain, OrderedBy, after_restart, stronger
from orch_sidecar.admission.constraints.constraint import Constraint
from orch_sidecar.admission.constraints.rules import AdmissionConstraints
from orch_sidecar.admission.enqueuer import Enqueuer
from orch_sidecar.admission.ledger import Ledger
from orch_sidecar.admission.precedence import QueueOrder, Reclaim
from orch_sidecar.admission.prediction.demand import DEFAULT_TOKENS
from orch_sidecar.admission.prediction.forecast import Forecast, Forecaster, Place, Places
from orch_sidecar.admission.prediction.freed_slots import FreedSlots
from orch_sidecar.admission.prediction.service_time import ServiceTimes
from orch_sidecar.admission.queues import Queues
from orch_sidecar.admission.types import (
    AdmissionRequest,
    Decision,
    EndedLease,
    EngineReport,
    Lease,
    Queued,
)
from orch_sidecar.api.refusal import Reason, Refusal
from vllm_plugin.contracts.profile import IDLE, INTERACTIVE, AdmissionRules

# The shortest time between two timer events, whatever rounding does.
_MIN_SLEEP_S: Final = 0.001
# Ended leases that may be kept until something is learned from them.
_MAX_ENDED_LEASES: Final = 64


class AdmissionController:
    """The admission of one engine. Tickets are chosen by the caller, unique and secret."""

    def __init__(
        self,
        rules: AdmissionRules,
        jitter: random.Random | None = None,
        more: Iterable[Constraint] = (),
    ) -> None:
        """`more`: constraints in addition to those that every engine has."""
        self.rules = rules
        self.ledger = Ledger()
        self.queues = Queues()
        self.service_times = ServiceTimes(self.ledger)
        self.constraints = AdmissionConstraints(
            rules, self.ledger, self.queues, self.service_times, more
        )
        self.order = QueueOrder(self.constraints)
        jitter = jitter or random.Random()  # noqa: S311 (it spreads retries, and keeps no secret)
        self.freed_slots = FreedSlots(self.ledger, self.service_times)
        self.forecaster = Forecaster(self.constraints, self.freed_slots)
        self.places = Places(self.forecaster)
        self.enqueuer = Enqueuer(self.constraints, self.forecaster, jitter)
        self.reclaim = Reclaim(self.constraints, self.order, self.freed_slots)
        self.displaced: list[Decision] = []  # decisions about others by the last arrival
        self.unavailable: Refusal | None = refusals.STARTING  # why nothing can be admitted
        self.absence = Absence()
        # Requests wait here for an engine that is away; otherwise another one may serve them.
        self.keeps_queue = True
        self.draining: Drain | None = None
        self._ended: list[EndedLease] = []  # from which nothing was learned yet

    # Engine events

    def engine_reports(self, report: EngineReport, now: float) -> list[Decision]:
        """Takes the state of an engine that is ready."""
        self.learn()
        ledger, service_times = self.ledger, self.service_times
        if report.epoch != ledger.epoch:
            ledger.begin_epoch(report.epoch)
            self.constraints.begin_epoch()
            self.queues.forget_running()
            self.draining = after_restart(self.draining)
        for lease, cost in report.leases:
            ledger.adopt(lease, cost)
        slots_before = ledger.slots_total
        ledger.slots_total, ledger.foreign = report.slots_total, report.foreign
        ledger.foreign_interactive = report.foreign_interactive
        self.constraints.reported(report, now)
        service_times.reported(report, self.constraints.reserve.step_time, now)
        self.freed_slots.invalidate()
        if self.unavailable is not None:
            self.unavailable = None
            self.absence.ended(now)
        if not self.queues.depth:
            return []
        return self.enqueuer.refuse_too_large(slots_before) + self.dispatch(now)

    def engine_unavailable(
        self, refusal: Refusal, now: float, *, expected: bool | None = None
    ) -> list[Decision]:
        """Admits nothing until the engine reports again; queued requests keep waiting, unless this
        sidecar stops. `expected`: the engine will be back by itself; None: nothing new is known."""
        self.unavailable = refusal
        if expected is None and self.draining is not None and self.draining.ends_with_engine:
            expected = True  # its stop was ordered: another takes its place
        self.absence.began(refusal.reason, now, expected=expected)
        return self._dismiss_queued()

    def away_refusal(self, now: float) -> Refusal | None:
        """Returns why nothing can be admitted, and for how long if that is known; None: it can."""
        return None if self.unavailable is None else self.absence.refusal(self.unavailable, now)

    # Request events

    def arrive(
        self, ticket: str, request: AdmissionRequest, now: float
    ) -> Lease | Refusal | Queued:
        """Decides about a new request. The outcome of a queued one follows as a decision; decisions
        about others (evicted for it, or dispatched with it) are in `take_displaced`."""
        if self.draining is not None or self.unavailable is not None:
            return self._arrive_at_closed(ticket, request, now)
        if request.cost > self.ledger.slots_total:
            return refusals.too_large(request.cost, self.ledger.slots_total)
        constraints, queues, service_class = self.constraints, self.queues, request.service_class
        if queues.depth and queues.has_expired(now):  # that must not block this one
            self.displaced += self.dispatch(now)
        tokens = self.service_times.lengths.expected(service_class, request.max_tokens)
        request.work = request.cost * (DEFAULT_TOKENS if tokens is None else tokens)
        request.kv = constraints.kv.need(request.prompt_tokens, tokens, request.cost)
        order = self.order if queues.depth else constraints
        blocked_by = order.blocking(request, now)
        outcome: Lease | Refusal | Queued | None = None
        if blocked_by is not None:
            self.learn()
            outcome = self._enqueue(ticket, request, blocked_by, now)
            lease = self.reclaim.victim(request, outcome, blocked_by, self.rules, now)
            if lease is not None:
                outcome = self._enqueue(ticket, request, blocked_by, now)
                self.reclaim.settle(lease, now, kept=type(outcome) is not Queued)
        elif not request.is_later_part and (
            self.service_times.prompts.clears_at > now  # some are unread
            or request.deadline_ms is not None
            or request.tpot_ms is not None
        ):
            self.learn()
            outcome = self.enqueuer.refuse_at_once(request, now)
        if type(outcome) is not Refusal or not constraints.reserve.refused(request, outcome.reason):
            self._count_demand(request, now)
        if outcome is not None:
            return outcome
        granted = self._grant(ticket, request, now)
        queues.lines[service_class.rank].granted_at_once(granted, request)
        if queues.depth:
            self.displaced += self.dispatch(now, for_idle=service_class is IDLE or None)
        return granted

    def take_displaced(self) -> list[Decision]:
        """Returns `displaced`, and clears it."""
        displaced, self.displaced = self.displaced, []
        return displaced

    def pause(self, lease_id: str, pause_s: float, now: float) -> None:
        """Dispatches nothing for `pause_s`: the upstream rejected the request with this lease, and
        would others. To be called before the lease is released."""
        lease = self.ledger.get(lease_id)
        offered = lease is not None and lease.offered
        self.constraints.pause.begin(pause_s, now, offered=offered)

    def rejected(self, lease_id: str, kind: str, now: float) -> None:
        """Tells the constraint whose `rejection` is `kind` that the engine rejected the request
        with this lease. To be called before the lease is released."""
        lease = self.ledger.get(lease_id)
        for each in self.constraints.all:
            if each.rejection == kind:
                each.rejected(None if lease is None else lease.request, now)

    def requeue(
        self, ticket: str, request: AdmissionRequest, since: float, now: float
    ) -> Queued | Refusal:
        """Queues a rejected request again, before all that arrived later. `dispatch` has to follow.

        `since`: its arrival, from which its time limits count.
        """
        self.learn()
        outcome = self.enqueuer.requeue(ticket, request, since, self.away_refusal(now), now)
        if isinstance(outcome, Queued):
            self.order.blocked_by = self.constraints.pause
            if request.service_class is not IDLE:
                self.constraints.reserve.update(now)
        return outcome

    def leave(self, ticket: str, now: float) -> list[Decision]:
        """Removes a queued request whose client left. Does nothing if it is not queued."""
        if (queued := self.queues.remove(ticket)) is None:
            return []
        return self.dispatch(now, for_idle=queued.request.service_class is IDLE)

    def release(
        self,
        lease_id: str,
        now: float,
        output_tokens: int | None = None,
        served: bool = True,
        sent: bool = True,
    ) -> list[Decision]:
        """Frees the slots of a lease. Does nothing if it was released before.

        `output_tokens`: of the whole request, if it completed. `served`: the engine ran it;
        otherwise its end does not show how fast slots come free. `sent`: the engine got some of it.
        """
        lease = self.ledger.release(lease_id, now)
        if lease is None:
            return []
        if lease.offered and not sent:
            self.constraints.offers.give_back(lease.cost)
        request = lease.request
        if request is not None:
            for each in self.constraints.ending[request.service_class.rank]:
                each.ended(request, now)
        self._ended.append((lease, output_tokens, served, now))
        if output_tokens is None or len(self._ended) >= _MAX_ENDED_LEASES:
            self.learn()
        if not self.queues.depth:
            return []
        self.freed_slots.invalidate()
        return self.dispatch(now, for_idle=(request and request.service_class is IDLE) or None)

    def learn(self) -> None:
        """Learns from ended leases how long requests are and take, and what keys have used. No
        request waits for that; it has to be called before anything that depends on it."""
        ended, self._ended = self._ended, []  # first: an error repeats none of them
        if not ended:
            return
        times, lines = self.service_times, self.queues.lines
        self.constraints.reserve.learn(ended)
        times.learn(ended)
        self.forecaster.release_rates.learn(ended)
        for lease, output_tokens, served, now in ended:
            request = lease.request
            if request is None:
                continue
            used = 0
            if served and not lease.reclaimed:
                used = times.tokens_used(lease, request, output_tokens, now)
            lines[request.service_class.rank].settle(lease, request, used)
            if output_tokens is None:
                times.prompts.ended_early(lease, request.prompt_tokens, now)

    # Timer and operator events

    def next_event(self, now: float) -> float | None:
        """Returns when `dispatch` will have something to do; None: not before another event."""
        if not self.queues.depth:
            return None
        first = self.queues.next_expiry()
        changes_at = self.order.changes_at(now) if self.unavailable is None else None
        if changes_at is not None and (first is None or changes_at < first):
            first = changes_at
        return None if first is None else max(first, now + _MIN_SLEEP_S)

    def drain(self, drain: Drain) -> list[Decision]:
        """Refuses new requests; queued and running ones are served, if the engine is there."""
        self.draining = stronger(self.draining, drain)
        return self._dismiss_queued()

    def _dismiss_queued(self) -> list[Decision]:
        """Refuses all queued requests if the engine is gone and this sidecar shuts down: it will
        no longer be there when the engine is started again."""
        gone, draining = self.unavailable, self.draining
        if draining is None or draining.ordered_by is not OrderedBy.SHUTDOWN:
            return []
        if gone is None or gone.reason is not Reason.ENGINE_DOWN or self.absence.expected:
            return []
        return self.refuse_queued(gone)

    def resume(self) -> None:
        """Accepts requests again."""
        self.draining = None

    def refuse_queued(self, refusal: Refusal) -> list[Decision]:
        """Refuses all queued requests."""
        self.order.blocked_by = None
        return self.enqueuer.refuse_all(refusal)

    def replace_rules(self, rules: AdmissionRules, now: float) -> list[Decision]:
        """Applies reloaded rules; queued requests keep their time limits."""
        self.rules = rules
        self.constraints.replace_rules(rules)
        return self.dispatch(now)

    # State

    @property
    def blocked_by(self) -> Constraint | None:
        """The constraint that blocks the head of the queue."""
        return self.order.blocked_by if self.queues.depth else None

    def forecast(self, request: AdmissionRequest, now: float) -> Forecast | None:
        """Predicts the course of a request that arrives now. None: unknown."""
        if self.ledger.leased or self.ledger.foreign:  # else it has the whole cache
            self.constraints.set_kv(request)
        order = self.order if self.queues.depth else self.constraints
        return self.forecaster.forecast(request, order.blocking(request, now), now)

    def place(self, ticket: str, now: float) -> Place | None:
        """Returns the place of a queued request, a moment ago. None: it is not known."""
        return self.places.of(ticket, self.blocked_by, now, away=self.unavailable is not None)

    # Dispatch

    def dispatch(self, now: float, *, for_idle: bool | None = None) -> list[Decision]:
        """Refuses requests whose wait has expired, then dispatches those that can start.

        `for_idle`: the event is of an idle request, without which the reserve would not be brought
        up to date now; so it is not. None: whether only idle ones wait.
        """
        self.learn()
        decisions: list[Decision] = []
        queues, reserve = self.queues, self.constraints.reserve
        if for_idle is None:
            for_idle = queues.depth > 0 and not queues.urgent
        if queues.has_expired(now):
            decisions = self.enqueuer.expire(self.away_refusal(now), now)
        waiting = queues.urgent
        if not for_idle:
            reserve.update(now)  # what was owed and spent until now
        while self.unavailable is None and (head := self.order.next(now)) is not None:
            queues.remove(head.ticket)
            if (late := self.enqueuer.refuse_late(head, now)) is not None:
                decisions.append(Decision(head.ticket, late))
                continue
            lease = self._grant(head.ticket, head.request, now)
            queues.line(head.request.service_class).granted(lease, head)
            decisions.append(Decision(head.ticket, lease))
        if queues.urgent != waiting:
            reserve.update(now)
        return decisions

    def _grant(self, ticket: str, request: AdmissionRequest, now: float) -> Lease:
        lease = self.ledger.grant(ticket, request, now)
        self.service_times.prompts.sent(lease, request.prompt_tokens, now)
        if self.constraints.offers.left:
            self.constraints.offers.use(lease)
        for each in self.constraints.granting[request.service_class.rank]:
            each.granted(lease, request, now)
        if self.queues.aside_count:
            self.order.granted(request, now)
        return lease

    def _arrive_at_closed(
        self, ticket: str, request: AdmissionRequest, now: float
    ) -> Refusal | Queued:
        """Queues a request that may wait until the engine is expected back; refuses all others."""
        draining = self.draining
        if draining is not None and not (self.unavailable and draining.ends_with_engine):
            return refusals.draining(draining.ordered_by)
        self.learn()
        away, slots_total = self.away_refusal(now), self.ledger.slots_total
        assert away is not None
        if 0 < slots_total < request.cost:
            return refusals.too_large(request.cost, slots_total)
        if not self.keeps_queue or away.predicted_start_ms is None:
            return away
        start = self.forecaster.start_after(request, away.predicted_start_ms / 1000)
        outcome, evicted = self.enqueuer.enqueue(ticket, request, start, now)
        self.displaced += evicted
        if isinstance(outcome, Refusal):
            return away
        request.work = request.cost * DEFAULT_TOKENS
        self.constraints.reserve.demand(request.service_class).arrivals.append((now, request))
        return outcome

    def _count_demand(self, request: AdmissionRequest, now: float) -> None:
        """Counts a request as demand, whether it is served or not."""
        demand = self.constraints.reserve.demands[request.service_class.rank]
        if not (request.identity and demand.is_retry(request, now)):
            arrival = now, request
            demand.arrivals.append(arrival)
            if request.service_class is INTERACTIVE:
                self.enqueuer.shorter_prompts.recent.append(arrival)

    def _enqueue(
        self, ticket: str, request: AdmissionRequest, blocked_by: Constraint, now: float
    ) -> Lease | Refusal | Queued:
        start = self.forecaster.start(request, blocked_by, now)
        outcome: Lease | Refusal | Queued
        outcome, evicted = self.enqueuer.enqueue(ticket, request, start, now)
        self.displaced += evicted
        if isinstance(outcome, Refusal):
            return outcome
        is_idle = request.service_class is IDLE
        if is_idle and self.queues.urgent:
            return outcome  # others that wait are not asked again because it arrived
        for decision in self.dispatch(now, for_idle=is_idle):  # it may be due, or one has expired
            if decision.ticket == ticket:
                outcome = decision.outcome
            else:
                self.displaced.append(decision)
        return outcome

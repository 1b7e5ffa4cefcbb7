"""The admission controller under every interleaving that Hypothesis finds.

A model beside it keeps what must be true: the leases, the order of the queues and what blocks
them, the outcome of each request. The invariants are checked after every step.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from orch_sidecar.admission.precedence import MAX_RECLAIMS
from orch_sidecar.admission.types import AdmissionRequest, Decision, EngineReport, Lease, Queued
from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.pools.status import status_of
from tests.fuzz import examples
from tests.orch_sidecar.admission.examples import (
    BULK,
    DRAIN,
    INTERACTIVE,
    STALE,
    ended,
    is_refused,
    reason,
    reason_of,
)
from tests.orch_sidecar.admission.happenings import KNOWN, PASSED_S, PICK, REQUESTS, RULES, SLOTS
from tests.orch_sidecar.admission.machine import Checked
from vllm_plugin.contracts.profile import FullQueue, ServiceClass


class EngineEvents(Checked):
    """The rules of the engine; those of requests, time and the operator are in subclasses."""

    @initialize(rules=st.sampled_from(RULES), slots=SLOTS, known=KNOWN)
    def begin(self, rules: Any, slots: int | None, known: dict[str, Any]) -> None:
        self.take_up(rules)
        self.preemptions = self.disturbed = 0
        if slots is not None:
            self.report(EngineReport("e0", slots, **known))

    @property
    def is_calm(self) -> bool:
        """Whether requests came since the last thing after which little goes on."""
        return self.serial > self.disturbed + 20

    @rule(known=KNOWN, slots=SLOTS, preempted=st.sampled_from((0, 0, 0, 1)))
    def engine_reports(self, known: dict[str, Any], slots: int | None, preempted: int) -> None:
        engine = self.model.engine
        self.preemptions += preempted
        slots = slots or engine.slots_total or 4
        self.report(
            EngineReport(engine.epoch or "e0", slots, preemptions_total=self.preemptions, **known)
        )

    # Rarely, because little goes on after it.
    @precondition(lambda self: self.is_calm)
    @rule(known=KNOWN, slots=SLOTS)
    def engine_restarts(self, known: dict[str, Any], slots: int | None) -> None:
        self.disturbed = self.serial
        self.model.out.clear()
        self.model.closing.clear()
        self.model.unread = False
        self.report(EngineReport(self.model.engine.epoch + "'", slots or 4, **known))

    def report(self, report: EngineReport) -> None:
        model = self.model
        before, model.engine, model.unavailable = model.engine, report, None
        model.measure(before)
        too_large = {
            ticket
            for ticket, waits in model.waiting.items()
            if waits.request.cost > report.slots_total
        }
        self.take(self.core.engine_reports(report, model.now), too_large)

    @precondition(lambda self: self.is_calm)
    @rule()
    def engine_unavailable(self) -> None:
        self.disturbed = self.serial
        self.core.engine_unavailable(STALE, self.model.now)
        self.model.unavailable = STALE

    @precondition(lambda self: self.is_calm and self.model.engine.epoch)
    @rule()
    def engine_has_an_unknown_lease(self) -> None:
        self.serial += 1
        self.core.ledger.adopt(f"adopted{self.serial}", 1)
        self.model.out[f"adopted{self.serial}"] = None
        self.model.closing.add(f"adopted{self.serial}")

    @precondition(lambda self: self.model.out)
    @rule(picks=st.lists(PICK, min_size=1, max_size=4, unique=True))
    def engine_ended(self, picks: list[int]) -> None:
        leases = list(dict.fromkeys(self.pick(self.model.out, pick) for pick in picks))
        for lease in leases:
            self.model.end(lease)
            self.take(ended(self.core, [lease, lease, "unknown"], self.model.now))


CANCELLED = Refusal(Reason.CANCELLED, "cancelled")


class AdmissionMachine(EngineEvents):
    """Arrivals, endings, aborts, restarts and the passing of time, in any order."""

    # Requests

    @rule(requests=st.lists(st.tuples(REQUESTS, PASSED_S), min_size=1, max_size=6))
    def arrive(self, requests: list[tuple[AdmissionRequest, float]]) -> None:
        for request, passed_s in requests:
            self.model.pass_time(passed_s)
            all_bulk = self.model.rules.interactive is None
            self.arrive_one(
                *self.named(replace(request, service_class=BULK) if all_bulk else request)
            )

    @precondition(lambda self: self.model.queues[BULK] and self.model.rules.interactive)
    @rule(request=REQUESTS, times=st.integers(2, 8), passed_s=st.sampled_from((0.1, 0.3, 0.5)))
    def interactive_requests_come_and_go(
        self, request: AdmissionRequest, times: int, passed_s: float
    ) -> None:
        """So many that bulk ones are delayed."""
        request = replace(request, service_class=INTERACTIVE, cost=1)
        for _ in range(times):
            self.arrive_one(*self.named(request))
            self.model.pass_time(passed_s)
            leases = [lease for lease, request in self.model.out.items() if request is not None]
            if leases:
                self.release_one(leases[0])

    @precondition(lambda self: self.model.rules.reclaim and not self.model.depth)
    @rule(passed_s=PASSED_S)
    def an_interactive_request_meets_long_bulk_ones(self, passed_s: float) -> None:
        for _ in range(self.model.engine.slots_total):
            self.arrive_one(*self.named(AdmissionRequest(BULK, 1, 0, 100)))
        self.model.pass_time(passed_s)
        self.arrive_one(*self.named(AdmissionRequest(INTERACTIVE, 1, 0, 10)))

    def arrive_one(self, ticket: str, request: AdmissionRequest) -> None:
        model, core = self.model, self.core
        before, places = model.depth, model.places(request.service_class)
        usual = not model.draining and model.unavailable is None
        usual = usual and request.cost <= model.engine.slots_total
        free, returned = self.free_for(request), set(core.queues.line(ServiceClass.BULK)._returned)
        outcome, displaced = (
            core.arrive(ticket, request, model.now),
            core.take_displaced(),
        )
        if free is not None and usual:
            assert isinstance(outcome, Lease) is free
        for lease in core.reclaim.take():
            self.give_back(lease, request, outcome)
        others = self.make_room(displaced, returned)
        dropped = len(others) < len(displaced)
        if isinstance(outcome, Queued):
            assert usual
            assert request.may_queue
            assert dropped or places > 0 or others, "the queue is bounded"
            assert 0 <= outcome.position <= before
            if outcome.predicted_start_ms and not model.engine.step_time:
                # Starts of bulk requests are also predicted by the rate of those before, and what
                # waits for the KV cache alone is expected at the next look at it.
                by_other_means = request.service_class is BULK or model.engine.kv is not None
                assert by_other_means or model.now < model.paused_until
            assert (outcome.predicted_start_ms or 0) >= 0
            model.enqueue(ticket)
            self.settle(others)
            self.see_slo(ticket)
        elif isinstance(outcome, Lease):
            assert usual
            self.settle_among(Decision(ticket, outcome), others)
        else:
            self.settle(others)
            self.check_refusal(request, outcome, usual)
            model.settle(ticket, outcome)
        self.after(surely=model.depth > 0 and not isinstance(outcome, Refusal))

    def free_for(self, request: AdmissionRequest) -> bool | None:
        """Whether the status shows free slots for a request; None: it does not decide alone."""
        model, core = self.model, self.core
        if any(waits.expires_at <= model.now for waits in model.waiting.values()):
            return None  # they leave first
        free = status_of(core, model.now).of(request.service_class).free >= request.cost
        if not free:
            # The first interactive one may get more, a bulk one a slot that it is owed, what waits
            # may be due since the last event, and it may need less of the KV cache than any other.
            first = request.service_class is BULK or not model.leased(INTERACTIVE)
            small = model.engine.kv is not None and not request.prompt_tokens
            return None if first or model.depth or small else False
        core.constraints.set_kv(request)
        if reason(core.order.blocking(request, model.now)) in ("kv", "prefill"):
            return None  # it needs more than the smallest
        limited = request.deadline_ms is not None or request.tpot_ms is not None
        return None if limited or core.service_times.prompts.clears_at > model.now else True

    def give_back(
        self, lease: str, request: AdmissionRequest, outcome: Lease | Refusal | Queued
    ) -> None:
        """A bulk request is aborted for an interactive one; it will be queued again."""
        model = self.model
        assert model.rules.reclaim
        assert request.service_class is INTERACTIVE
        assert isinstance(outcome, Queued)
        taken = model.out[lease]
        assert taken is not None
        assert taken.service_class is BULK
        assert lease not in model.closing
        assert taken.reclaimed <= MAX_RECLAIMS
        model.closing.add(lease)
        model.below[lease] = model.requests[lease]

    def longest_waiting(self, returned: Collection[str]) -> str:
        """The bulk request that was queued first; of those that never had slots, if there are.
        `returned`: those that had, before the last event."""
        queued = list(self.model.queues[BULK])
        return next((ticket for ticket in queued if ticket not in returned), queued[0])

    def make_room(self, displaced: list[Decision], returned: Collection[str]) -> list[Decision]:
        """Applies the eviction, and the decisions before it. Returns the others."""
        model = self.model
        for place, each in enumerate(displaced):
            if is_refused(each) and reason_of(each.outcome) is Reason.QUEUE_FULL_DROP_LRU:
                self.settle(displaced[:place])
                assert model.rules.full_queue is FullQueue.DROP_LRU
                assert each.ticket == self.longest_waiting(returned), "the one that waited longest"
                assert model.places(BULK) <= 0 or model.places(INTERACTIVE) <= 0
                self.settle([each])
                return displaced[place + 1 :]
        return displaced

    @precondition(lambda self: self.model.out)
    @rule(pick=PICK, passed_s=PASSED_S, output_tokens=st.sampled_from((None, 1, 20, 300)))
    def release(self, pick: int, passed_s: float, output_tokens: int | None) -> None:
        self.model.pass_time(passed_s)
        self.release_one(self.pick(self.model.out, pick), output_tokens)

    def release_one(self, lease: str, output_tokens: int | None = None) -> None:
        self.model.end(lease)
        self.take(self.core.release(lease, self.model.now, output_tokens))
        assert self.core.release(lease, self.model.now) == [], "a second release does nothing"

    @precondition(lambda self: self.model.out)
    @rule(pick=PICK)
    def abandon(self, pick: int) -> None:
        lease = self.pick(self.model.out, pick)
        self.core.ledger.abandon(lease)
        self.model.closing.add(lease)

    @precondition(lambda self: self.model.depth)
    @rule(pick=PICK)
    def leave(self, pick: int) -> None:
        model = self.model
        ticket = self.pick(model.waiting, pick)
        del model.queues[model.requests[ticket][0].service_class][ticket]
        model.left.add(ticket)
        self.take(self.core.leave(ticket, model.now))
        assert self.core.leave(ticket, model.now) == []

    @precondition(lambda self: any(self.model.out.values()))
    @rule(pick=PICK, pause_s=st.sampled_from((0.0, 0.3, 99.0)), at_once=st.booleans())
    def upstream_rejects(self, pick: int, pause_s: float, at_once: bool) -> None:
        """`at_once`: the rejected request is requeued now, else later."""
        model = self.model
        lease = self.pick(
            [name for name, request in model.out.items() if request is not None], pick
        )
        self.core.pause("none", pause_s, model.now)
        model.paused_until = max(model.paused_until, model.now + min(max(pause_s, 0.02), 1.0))
        self.release_one(lease)
        model.below[lease] = model.requests[lease]
        if at_once:
            self.requeue_one(lease)

    @precondition(lambda self: self.model.below)
    @rule(picks=st.lists(PICK, min_size=1, max_size=4), passed_s=PASSED_S)
    def requeue(self, picks: list[int], passed_s: float) -> None:
        self.model.pass_time(passed_s)
        for pick in picks:
            if self.model.below:
                self.requeue_one(self.pick(self.model.below, pick))

    def requeue_one(self, lease: str) -> None:
        model = self.model
        ticket, request = self.named(*model.below.pop(lease))
        since = model.requests[ticket][1]
        outcome = self.core.requeue(ticket, request, since, model.now)
        self.check_requeued(request, since, outcome)
        if isinstance(outcome, Queued):
            model.requeue(ticket)
            self.see_slo(ticket)
        else:
            model.settle(ticket, outcome)
        paused = model.now < model.paused_until  # else it is the timer that lets it go
        self.after(surely=isinstance(outcome, Queued) and paused)

    # Time and the operator

    @rule(passed_s=st.sampled_from((0.01, 0.1, 0.5, 0.8, 4.5, 61.0)))
    def tick(self, passed_s: float) -> None:
        model = self.model
        model.pass_time(passed_s)
        self.take(self.core.dispatch(model.now))

    @precondition(lambda self: self.model.depth)
    @rule(times=st.integers(1, 12))
    def tick_at_the_next_events(self, times: int) -> None:
        """As the gate's timer does. It does not spin: nothing happens only now and then."""
        began, settled = self.model.now, len(self.model.outcome)
        for _ in range(times):
            at = self.core.next_event(self.model.now)
            if at is None:
                return
            self.tick(at - self.model.now)
        if len(self.model.outcome) == settled:
            assert self.model.now - began >= 0.2 * (times - 6)

    @precondition(lambda self: self.is_calm)
    @rule()
    def drain(self) -> None:
        self.disturbed = self.serial
        self.core.drain(DRAIN)
        self.model.draining = True

    @precondition(lambda self: self.model.draining)
    @rule()
    def resume(self) -> None:
        self.core.resume()
        self.model.draining = False

    @precondition(lambda self: self.is_calm and self.model.depth)
    @rule()
    def refuse_queued(self) -> None:
        self.disturbed = self.serial
        waiting = set(self.model.waiting)
        self.take(self.core.refuse_queued(CANCELLED), waiting)
        assert not self.model.depth

    @precondition(lambda self: self.is_calm)
    @rule(rules=st.sampled_from(RULES))
    def reload(self, rules: Any) -> None:
        self.disturbed = self.serial
        self.model.replace_rules(rules)
        self.take(self.core.replace_rules(rules, self.model.now))

    @rule(request=REQUESTS)
    def forecast(self, request: AdmissionRequest) -> None:
        """It changes nothing, as the invariants show."""
        at = self.core.next_event(self.model.now)
        forecast = self.core.forecast(request, self.model.now)
        if forecast is not None:
            assert 0 <= forecast.start_ms <= forecast.first_token_ms
            assert forecast.start_ms < forecast.end_ms
        assert self.core.next_event(self.model.now) == at


TestAdmission = AdmissionMachine.TestCase
TestAdmission.settings = settings(max_examples=examples(300), stateful_step_count=60, deadline=None)

"""An admission controller beside its model: applies decisions to both, and states invariants."""

from __future__ import annotations

import random
import sys
from collections.abc import Collection, Iterable
from math import sqrt

from hypothesis.stateful import RuleBasedStateMachine, invariant

from orch_sidecar.admission.controller import AdmissionController
from orch_sidecar.admission.types import AdmissionRequest, Decision, Lease, Queued
from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.pools.status import status_of
from tests.orch_sidecar.admission.examples import (
    BULK,
    INTERACTIVE,
    STALE,
    ended,
    reason,
    reason_of,
    report,
    rules,
)
from tests.orch_sidecar.admission.model import Model
from vllm_plugin.contracts.profile import AdmissionRules, FullQueue, ServiceClass


class Checked(RuleBasedStateMachine):
    """The invariants. Subclasses add the rules."""

    def __init__(self) -> None:
        super().__init__()
        self.take_up(rules())

    def take_up(self, of_rules: AdmissionRules) -> None:
        """Begins anew."""
        self.core = AdmissionController(of_rules, random.Random(1))
        self.core.engine_unavailable(STALE, 0.0, expected=False)  # nothing waits for it
        reserve = self.core.constraints.reserve
        self.model = Model(of_rules, reserve, unavailable=self.core.unavailable)
        self.core.reclaim.is_unseen = lambda lease: lease in self.model.out  # the engine has got it
        self.serial = 0

    def named(
        self, request: AdmissionRequest, since: float | None = None
    ) -> tuple[str, AdmissionRequest]:
        """A new request, that first came now or at that time."""
        self.serial += 1
        ticket = f"r{self.serial}"
        self.model.requests[ticket] = (request, self.model.now if since is None else since)
        return ticket, request

    @staticmethod
    def pick(among: Iterable[str], pick: int) -> str:
        names = list(among)
        return names[pick % len(names)]

    # Decisions

    def take(self, decisions: list[Decision], refused: Collection[str] = ()) -> None:
        """Exactly these, the expired ones, and those whose first token would be late for prompts
        before theirs are refused; each grant is to the next request."""
        model = self.model
        rejected = [each for each in decisions if isinstance(each.outcome, Refusal)]
        late = {name for name, waits in model.waiting.items() if waits.expires_at <= model.now}
        unread = {each.ticket for each in rejected if self.is_behind_prompts(each)} - late
        assert {each.ticket for each in rejected} == {*refused} | late | unread
        for each in rejected:
            if each.ticket not in refused and each.ticket not in unread:
                self.check_late(each)
        self.settle(rejected)
        self.settle(each for each in decisions if isinstance(each.outcome, Lease))
        self.after(surely=True)

    def is_behind_prompts(self, decision: Decision) -> bool:
        """Whether a request was refused when it could start, for the engine has much to read."""
        request = self.model.waiting[decision.ticket].request
        slo_ms = self.model.rules.of(request.service_class).ttft_p95_ms
        limits = {Reason.DEADLINE_MISS: request.deadline_ms, Reason.SLO_MISS: slo_ms}
        measured = self.model.engine.prefill_tokens_per_s is not None
        return measured and limits.get(reason_of(decision.outcome)) is not None

    def check_late(self, decision: Decision) -> None:
        """It waited as long as it may."""
        model, waits = self.model, self.model.waiting[decision.ticket]
        assert waits.expires_at <= model.now
        assert isinstance(decision.outcome, Refusal)
        assert decision.outcome.reason in (_reason(model.unavailable), waits.expiry_reason)

    def settle(self, decisions: Iterable[Decision]) -> None:
        for each in decisions:
            self.model.settle(each.ticket, each.outcome)

    def settle_among(self, own: Decision, others: list[Decision]) -> None:
        """A request is dispatched at once, and others with it: those ahead of it before it."""
        model = self.model
        requests = [model.requests[each.ticket][0] for each in (own, *others)]
        ahead = len(others)
        if requests[0].service_class is INTERACTIVE:
            places = [
                at for at, request in enumerate(requests) if request.service_class is INTERACTIVE
            ]
            ahead = places[-1]
        self.settle(others[:ahead])
        self.settle([own, *others[ahead:]])

    def see_slo(self, ticket: str) -> None:
        """The SLO of its first token may end its wait before its other time limits do."""
        model = self.model
        waits = model.waiting[ticket]
        slo_ms = model.rules.of(waits.request.service_class).ttft_p95_ms
        [waiting] = [each for each in self.core.queues.all() if each.ticket == ticket]
        if waiting.expiry_reason is Reason.SLO_MISS:
            assert slo_ms is not None
            assert waits.since <= waiting.expires_at <= waits.since + slo_ms / 1000
            waits.expires_at, waits.expiry_reason = min(
                (waits.expires_at, waits.expiry_reason), (waiting.expires_at, waiting.expiry_reason)
            )
        assert (waits.expires_at, waits.expiry_reason) == (
            waiting.expires_at,
            waiting.expiry_reason,
        )

    def misses_slo(self, request: AdmissionRequest, since: float) -> bool:
        """Whether its first token would come too late even if it began now, by predictions."""
        slo_ms = self.model.rules.of(request.service_class).ttft_p95_ms
        first_token_s = self.core.service_times.first_token_s(request) or 0.0
        if slo_ms is None or self.core.service_times.prompts.clears_at > self.model.now:
            return slo_ms is not None
        return self.model.now - since + first_token_s > slo_ms / 1000 - 1e-6

    def after(self, *, surely: bool) -> None:
        """Something happened. `surely`: and the controller has dispatched what it can."""
        if surely and self.model.unavailable is None:
            self.head_of_the_queue_is_blocked()

    def head_of_the_queue_is_blocked(self) -> None:
        """Dispatch is work-conserving: the constraint reported for the head does block it."""
        model, blocked_by = self.model, reason(self.core.blocked_by)
        bulk, interactive = model.head(BULK), model.head(INTERACTIVE)
        if not model.depth:
            assert blocked_by is None
            return
        assert blocked_by is not None
        due = model.due()
        if bulk is not None and (due or interactive is None):
            request = model.queues[BULK][bulk].request
            assert model.is_blocked(request, blocked_by, due=due), (bulk, blocked_by)
            return
        assert interactive is not None
        assert model.is_blocked(model.queues[INTERACTIVE][interactive].request, blocked_by), (
            interactive,
            blocked_by,
        )
        if blocked_by == "batch" and bulk is not None:
            request = model.queues[BULK][bulk].request
            self.is_truly_blocked(
                request, "interactive ones that wait for each other block no other"
            )

    def is_truly_blocked(self, request: AdmissionRequest, why: str) -> None:
        self.core.constraints.set_kv(request)
        blocked_by = reason(self.core.constraints.blocking(request, self.model.now))
        assert blocked_by is not None, why
        assert self.model.is_blocked(request, blocked_by), (request, blocked_by)

    def check_refusal(self, request: AdmissionRequest, refusal: Refusal, usual: bool) -> None:
        """`usual`: the engine is ready, takes requests, and this one is not too large for it."""
        model = self.model
        if not usual:
            too_large = refusal.reason is Reason.COST_EXCEEDS_SLOTS
            assert model.draining or refusal.reason is _reason(model.unavailable) or too_large
            return
        match refusal.reason:
            case Reason.QUEUE_FULL:
                assert model.places(request.service_class) <= 0
                assert model.rules.full_queue is FullQueue.REJECT or not model.queues[BULK]
            case Reason.DO_NOT_QUEUE:
                assert not request.may_queue
            case Reason.QUEUE_TIMEOUT:
                assert request.max_wait_ms == 0 or refusal.predicted_start_ms is not None
            case Reason.DEADLINE_MISS:
                assert model.engine.step_time or request.deadline_ms == 0
                assert request.deadline_ms is not None
                return  # also if it could go
            case _:
                assert refusal.reason is Reason.SLO_MISS
                assert model.engine.step_time
                if self.core.service_times.prompts.clears_at > model.now:
                    return  # also if it could go: prompts before its own take too long
        assert refusal.retry_after_ms is not None
        ahead = model.queues[request.service_class] or (
            request.service_class is BULK and model.depth
        )
        if not ahead and not model.due() and model.now >= model.paused_until:
            self.is_truly_blocked(request, "a request that can be dispatched is not refused")

    def check_requeued(
        self, request: AdmissionRequest, since: float, outcome: Queued | Refusal
    ) -> None:
        """It is refused only if its time is over or the engine became too small for it."""
        model = self.model
        expires, expiry_reason = model.limits_of(request, since)
        too_large = request.cost > model.engine.slots_total
        if isinstance(outcome, Queued):
            assert expires > model.now
            assert not too_large
        elif expires <= model.now:
            assert outcome.reason in (_reason(model.unavailable), expiry_reason, Reason.SLO_MISS)
        elif not too_large:
            assert outcome.reason is _reason(model.unavailable) or outcome.reason is Reason.SLO_MISS
            assert self.misses_slo(request, since), "a request with time left is not refused"

    # Invariants

    @invariant()
    def ledger_agrees_with_the_model(self) -> None:
        ledger, model = self.core.ledger, self.model
        assert ledger.violations == 0
        assert ledger.leased + ledger.foreign == model.taken, "never leaked"
        assert ledger.lease_count == len(model.out)
        assert set(ledger.closing()) == model.closing
        assert ledger.slots_total == model.engine.slots_total
        for service_class in ServiceClass:
            assert status_of(self.core, self.model.now).of(service_class).leased == model.leased(
                service_class
            )

    @invariant()
    def no_more_than_the_deviation_of_the_demand_stays_free(self) -> None:
        """Work-conserving between the classes, but for that."""
        reserve, model = self.core.constraints.reserve, self.model
        queued = sum(waits.request.cost for waits in model.queues[INTERACTIVE].values())
        reserved = reserve.reserved(model.now)
        deviation = sqrt(reserve.interactive.slots)
        assert reserved <= model.leased(INTERACTIVE) + queued + deviation + 0.5
        assert 0 <= reserved <= model.engine.slots_total

    @invariant()
    def sums_of_the_ledger_are_those_of_its_leases(self) -> None:
        ledger = self.core.ledger
        known = [lease for lease in ledger.all() if lease.request is not None]
        assert ledger.adopted == sum(lease.cost for lease in ledger.all() if lease not in known)
        assert ledger.kv_committed == sum(lease.kv.at_end for lease in known)
        assert ledger.kv_growth == sum((lease.kv.output or 0) + lease.kv.swing for lease in known)
        assert ledger.kv_unknown == sum(lease.kv.output is None for lease in known)

    @invariant()
    def queues_agree_with_the_model(self) -> None:
        model, core = self.model, self.core
        assert core.queues.depth == model.depth
        for service_class in ServiceClass:
            waiting = [each.ticket for each in core.queues.line(service_class)]
            assert waiting == list(model.queues[service_class])
            assert status_of(core, model.now).of(service_class).queued == len(waiting)

    @invariant()
    def limits_are_those_of_rules_and_engine(self) -> None:
        assert self.core.constraints.batch.limits == self.model.limits

    @invariant()
    def next_event_is_to_come(self) -> None:
        model = self.model
        at = self.core.next_event(model.now)
        if not model.depth:
            assert at is None
            return
        assert at is not None
        first = min(waits.expires_at for waits in model.waiting.values())
        assert model.now < at <= max(first, model.now + 0.001)

    @invariant()
    def every_request_is_in_exactly_one_place(self) -> None:
        model = self.model
        assert model.requests.keys() == model.waiting.keys() | model.outcome.keys() | model.left
        assert len(model.requests) == model.depth + len(model.outcome) + len(model.left)

    @invariant()
    def counts_are_of_what_was_decided(self) -> None:
        model, status = self.model, status_of(self.core, self.model.now)
        for service_class in ServiceClass:
            outcomes = [
                outcome
                for ticket, outcome in model.outcome.items()
                if model.requests[ticket][0].service_class is service_class
            ]
            leases = sum(isinstance(outcome, Lease) for outcome in outcomes)
            assert status.of(service_class).granted == leases

    def teardown(self) -> None:
        """When everything has ended, no lease and no queued request is left."""
        if sys.exc_info()[0] is not None:
            return  # one failure at a time
        model, core = self.model, self.core
        model.pass_time(1e5)
        self.take(core.dispatch(model.now), set(model.waiting))
        if model.unavailable is not None:
            model.engine, model.unavailable = report(8, model.engine.epoch), None
            self.take(core.engine_reports(model.engine, model.now))
        for lease in list(model.out):
            model.end(lease)
            self.take(ended(core, [lease], model.now))
        assert (
            core.ledger.leased,
            core.ledger.lease_count,
            core.queues.depth,
        ) == (0, 0, 0)
        assert core.ledger.kv_committed == 0
        assert core.next_event(model.now) is None
        self.every_request_is_in_exactly_one_place()


def _reason(refusal: Refusal | None) -> Reason | None:
    return None if refusal is None else refusal.reason

"""The admission controller with several API keys of one class, under every interleaving.

That nothing is over-admitted, leaked or left waiting, keys come and go however they like.
"""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from orch_sidecar.admission.types import AdmissionRequest, Decision, Lease, Queued
from orch_sidecar.api.refusal import Reason, Refusal
from tests.fuzz import examples
from tests.orch_sidecar.admission.examples import (
    BULK,
    INTERACTIVE,
    STEP_TIME,
    class_rules,
    core_of,
    report,
    rules,
)
from vllm_plugin.contracts.profile import ServiceClass

PICK = st.integers(0, 1000)
CAPACITY = 6
KEYS = st.sampled_from((b"", b"a", b"b", b"c"))
WEIGHTS = {b"": 1.0, b"a": 1.0, b"b": 3.0, b"c": 0.5}


class KeysMachine(RuleBasedStateMachine):
    """Requests of keys that arrive, end, leave, and are rejected and come back."""

    @initialize(service_class=st.sampled_from(ServiceClass), slots=st.sampled_from((1, 2, 4, 8)))
    def begin(self, service_class: ServiceClass, slots: int) -> None:
        of_class = class_rules(queue_capacity=CAPACITY, max_wait_s=30.0)
        of_both = rules(of_class, of_class)
        self.core = core_of(slots, of_both, step_time=STEP_TIME)
        self.service_class, self.slots = service_class, slots
        self.now, self.serial, self.epoch = 1.0, 0, 1
        self.queued: dict[str, AdmissionRequest] = {}
        self.returned: set[str] = set()
        self.arrived: dict[str, float] = {}
        self.running: dict[str, AdmissionRequest] = {}
        self.random = random.Random(1)

    @rule(
        key=KEYS,
        cost=st.sampled_from((1, 1, 1, 2)),
        prompt_tokens=st.sampled_from((0, 10, 500)),
        max_tokens=st.sampled_from((None, 10, 1000)),
        passed_s=st.sampled_from((0.0, 0.0, 0.01, 0.5)),
    )
    def arrive(
        self, key: bytes, cost: int, prompt_tokens: int, max_tokens: int | None, passed_s: float
    ) -> None:
        self.now += passed_s
        cost = min(cost, self.slots)
        request = AdmissionRequest(
            self.service_class, cost, prompt_tokens, max_tokens, key=key, weight=WEIGHTS[key]
        )
        ticket = self.named()
        outcome = self.core.arrive(ticket, request, self.now)
        displaced = self.core.take_displaced()
        self.arrived[ticket] = self.now
        if isinstance(outcome, Refusal) and outcome.reason is Reason.QUEUE_TIMEOUT:
            assert outcome.predicted_start_ms is not None
            assert outcome.predicted_start_ms > 30_000
        elif isinstance(outcome, Refusal):
            assert outcome.reason is Reason.QUEUE_FULL
            assert self.fewest_by_weight(key) <= (self.of_key(key) + 1) / WEIGHTS[key]
            assert len(self.queued) >= CAPACITY
        elif isinstance(outcome, Queued):
            assert 0 <= outcome.position <= len(self.queued)
            self.queued[ticket] = request
        else:
            displaced.append(Decision(ticket, outcome))
        for each in displaced:
            if not isinstance(each.outcome, Lease) and each.outcome.reason is Reason.QUEUE_FULL:
                evicted = self.queued[each.ticket]
                others = [name for name, other in self.queued.items() if other.key == evicted.key]
                assert each.ticket == [name for name in others if name not in self.returned][-1]
                assert evicted.key != key, "a key does not give way to itself"
        self.take(displaced)

    def named(self) -> str:
        self.serial += 1
        return f"{self.serial}"

    def of_key(self, key: bytes) -> int:
        """Queued requests of a key, but for those that were dispatched before."""
        return sum(
            request.key == key for name, request in self.queued.items() if name not in self.returned
        )

    def fewest_by_weight(self, key: bytes) -> float:
        """What the key with most has."""
        return max(self.of_key(each) / WEIGHTS[each] for each in WEIGHTS)

    def take(self, decisions: list[Decision]) -> None:
        for each in decisions:
            request = self.queued.pop(each.ticket, None)
            if isinstance(each.outcome, Lease):
                request = each.outcome.request
                assert request is not None
                self.check_turn(each.ticket, request)
                self.running[each.ticket] = request
            self.returned.discard(each.ticket)

    def check_turn(self, ticket: str, request: AdmissionRequest) -> None:
        """First come, first served within a key."""
        if ticket in self.returned:
            return
        waiting = [name for name, other in self.queued.items() if other.key == request.key]
        earlier = [name for name in waiting if self.arrived[name] < self.arrived[ticket]]
        assert [name for name in earlier if name not in self.returned] == []

    @precondition(lambda self: self.running)
    @rule(
        pick=PICK,
        output_tokens=st.sampled_from((None, 0, 1, 10, 300)),
        passed_s=st.sampled_from((0.0, 0.01, 1.0)),
    )
    def end(self, pick: int, output_tokens: int | None, passed_s: float) -> None:
        self.now += passed_s
        ticket = list(self.running)[pick % len(self.running)]
        del self.running[ticket]
        self.take(self.core.release(ticket, self.now, output_tokens))
        assert self.core.release(ticket, self.now, output_tokens) == []

    @precondition(lambda self: self.running)
    @rule(pick=PICK)
    def is_rejected_and_comes_back(self, pick: int) -> None:
        ticket = list(self.running)[pick % len(self.running)]
        request = self.running.pop(ticket)
        self.core.pause("none", 0.02, self.now)
        self.take(self.core.release(ticket, self.now, served=False))
        again = self.named()
        self.arrived[again] = self.arrived[ticket]
        outcome = self.core.requeue(again, request, self.arrived[ticket], self.now)
        if isinstance(outcome, Queued):
            self.queued[again] = request
            self.returned.add(again)
            head = self.core.queues.head(self.service_class)
            assert head is not None
            assert head.ticket in self.returned
        else:
            assert self.now >= self.arrived[ticket] + 30.0

    @precondition(lambda self: self.queued)
    @rule(pick=PICK)
    def leave(self, pick: int) -> None:
        ticket = list(self.queued)[pick % len(self.queued)]
        del self.queued[ticket]
        self.returned.discard(ticket)
        self.take(self.core.leave(ticket, self.now))

    @rule(passed_s=st.sampled_from((0.03, 0.5, 31.0)))
    def tick(self, passed_s: float) -> None:
        self.now += passed_s
        self.take(self.core.dispatch(self.now))

    @rule()
    def engine_restarts(self) -> None:
        self.running.clear()
        self.epoch += 1
        state = report(self.slots, f"e{self.epoch}", step_time=STEP_TIME)
        self.take(self.core.engine_reports(state, self.now))

    @invariant()
    def never_over_and_never_leaked(self) -> None:
        ledger = self.core.ledger
        assert ledger.violations == 0
        assert ledger.leased == sum(each.cost for each in self.running.values()) <= self.slots

    @invariant()
    def queue_is_bounded_and_complete(self) -> None:
        queues = self.core.queues
        assert queues.tickets() == self.queued.keys()
        assert len(self.queued) <= CAPACITY + len(self.returned)
        assert queues.cost(self.service_class) == sum(each.cost for each in self.queued.values())
        ordered = [each.ticket for each in queues.line(self.service_class)]
        assert sorted(ordered) == sorted(self.queued)
        assert set(ordered[: len(self.returned)]) == self.returned

    @invariant()
    def no_slot_is_free_that_the_head_could_have(self) -> None:
        core = self.core
        head = core.queues.head(self.service_class)
        if head is not None and self.now >= core.constraints.pause.until:
            core_would = core.next_event(self.now)
            waits_for_timer = core_would is not None and core_would <= self.now + 0.0011
            assert head.request.cost > core.ledger.room or waits_for_timer

    @invariant()
    def shares_are_those_of_what_is_queued_and_runs(self) -> None:
        self.core.learn()
        shares = self.core.queues.line(self.service_class).shares
        leases = list(self.core.ledger.all())
        running = Counter(each.request.key for each in leases if each.request is not None)
        for key, share in shares.items():
            own = [each for each in leases if each.request and each.request.key == key]
            assert share.running == running[key]
            assert share.running_tokens == sum(each.expected_tokens for each in own)
            assert len(share.queue) == self.of_key(key)

    def teardown(self) -> None:
        """Each request ends."""
        if not hasattr(self, "core"):
            return
        self.now += 1.0
        self.take(self.core.dispatch(self.now))
        for _ in range(len(self.running) + len(self.queued)):
            if self.running:
                self.end(0, 5, 0.01)
        assert not self.queued
        assert not self.running
        assert self.core.ledger.leased == self.core.queues.depth == 0
        other = BULK if self.service_class is INTERACTIVE else INTERACTIVE
        assert self.core.queues.line(other).shares == {}


TestKeys = KeysMachine.TestCase
TestKeys.settings = settings(max_examples=examples(150), stateful_step_count=50, deadline=None)

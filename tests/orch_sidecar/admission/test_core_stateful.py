"""The admission core under every interleaving that Hypothesis finds.

A model beside the core keeps what must be true: which leases are out, who is queued in which
order, what became of each request. The invariants are checked after every step.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from orch_sidecar.admission.core import Admission, Decision
from orch_sidecar.admission.ledger import Lease
from orch_sidecar.reasons import Reason, Refusal

STALE = Refusal(Reason.ENGINE_STALE, "no event for 3 s")
PICK = st.integers(0, 1000)  # an index into whatever there is, modulo its length


@dataclass
class Model:
    """What must be true, kept without looking into the core."""

    capacity: int
    timeout_s: float
    slots: int = 0
    foreign: int = 0
    epoch: str = ""
    available: bool = False
    draining: bool = False
    out: dict[str, int] = field(default_factory=dict)  # lease id -> cost
    closing: set[str] = field(default_factory=set)
    queue: list[str] = field(default_factory=list)
    cost: dict[str, int] = field(default_factory=dict)
    deadline: dict[str, float] = field(default_factory=dict)
    outcome: dict[str, Lease | Refusal] = field(default_factory=dict)
    left: set[str] = field(default_factory=set)

    def settle(self, request: str, outcome: Lease | Refusal) -> None:
        assert request not in self.outcome, "a request ends exactly once"
        assert request not in self.left, "nothing is decided about a request that went away"
        self.outcome[request] = outcome
        if isinstance(outcome, Lease):
            assert outcome == Lease(request, self.cost[request], self.epoch)
            assert self.available, "nothing is admitted on a guess"
            self.out[request] = outcome.cost
            assert sum(self.out.values()) + self.foreign <= self.slots, "never over"


class AdmissionMachine(RuleBasedStateMachine):
    """Arrivals, endings, aborts, restarts and the passing of time, in any order."""

    @initialize(
        capacity=st.sampled_from((0, 1, 3, 8)),
        timeout_s=st.sampled_from((1.0, 5.0, 60.0)),
        slots=st.integers(1, 8) | st.none(),
    )
    def begin(self, capacity: int, timeout_s: float, slots: int | None) -> None:
        self.core = Admission(capacity, timeout_s)
        self.model = Model(capacity, timeout_s)
        self.now = 100.0
        self.arrivals = 0
        self.restarts = 0
        if slots is not None:
            self.engine_reports(0, slots)

    # What requests do.

    @rule(costs=st.lists(st.integers(1, 6), min_size=1, max_size=5))
    def arrive(self, costs: list[int]) -> None:
        for cost in costs:
            self.now += 0.1
            self.arrive_one(cost)

    def arrive_one(self, cost: int) -> None:
        model = self.model
        self.arrivals += 1
        request = f"r{self.arrivals}"
        model.cost[request] = cost
        room = model.slots - model.foreign - sum(model.out.values())
        outcome = self.core.arrive(request, cost, self.now)
        if outcome is None:
            assert model.available
            assert not model.draining
            assert len(model.queue) < model.capacity, "the queue is bounded"
            model.queue.append(request)
            model.deadline[request] = self.now + model.timeout_s
            return
        if isinstance(outcome, Lease):
            assert not model.queue, "nobody passes by those who are queued"
            assert not model.draining
        elif model.available and not model.draining and cost <= model.slots:
            assert outcome.reason is Reason.QUEUE_FULL
            assert len(model.queue) == model.capacity
            assert model.queue or cost > room, "work-conserving"
        model.settle(request, outcome)

    @precondition(lambda self: self.model.out)
    @rule(pick=PICK)
    def release(self, pick: int) -> None:
        lease = self.pick(self.model.out, pick)
        self.end(lease)
        self.take(self.core.release(lease, self.now))

    @precondition(lambda self: self.model.outcome)
    @rule(pick=PICK)
    def release_what_is_not_out(self, pick: int) -> None:
        request = self.pick(self.model.outcome, pick)
        if request not in self.model.out:
            assert self.core.release(request, self.now) == [], "a second release does nothing"

    @precondition(lambda self: self.model.out)
    @rule(pick=PICK)
    def abandon(self, pick: int) -> None:
        lease = self.pick(self.model.out, pick)
        self.core.abandon(lease)
        self.model.closing.add(lease)

    @precondition(lambda self: self.model.queue)
    @rule(pick=PICK)
    def leave(self, pick: int) -> None:
        request = self.pick(self.model.queue, pick)
        self.model.queue.remove(request)
        self.model.left.add(request)
        self.take(self.core.leave(request, self.now))

    @precondition(lambda self: self.model.outcome)
    @rule(pick=PICK)
    def leave_after_the_decision(self, pick: int) -> None:
        assert self.core.leave(self.pick(self.model.outcome, pick), self.now) == []

    # What the engine says.

    @rule(foreign=st.integers(0, 4), slots=st.integers(1, 8) | st.none())
    def engine_reports(self, foreign: int, slots: int | None) -> None:
        model = self.model
        model.epoch = model.epoch or "e0"
        model.slots = slots or model.slots or 4
        model.foreign, model.available = foreign, True
        self.report()

    @precondition(lambda self: self.arrivals > 8 * self.restarts)
    @rule(foreign=st.integers(0, 4), slots=st.integers(1, 8))
    def engine_restarts(self, foreign: int, slots: int) -> None:
        model = self.model
        self.restarts += 1
        model.epoch = f"e{self.restarts}"
        model.slots, model.foreign, model.available = slots, foreign, True
        model.out.clear()
        model.closing.clear()
        self.report()

    def report(self) -> None:
        model = self.model
        too_large = {request for request in model.queue if model.cost[request] > model.slots}
        self.take(
            self.core.engine_reports(model.epoch, model.slots, model.foreign, self.now),
            refused=too_large,
        )

    @rule()
    def engine_unavailable(self) -> None:
        self.core.engine_unavailable(STALE)
        self.model.available = False

    @precondition(lambda self: self.model.out)
    @rule(picks=st.lists(PICK, min_size=1, max_size=4))
    def engine_ended(self, picks: list[int]) -> None:
        leases = [self.pick(self.model.out, pick) for pick in picks]
        for lease in set(leases):
            self.end(lease)
        self.take(self.core.engine_ended([*leases, "unknown"], self.now))

    # What time and the operator do.

    @rule(passed_s=st.sampled_from((0.0, 0.1, 0.5, 0.8, 4.5, 61.0)))
    def tick(self, passed_s: float) -> None:
        self.now += passed_s
        expired = {r for r in self.model.queue if self.model.deadline[r] <= self.now}
        self.take(self.core.tick(self.now), refused=expired)

    @precondition(lambda self: self.model.queue)
    @rule()
    def tick_at_the_next_deadline(self) -> None:
        """As the gate's timer does."""
        deadline = self.core.next_deadline()
        assert deadline is not None
        self.tick(max(0.0, deadline - self.now))

    # Rarely, because what comes after it is refused.
    @precondition(lambda self: self.arrivals > 40)
    @rule()
    def drain(self) -> None:
        self.core.drain()
        self.model.draining = True

    @precondition(lambda self: len(self.model.queue) > 2)
    @rule()
    def dismiss(self) -> None:
        self.take(self.core.dismiss(), refused=set(self.model.queue))
        assert not self.model.queue

    # What must hold.

    @invariant()
    def ledger_is_as_the_model_says(self) -> None:
        ledger, model = self.core.ledger, self.model
        assert ledger.violations == 0
        assert ledger.leased == sum(model.out.values()), "never leaked"
        assert ledger.leases() == len(model.out)
        assert set(ledger.closing()) == model.closing
        assert ledger.foreign == model.foreign
        assert ledger.slots_total == model.slots

    @invariant()
    def work_is_conserved(self) -> None:
        model = self.model
        if model.available and model.queue:
            room = model.slots - model.foreign - sum(model.out.values())
            assert model.cost[model.queue[0]] > room, "the head never waits while it would fit"

    @invariant()
    def queue_is_as_the_model_says(self) -> None:
        model = self.model
        assert self.core.queue_depth == len(model.queue) <= model.capacity
        head = model.deadline[model.queue[0]] if model.queue else None
        assert self.core.next_deadline() == head

    @invariant()
    def every_request_is_in_exactly_one_place(self) -> None:
        model = self.model
        assert len(model.queue) + len(model.outcome) + len(model.left) == self.arrivals

    def teardown(self) -> None:
        """When everything has ended, nothing is out and nobody waits."""
        if not hasattr(self, "core"):
            return
        self.engine_reports(0, None)
        self.tick(61.0)
        while self.model.out:
            self.release(0)
        assert self.model.queue == []
        assert (self.core.ledger.leased, self.core.queue_depth) == (0, 0)
        self.every_request_is_in_exactly_one_place()

    def take(self, decisions: list[Decision], refused: set[str] | None = None) -> None:
        """Records decisions: exactly `refused` are refused, grants go to the heads in order."""
        model = self.model
        order = {request: place for place, request in enumerate(model.queue)}
        turned_away = [d.request for d in decisions if isinstance(d.outcome, Refusal)]
        assert turned_away == sorted(refused or (), key=order.__getitem__)
        model.queue = [request for request in model.queue if request not in (refused or ())]
        for decision in decisions:
            if isinstance(decision.outcome, Lease):
                assert model.queue[0] == decision.request, "first come, first served"
                model.queue.pop(0)
            model.settle(decision.request, decision.outcome)

    def end(self, lease: str) -> None:
        del self.model.out[lease]
        self.model.closing.discard(lease)

    @staticmethod
    def pick(among: dict[str, int] | dict[str, Lease | Refusal] | list[str], pick: int) -> str:
        return list(among)[pick % len(among)]


TestAdmission = AdmissionMachine.TestCase
TestAdmission.settings = settings(max_examples=300, stateful_step_count=60, deadline=None)

"""Counts of foreign sequences: those in the engine that no lease of an instance covers."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from tests.fuzz import examples
from tests.vllm_plugin.examples import US, enter, lease_of
from vllm_plugin.state.leases import BOUND_LASTS_S, Leases


def test_clock_that_is_set_back_discards_old_bounds() -> None:
    leases = Leases()
    enter(leases, None)
    leases.reported(5, 5000.0)
    leases.reported(6, 10.0)
    leases.reported(6, 11.5)
    enter(leases, lease_of(US, 1, cost=5))
    leases.reported(6, 13.0)
    assert leases.foreign_to(US) == 1


class ForeignMachine(RuleBasedStateMachine):
    """An engine with known content. Requests reach its scheduler late; those without a lease
    stand for several sequences, which end one by one; the scheduler reports."""

    def __init__(self) -> None:
        super().__init__()
        self.leases = Leases()
        self.now_s = 100.0
        self.number = 0
        self.costs: dict[int, int] = {}  # of leases, by key
        self.in_transit: dict[int, int] = {}  # key: sequences
        self.leased: dict[int, int] = {}  # key: sequences in the scheduler
        self.unleased: dict[int, int] = {}
        self.truth: list[tuple[float, int]] = [(self.now_s, 0)]  # times and foreign sequences

    def foreign(self) -> int:
        """Returns the sequences without a lease, at least one for each such request."""
        without = [key for key in self.in_transit if key not in self.costs]
        return len(without) + sum(max(1, count) for count in self.unleased.values())

    @rule(cost=st.integers(1, 4))
    def lease_enters(self, cost: int) -> None:
        self.number += 1
        key = enter(self.leases, lease_of(US, self.number, cost))
        self.costs[key] = self.in_transit[key] = cost

    @rule(sequences=st.integers(1, 6))
    def unleased_request_enters(self, sequences: int) -> None:
        self.in_transit[enter(self.leases, None)] = sequences

    @precondition(lambda self: self.in_transit)
    @rule(pick=st.integers(0, 100))
    def scheduler_takes_one(self, pick: int) -> None:
        key = list(self.in_transit)[pick % len(self.in_transit)]
        kind = self.leased if key in self.costs else self.unleased
        kind[key] = self.in_transit.pop(key)

    @precondition(lambda self: self.unleased)
    @rule(pick=st.integers(0, 100))
    def unleased_sequence_ends(self, pick: int) -> None:
        key = list(self.unleased)[pick % len(self.unleased)]
        if self.unleased[key] > 1:
            self.unleased[key] -= 1
        else:
            del self.unleased[key]
            self.leases.leave(key)

    @precondition(lambda self: self.leased)
    @rule(pick=st.integers(0, 100))
    def leased_request_ends(self, pick: int) -> None:
        key = list(self.leased)[pick % len(self.leased)]
        del self.leased[key]
        self.leases.leave(key)

    @rule(pause_s=st.floats(0.01, 0.6))
    def scheduler_reports(self, pause_s: float) -> None:
        self.truth.append((self.now_s, self.foreign()))
        self.now_s += pause_s
        self.truth.append((self.now_s, self.foreign()))
        in_engine = sum(self.leased.values()) + sum(self.unleased.values())
        self.leases.reported(in_engine, self.now_s)
        counted = self.leases.foreign_to(US)
        if not self.in_transit:
            assert counted >= self.foreign(), "with nothing in transit"
        recent = [count for at_s, count in self.truth if self.now_s - at_s <= BOUND_LASTS_S]
        assert counted <= max(recent), "no more than there were in the last second"


TestForeign = ForeignMachine.TestCase
TestForeign.settings = settings(max_examples=examples(150), stateful_step_count=60, deadline=None)

"""Requests entering and leaving the engine, and the leases that they spend."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.fuzz import examples
from tests.vllm_plugin.examples import THEM, US, enter, lease_of, used
from vllm_plugin.contracts.lease_protocol import MAX_SPENT_LEASES
from vllm_plugin.state.leases import EngineRequest, Leases


@pytest.mark.parametrize(
    "header",
    [
        None, "", "x", "a.b.1", lease_of(US, cost=1) + " ", lease_of(US, cost=1) + "\n",
        lease_of(US)[:-1] + "0", lease_of(US)[:-1] + "01", lease_of(US)[:-1] + "99999999",
        lease_of(US).upper(), lease_of(US)[1:], "é" * 16, lease_of(US)[:-1] + "٣",
    ],
)  # fmt: skip
def test_request_without_a_valid_lease_counts_as_one_sequence_without_an_owner(
    header: str | None,
) -> None:
    leases = Leases()
    key = enter(leases, header)
    assert leases.leased() == 0
    assert leases.foreign_to(US) == 1
    assert leases.leave(key) == EngineRequest(None, None, 1)


@pytest.mark.parametrize("text", ["", "x", lease_of(US) + "\n", "\n" + lease_of(US)])
def test_only_a_lease_can_be_revoked(text: str) -> None:
    """With a newline accepted, a lease could be revoked while it is in the engine."""
    leases = Leases()
    enter(leases, lease_of(US))
    with pytest.raises(ValueError, match="not a lease"):
        leases.revoke(text)


def test_spent_leases_are_forgotten_in_order_when_there_are_many() -> None:
    leases = Leases()
    for number in range(MAX_SPENT_LEASES + 1):
        leases.revoke(lease_of(US, number))
    assert used(leases, lease_of(US, 1))
    assert used(leases, lease_of(US, MAX_SPENT_LEASES))
    assert not used(leases, lease_of(US, 0))


def test_leases_of_an_instance_are_listed_while_in_the_engine() -> None:
    leases = Leases()
    key = enter(leases, lease_of(US, 1))
    enter(leases, lease_of(US, 2))
    enter(leases, lease_of(THEM, 3))
    enter(leases, None)
    assert leases.of(US) == [lease_of(US, 1), lease_of(US, 2)]
    leases.leave(key)
    assert leases.of(US) == [lease_of(US, 2)]
    assert leases.of(None) == []


class LeasesMachine(RuleBasedStateMachine):
    """Entering, leaving and revoking in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.leases = Leases()
        self.present: dict[int, str | None] = {}
        self.spent: set[str] = set()

    @rule(instance=st.sampled_from((US, THEM)), number=st.integers(0, 3), cost=st.integers(1, 3))
    def enter_with_a_lease(self, instance: str, number: int, cost: int) -> None:
        lease = lease_of(instance, number, cost)
        assert used(self.leases, lease) == (lease in self.spent or lease in self.present.values())
        if not used(self.leases, lease):
            key = enter(self.leases, lease)
            assert key not in self.present
            self.present[key] = lease

    @rule()
    def enter_without(self) -> None:
        self.present[enter(self.leases, None)] = None

    @precondition(lambda self: self.present)
    @rule(pick=st.integers(0, 100))
    def leave(self, pick: int) -> None:
        key = list(self.present)[pick % len(self.present)]
        lease = self.present.pop(key)
        assert self.leases.leave(key).lease == lease
        if lease is not None:
            self.spent.add(lease)

    @rule(number=st.integers(0, 3), cost=st.integers(1, 3))
    def revoke(self, number: int, cost: int) -> None:
        lease = lease_of(US, number, cost)
        ended = self.leases.revoke(lease)
        assert ended == (lease not in self.present.values())
        if ended:
            self.spent.add(lease)

    @invariant()
    def counts_match_the_requests_present(self) -> None:
        costs = {US: 0, THEM: 0}
        for lease in self.present.values():
            if lease is not None:
                costs[lease[:16]] += int(lease.rpartition(".")[2])
        unleased = sum(lease is None for lease in self.present.values())
        assert self.leases.leased() == costs[US] + costs[THEM]
        assert self.leases.foreign_to(US) == costs[THEM] + unleased


TestLeases = LeasesMachine.TestCase
TestLeases.settings = settings(max_examples=examples(100), stateful_step_count=40, deadline=None)


@given(st.text(max_size=60))
def test_any_header_is_accepted_by_an_empty_engine(header: str) -> None:
    assert enter(Leases(), header)

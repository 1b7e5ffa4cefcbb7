"""Which requests are in the engine, and whose they are."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from vllm_plugin.leases import SPENT_KEPT, Leases, Presence

US, THEM = "a" * 16, "b" * 16


def lease_of(instance: str, number: int = 0, cost: int = 1) -> str:
    return f"{instance}.{number:032x}.{cost}"


def enter(leases: Leases, header: str | None) -> int:
    entry = leases.enter(header)
    assert entry is not None
    return entry[0]


def test_lease_names_its_instance_and_cost() -> None:
    lease = lease_of(US, 7, cost=4)
    entry = Leases().enter(lease)
    assert entry is not None
    assert entry[1] == Presence(US, lease, 4)


@pytest.mark.parametrize(
    "header",
    [
        None, "", "x", "a.b.1", lease_of(US, cost=1) + " ", lease_of(US, cost=1) + "\n",
        lease_of(US)[:-1] + "0", lease_of(US)[:-1] + "01", lease_of(US)[:-1] + "99999999",
        lease_of(US).upper(), lease_of(US)[1:], "é" * 16, lease_of(US)[:-1] + "٣",
    ],
)  # fmt: skip
def test_what_is_no_lease_counts_as_one_sequence_of_nobodys(header: str | None) -> None:
    leases = Leases()
    entry = leases.enter(header)
    assert entry is not None
    assert entry[1] == Presence(None, None, 1)
    assert leases.leased() == 0
    assert leases.foreign_to(US) == 1


def test_lease_is_let_in_once() -> None:
    leases = Leases()
    key = enter(leases, lease_of(US))
    assert leases.enter(lease_of(US)) is None, "while it is there"
    leases.leave(key)
    assert leases.enter(lease_of(US)) is None, "and never again"


def test_requests_without_a_lease_are_all_let_in() -> None:
    leases = Leases()
    keys = {enter(leases, None) for _ in range(3)}
    assert len(keys) == 3
    assert leases.foreign_to(US) == 3


def test_revoked_lease_is_turned_away_when_it_comes_late() -> None:
    leases = Leases()
    assert leases.revoke(lease_of(US))
    assert leases.enter(lease_of(US)) is None


def test_lease_that_is_still_here_cannot_be_revoked() -> None:
    leases = Leases()
    key = enter(leases, lease_of(US))
    assert not leases.revoke(lease_of(US))
    leases.leave(key)
    assert leases.revoke(lease_of(US))


@pytest.mark.parametrize("text", ["", "x", lease_of(US) + "\n", "\n" + lease_of(US)])
def test_only_a_lease_can_be_revoked(text: str) -> None:
    """A newline behind a lease would otherwise end a lease that is still here."""
    leases = Leases()
    enter(leases, lease_of(US))
    with pytest.raises(ValueError, match="not a lease"):
        leases.revoke(text)


def test_spent_leases_are_forgotten_in_order_when_there_are_many() -> None:
    leases = Leases()
    for number in range(SPENT_KEPT + 1):
        leases.revoke(lease_of(US, number))
    assert leases.enter(lease_of(US, 1)) is None
    assert leases.enter(lease_of(US, SPENT_KEPT)) is None
    assert leases.enter(lease_of(US, 0)) is not None


def test_leaving_twice_is_a_callers_mistake() -> None:
    leases = Leases()
    key = enter(leases, None)
    leases.leave(key)
    with pytest.raises(KeyError):
        leases.leave(key)


def test_foreign_is_what_others_gave_and_nobody_gave() -> None:
    leases = Leases()
    enter(leases, lease_of(US, 1, cost=4))
    enter(leases, lease_of(THEM, 2, cost=3))
    enter(leases, None)
    assert leases.leased() == 7
    assert leases.foreign_to(US) == 4
    assert leases.foreign_to(THEM) == 5
    assert leases.foreign_to(None) == 8


def test_request_without_a_lease_counts_for_more_where_the_engine_proves_it() -> None:
    leases = Leases()
    enter(leases, lease_of(US, 1, cost=4))
    enter(leases, None)
    leases.reported(4, settled=False)
    assert leases.foreign_to(US) == 1, "it may not have reached the scheduler yet"
    assert leases.reported(9, settled=False)
    assert leases.foreign_to(US) == 5
    assert leases.foreign_to(THEM) == 9


def test_a_lease_that_comes_in_hides_nothing_that_was_proven() -> None:
    """It is in our books at once, in the scheduler's only after a step."""
    leases = Leases()
    around = enter(leases, None)
    leases.reported(4, settled=True)
    assert leases.foreign_to(US) == 4
    enter(leases, lease_of(US, 1, cost=4))
    assert leases.foreign_to(US) == 4
    leases.reported(4, settled=False)
    assert leases.foreign_to(US) == 4
    leases.reported(8, settled=True)
    assert leases.foreign_to(US) == 4
    leases.leave(around)
    assert leases.foreign_to(US) == 0


def test_what_was_proven_is_corrected_once_the_books_agree() -> None:
    leases = Leases()
    enter(leases, None)
    big = enter(leases, None)
    leases.reported(5, settled=True)
    leases.leave(big)
    leases.reported(1, settled=False)
    assert leases.foreign_to(US) == 5
    leases.reported(1, settled=True)
    assert leases.foreign_to(US) == 1


def test_sequences_that_outlive_their_request_are_foreign_after_two_reports() -> None:
    """A background response; but what was just aborted is in one report more."""
    leases = Leases()
    enter(leases, lease_of(US, 1, cost=1))
    leases.reported(2, settled=True)
    assert leases.foreign_to(US) == 0
    leases.reported(2, settled=True)
    assert leases.foreign_to(US) == 1
    leases.reported(1, settled=True)
    assert leases.foreign_to(US) == 0


def test_leases_of_an_instance_are_listed_while_they_are_here() -> None:
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
        self.here: dict[int, str | None] = {}
        self.spent: set[str] = set()

    @rule(instance=st.sampled_from((US, THEM)), number=st.integers(0, 3), cost=st.integers(1, 3))
    def enter_with_a_lease(self, instance: str, number: int, cost: int) -> None:
        lease = lease_of(instance, number, cost)
        entry = self.leases.enter(lease)
        assert (entry is None) == (lease in self.spent or lease in self.here.values())
        if entry is not None:
            assert entry[0] not in self.here
            self.here[entry[0]] = lease

    @rule()
    def enter_without(self) -> None:
        self.here[enter(self.leases, None)] = None

    @precondition(lambda self: self.here)
    @rule(pick=st.integers(0, 100))
    def leave(self, pick: int) -> None:
        key = list(self.here)[pick % len(self.here)]
        lease = self.here.pop(key)
        assert self.leases.leave(key).lease == lease
        if lease is not None:
            self.spent.add(lease)

    @rule(number=st.integers(0, 3), cost=st.integers(1, 3))
    def revoke(self, number: int, cost: int) -> None:
        lease = lease_of(US, number, cost)
        ended = self.leases.revoke(lease)
        assert ended == (lease not in self.here.values())
        if ended:
            self.spent.add(lease)

    @invariant()
    def counts_are_those_of_who_is_here(self) -> None:
        costs = {US: 0, THEM: 0}
        for lease in self.here.values():
            if lease is not None:
                costs[lease[:16]] += int(lease.rpartition(".")[2])
        unleased = sum(lease is None for lease in self.here.values())
        assert self.leases.leased() == costs[US] + costs[THEM]
        assert self.leases.foreign_to(US) == costs[THEM] + unleased


TestLeases = LeasesMachine.TestCase
TestLeases.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


@given(st.text(max_size=60))
def test_any_header_is_let_in_or_turned_away(header: str) -> None:
    assert Leases().enter(header) is not None

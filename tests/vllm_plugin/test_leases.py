"""Which requests are in the engine, and whose they are."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from vllm_plugin.leases import BOUND_LASTS_S, SPENT_KEPT, EngineRequest, Leases

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
    assert entry[1] == EngineRequest(US, lease, 4)


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
    assert entry[1] == EngineRequest(None, None, 1)
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
    leases.reported(4, 10.0)
    assert leases.foreign_to(US) == 1, "it may not have reached the scheduler yet"
    assert leases.reported(9, 10.1)
    assert leases.foreign_to(US) == 5
    assert leases.foreign_to(THEM) == 9


def test_a_lease_that_comes_in_hides_nothing_that_was_proven() -> None:
    """It is in our books at once, in the scheduler's only after a step."""
    leases = Leases()
    around = enter(leases, None)
    leases.reported(4, 10.0)
    assert leases.foreign_to(US) == 4
    enter(leases, lease_of(US, 1, cost=4))
    assert leases.foreign_to(US) == 4
    leases.reported(4, 10.5)
    assert leases.foreign_to(US) == 4
    leases.reported(8, 11.0)
    leases.reported(8, 12.0)
    assert leases.foreign_to(US) == 4
    leases.leave(around)
    assert leases.foreign_to(US) == 0


def test_what_was_proven_falls_within_a_second_whatever_comes_in() -> None:
    """One request of five sequences left, one stays, and a lease comes in every 0.5 s."""
    leases = Leases()
    enter(leases, None)
    big = enter(leases, None)
    leases.reported(6, 10.0)
    assert leases.foreign_to(US) == 6
    leases.leave(big)
    number, at_s, held = 0, 10.0, []
    while at_s < 12.0:
        at_s += 0.1
        number += 1
        if number % 5 == 0:
            enter(leases, lease_of(US, number))
            held.append(number)
        leases.reported(1 + max(0, len(held) - 1), at_s)  # the newest is on its way
        if at_s > 10.0 + BOUND_LASTS_S + 0.1:
            assert leases.foreign_to(US) == 1


def test_no_more_is_foreign_than_the_engine_holds() -> None:
    """An engine that has come to rest reports no more, so nothing else would correct it."""
    leases = Leases()
    enter(leases, None)
    leases.reported(5, 10.0)
    leases.reported(2, 10.1)
    assert leases.foreign_to(US) == 2
    leases.reported(0, 10.2)
    assert leases.foreign_to(US) == 1, "its answer is still being read"


def test_clock_that_is_set_back_keeps_no_old_proof() -> None:
    leases = Leases()
    enter(leases, None)
    leases.reported(5, 5000.0)
    leases.reported(6, 10.0)
    leases.reported(6, 11.5)
    enter(leases, lease_of(US, 1, cost=5))
    leases.reported(6, 13.0)
    assert leases.foreign_to(US) == 1


def test_sequences_that_outlive_their_request_are_foreign_after_two_reports() -> None:
    """A background response; but what was just aborted is in one report more."""
    leases = Leases()
    enter(leases, lease_of(US, 1, cost=1))
    leases.reported(2, 10.0)
    assert leases.foreign_to(US) == 0
    leases.reported(2, 10.1)
    assert leases.foreign_to(US) == 1
    enter(leases, lease_of(US, 2, cost=1))
    leases.reported(2, 10.2)
    assert leases.foreign_to(US) == 1, "a lease that comes in does not hide it"
    leases.reported(3, 10.3)
    leases.reported(2, 10.4)
    leases.reported(2, 11.5)
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


class ForeignMachine(RuleBasedStateMachine):
    """An engine whose true content is known. What comes in reaches its scheduler late, requests
    without a lease stand for several sequences, which end one by one; the scheduler reports."""

    def __init__(self) -> None:
        super().__init__()
        self.leases = Leases()
        self.now_s = 100.0
        self.number = 0
        self.costs: dict[int, int] = {}  # of leases, by key
        self.on_their_way: dict[int, int] = {}  # key: sequences
        self.leased: dict[int, int] = {}  # key: sequences in the scheduler
        self.unleased: dict[int, int] = {}
        self.truth: list[tuple[float, int]] = [(self.now_s, 0)]  # foreign sequences, over time

    def foreign(self) -> int:
        """Sequences without a lease in the engine, at least one for each such request."""
        without = [key for key in self.on_their_way if key not in self.costs]
        return len(without) + sum(max(1, count) for count in self.unleased.values())

    @rule(cost=st.integers(1, 4))
    def lease_comes_in(self, cost: int) -> None:
        self.number += 1
        key = enter(self.leases, lease_of(US, self.number, cost))
        self.costs[key] = self.on_their_way[key] = cost

    @rule(sequences=st.integers(1, 6))
    def request_around_us_comes_in(self, sequences: int) -> None:
        self.on_their_way[enter(self.leases, None)] = sequences

    @precondition(lambda self: self.on_their_way)
    @rule(pick=st.integers(0, 100))
    def scheduler_takes_one(self, pick: int) -> None:
        key = list(self.on_their_way)[pick % len(self.on_their_way)]
        kind = self.leased if key in self.costs else self.unleased
        kind[key] = self.on_their_way.pop(key)

    @precondition(lambda self: self.unleased)
    @rule(pick=st.integers(0, 100))
    def sequence_around_us_ends(self, pick: int) -> None:
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
        held = sum(self.leased.values()) + sum(self.unleased.values())
        self.leases.reported(held, self.now_s)
        told = self.leases.foreign_to(US)
        if not self.on_their_way:
            assert told >= self.foreign(), "what is proven at a settled instant"
        late = [count for at_s, count in self.truth if self.now_s - at_s <= BOUND_LASTS_S]
        assert told <= max(late), "no more than was true within the last second"


TestForeign = ForeignMachine.TestCase
TestForeign.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)


@given(st.text(max_size=60))
def test_any_header_is_let_in_or_turned_away(header: str) -> None:
    assert Leases().enter(header) is not None

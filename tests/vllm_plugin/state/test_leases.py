"""Requests entering and leaving the engine, the leases that they spend, the traces they are of."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    precondition,
    rule,
)

from tests.fuzz import examples
from tests.vllm_plugin.examples import THEM, US, enter, lease_of, used
from vllm_plugin.contracts.lease_protocol import MAX_SPENT_LEASES
from vllm_plugin.state.leases import EngineRequest, Leases, RequestNumbers, parse_traceparent


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


def traceparent(span: int, trace: int = 1) -> str:
    return f"00-{trace:032x}-{span:016x}-01"


@pytest.mark.parametrize(
    ("header", "parent"),
    [
        (traceparent(5), (1, 5)),
        (f"  {traceparent(5)} ", (1, 5)),
        (traceparent(5).replace("-01", "-00"), (1, 5)),
        (traceparent(5).replace("00-", "cc-", 1) + "-more", (1, 5)),
        (traceparent(0xAB).upper(), None),
        (traceparent(5)[:-3], None),
        ("", None),
        ("nonsense", None),
    ],
)
def test_parent_is_read_as_opentelemetry_reads_it(
    header: str, parent: tuple[int, int] | None
) -> None:
    assert parse_traceparent(header) == parent


def test_number_is_found_by_trace_and_span() -> None:
    numbers = RequestNumbers()
    numbers.enter(1, traceparent(5))
    numbers.enter(2, traceparent(5, trace=2))
    numbers.enter(3, None)
    assert numbers.of((1, 5)) == 1
    assert numbers.of((2, 5)) == 2
    assert numbers.of((3, 5)) is None


def test_parent_that_is_used_again_has_the_number_of_the_last_request() -> None:
    """A client whose requests are all children of one span, one after another."""
    numbers = RequestNumbers()
    for number in (1, 2, 3):
        numbers.enter(number, traceparent(5))
        assert numbers.of((1, 5)) == number
        numbers.leave(number)
    assert len(numbers) == 1


def test_parent_of_several_requests_at_once_is_no_number_until_all_have_left() -> None:
    numbers = RequestNumbers()
    numbers.enter(1, traceparent(5))
    numbers.enter(2, traceparent(5))
    assert numbers.of((1, 5)) is None
    numbers.leave(2)
    numbers.enter(3, traceparent(5))
    assert numbers.of((1, 5)) is None, "the first is still there"
    numbers.leave(3)
    numbers.leave(1)
    assert numbers.of((1, 5)) is None
    numbers.enter(4, traceparent(5))
    assert numbers.of((1, 5)) == 4


def test_requests_that_left_are_forgotten_in_their_order_and_no_others() -> None:
    numbers = RequestNumbers(left_kept=2)
    numbers.enter(1, traceparent(1))
    for number in range(2, 10):
        numbers.enter(number, traceparent(number))
        numbers.leave(number)
    assert [numbers.of((1, span)) for span in (1, 7, 8, 9)] == [1, None, 8, 9]
    assert len(numbers) == 3


def test_untraced_request_may_leave() -> None:
    numbers = RequestNumbers()
    numbers.enter(1, None)
    numbers.enter(2, "nonsense")
    numbers.leave(1)
    numbers.leave(2)
    assert len(numbers) == 0


class Numbers(RuleBasedStateMachine):
    """Against a list of all requests: a known number is that of a request with this parent, which
    shared it with none."""

    present = Bundle("present")
    kept = 3

    def __init__(self) -> None:
        super().__init__()
        self.numbers = RequestNumbers(self.kept)
        self.next = 0
        self.within: dict[int, int] = {}  # number -> span
        self.last: dict[int, int] = {}  # span -> number

    @rule(target=present, span=st.integers(1, 8))
    def enter(self, span: int) -> int:
        self.next += 1
        self.numbers.enter(self.next, traceparent(span))
        self.within[self.next] = span
        self.last[span] = self.next
        return self.next

    @rule(number=consumes(present))
    def leave(self, number: int) -> None:
        self.numbers.leave(number)
        del self.within[number]

    @invariant()
    def known_numbers_are_right(self) -> None:
        for span in range(1, 9):
            sharing = [number for number, each in self.within.items() if each == span]
            found = self.numbers.of((1, span))
            if len(sharing) > 1:
                assert found is None
            elif found is not None:
                assert found == self.last[span]

    @invariant()
    def bounded(self) -> None:
        assert len(self.numbers) <= len(set(self.within.values())) + self.kept


TestNumbers = Numbers.TestCase

"""Numbers of requests by their trace's parent: bounded, and never another request's."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from vllm_plugin.state.request_numbers import RequestNumbers, parse_traceparent


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

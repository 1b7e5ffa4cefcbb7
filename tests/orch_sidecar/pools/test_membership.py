"""The addresses of a name, as they come and go."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orch_sidecar.pools.membership import MISSING_FOR_S, Changes, Member, Members

ONE, TWO, THREE = Member(1, "10.0.0.1"), Member(2, "10.0.0.2"), Member(3, "10.0.0.3")


def heard(_: Member) -> bool:
    return True


def silent(_: Member) -> bool:
    return False


def test_addresses_join_in_their_order_and_are_told_once() -> None:
    members = Members()
    assert members.found({"10.0.0.2", "10.0.0.1"}, 0.0, heard) == Changes((ONE, TWO))
    assert members.found({"10.0.0.2", "10.0.0.1"}, 1.0, heard) == Changes()


def test_one_that_cannot_be_heard_leaves_when_its_address_goes() -> None:
    members = Members()
    members.found({"10.0.0.1", "10.0.0.2"}, 0.0, heard)
    assert members.found({"10.0.0.2"}, 1.0, silent) == Changes(left=(ONE,))


def test_one_that_is_heard_outlives_a_name_server_that_does_not_know_it_for_a_while() -> None:
    members = Members()
    members.found({"10.0.0.1"}, 0.0, heard)
    assert members.found((), 1.0, heard) == Changes()
    assert members.found((), 0.9 + MISSING_FOR_S, heard) == Changes()
    assert members.found(("10.0.0.1",), 1.0 + MISSING_FOR_S, heard) == Changes()
    assert members.found((), 2.0 + MISSING_FOR_S, heard) == Changes(), "it counts anew"
    assert members.found((), 2.0 + 2 * MISSING_FOR_S, heard) == Changes(left=(ONE,))


def test_number_of_one_that_left_is_given_again_and_others_keep_theirs() -> None:
    members = Members()
    members.found({"10.0.0.1", "10.0.0.2"}, 0.0, heard)
    members.found({"10.0.0.2"}, 1.0, silent)
    assert members.found({"10.0.0.2", "10.0.0.3"}, 2.0, heard).joined == (Member(1, "10.0.0.3"),)
    assert members.found({"10.0.0.2", "10.0.0.3", "10.0.0.4"}, 3.0, heard).joined == (
        Member(3, "10.0.0.4"),
    )


def test_one_that_leaves_and_one_that_joins_at_once_share_the_number() -> None:
    members = Members()
    members.found({"10.0.0.1"}, 0.0, heard)
    changes = members.found({"10.0.0.3"}, 1.0, silent)
    assert changes == Changes((Member(1, "10.0.0.3"),), (ONE,))


@given(st.lists(st.tuples(st.sets(st.integers(0, 9), max_size=10), st.booleans()), max_size=30))
def test_what_has_joined_and_not_left_are_the_addresses_and_numbers_are_bounded(
    answers: list[tuple[set[int], bool]],
) -> None:
    members, present, most = Members(), dict[str, Member](), 0
    for now, (found, can_be_heard) in enumerate(answers):
        addresses = {str(each) for each in found}
        changes = members.found(addresses, float(now), lambda _, told=can_be_heard: told)  # type: ignore[misc]
        for left in changes.left:
            assert present.pop(left.address) == left
            assert left.address not in addresses
        for joined in changes.joined:
            assert joined.address not in present
            present[joined.address] = joined
        assert addresses <= present.keys()
        if not can_be_heard:
            assert addresses == present.keys()
        most = max(most, len(present))
        numbers = [member.number for member in present.values()]
        assert len(set(numbers)) == len(numbers)
        assert max(numbers, default=0) <= most

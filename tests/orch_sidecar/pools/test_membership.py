"""The addresses of a name, as they are added and removed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orch_sidecar.pools.membership import MISSING_FOR_S, Changes, Member, Members

ONE, TWO, THREE = Member(1, "10.0.0.1"), Member(2, "10.0.0.2"), Member(3, "10.0.0.3")

ANSWERING = {ONE, TWO, THREE}


def test_addresses_are_added_in_order_and_reported_once() -> None:
    members = Members()
    assert members.update({"10.0.0.2", "10.0.0.1"}, ANSWERING, 0.0) == Changes((ONE, TWO))
    assert members.update({"10.0.0.2", "10.0.0.1"}, ANSWERING, 1.0) == Changes()


def test_silent_member_is_removed_with_its_address() -> None:
    members = Members()
    members.update({"10.0.0.1", "10.0.0.2"}, ANSWERING, 0.0)
    assert members.update({"10.0.0.2"}, (), 1.0) == Changes(removed=(ONE,))


def test_answering_member_outlives_a_gap_of_the_name_server() -> None:
    members = Members()
    members.update({"10.0.0.1"}, ANSWERING, 0.0)
    assert members.update((), ANSWERING, 1.0) == Changes()
    assert members.update((), ANSWERING, 0.9 + MISSING_FOR_S) == Changes()
    assert members.update(("10.0.0.1",), ANSWERING, 1.0 + MISSING_FOR_S) == Changes()
    assert members.update((), ANSWERING, 2.0 + MISSING_FOR_S) == Changes(), "it counts anew"
    assert members.update((), ANSWERING, 2.0 + 2 * MISSING_FOR_S) == Changes(removed=(ONE,))


def test_number_of_a_removed_member_is_used_again_and_others_keep_theirs() -> None:
    members = Members()
    members.update({"10.0.0.1", "10.0.0.2"}, ANSWERING, 0.0)
    members.update({"10.0.0.2"}, (), 1.0)
    assert members.update({"10.0.0.2", "10.0.0.3"}, ANSWERING, 2.0).added == (
        Member(1, "10.0.0.3"),
    )
    assert members.update({"10.0.0.2", "10.0.0.3", "10.0.0.4"}, ANSWERING, 3.0).added == (
        Member(3, "10.0.0.4"),
    )


def test_members_that_are_removed_and_added_at_once_share_the_number() -> None:
    members = Members()
    members.update({"10.0.0.1"}, ANSWERING, 0.0)
    changes = members.update({"10.0.0.3"}, (), 1.0)
    assert changes == Changes((Member(1, "10.0.0.3"),), (ONE,))


@given(st.lists(st.tuples(st.sets(st.integers(0, 9), max_size=10), st.booleans()), max_size=30))
def test_members_are_the_addresses_and_numbers_are_bounded(
    answers: list[tuple[set[int], bool]],
) -> None:
    members, present, most = Members(), dict[str, Member](), 0
    for now, (found, answers_now) in enumerate(answers):
        addresses = {str(each) for each in found}
        answering = present.values() if answers_now else ()
        changes = members.update(addresses, answering, float(now))
        for removed in changes.removed:
            assert present.pop(removed.address) == removed
            assert removed.address not in addresses
        for added in changes.added:
            assert added.address not in present
            present[added.address] = added
        assert addresses <= present.keys()
        if not answers_now:
            assert addresses == present.keys()
        most = max(most, len(present))
        numbers = [member.number for member in present.values()]
        assert len(set(numbers)) == len(numbers)
        assert max(numbers, default=0) <= most

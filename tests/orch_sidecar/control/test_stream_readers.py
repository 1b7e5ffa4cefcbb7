"""The limits of the readers of the state stream."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.control import stream_readers
from orch_sidecar.control.stream_readers import MAX_READERS, MAX_READERS_PER_CLIENT, Reader, Readers

US = "a" * 16


def crowd(readers: Readers, client: str, count: int) -> list[Reader]:
    """So many parents with one key, which own no leases."""
    made = [Reader(client, f"{client}{number}", "cloud") for number in range(count)]
    for each in made:
        assert readers.enter(each, ()) is None
    return made


def test_all_entries_of_a_large_cluster_can_have_the_same_key() -> None:
    readers = Readers()
    crowd(readers, "the entries", 500)
    assert readers.enter(Reader("an operator", None, "cloud"), ()) is None


def test_client_that_is_no_parent_has_a_few_readers_of_each_pool() -> None:
    readers, owners = Readers(), {US}
    mine = [Reader("mallory", None, "cloud") for _ in range(MAX_READERS_PER_CLIENT)]
    assert [readers.enter(each, owners) for each in mine] == [None] * MAX_READERS_PER_CLIENT
    refused = readers.enter(Reader("mallory", None, "cloud"), owners)
    assert isinstance(refused, Refusal)
    assert refused.reason is Reason.READER_LIMIT
    assert f"{MAX_READERS_PER_CLIENT} streams of this client" in refused.message
    for other in (("mallory", None, "other"), ("bob", None, "cloud"), ("mallory", US, "cloud")):
        assert readers.enter(Reader(*other), owners) is None
    readers.leave(mine[0])
    assert readers.enter(Reader("mallory", None, "cloud"), owners) is None


def test_when_all_places_are_taken_they_are_shared_evenly() -> None:
    readers = Readers()
    crowd(readers, "alice", MAX_READERS // 2)
    newest = crowd(readers, "bob", MAX_READERS - MAX_READERS // 2)[-1]
    carols = [Reader("carol", f"carol{number}", "cloud") for number in range(MAX_READERS)]
    replaced = [readers.enter(each, ()) for each in carols]
    assert isinstance(replaced[0], Reader)
    given = [each for each in replaced if isinstance(each, Reader)]
    assert len(given) == MAX_READERS // 3
    assert {each.client for each in given} == {"alice", "bob"}
    assert len(readers) == MAX_READERS
    assert newest in given, "the newest goes first"
    refused = replaced[-1]
    assert isinstance(refused, Refusal)
    assert refused.reason is Reason.READER_LIMIT
    assert f"{MAX_READERS} state streams are open" in refused.message


def test_parents_of_one_key_can_have_all_places_until_another_client_comes() -> None:
    readers = Readers()
    newest = crowd(readers, "alice", MAX_READERS)[-1]
    refused = readers.enter(Reader("alice", "another", "cloud"), ())
    assert isinstance(refused, Refusal)
    assert readers.enter(Reader("bob", US, "cloud"), ()) is newest


def test_parent_that_owns_leases_is_always_served_once_for_each_pool() -> None:
    readers, owners = Readers(), {US}
    crowd(readers, "alice", MAX_READERS)
    first = Reader("alice", US, "cloud")
    assert readers.enter(first, owners) is None
    assert readers.enter(Reader("alice", US, "other"), owners) is None
    again = Reader("alice", US, "cloud")
    assert readers.enter(again, owners) is first, "its connection was lost"
    assert len(readers) == MAX_READERS + 2


def test_claimed_instance_replaces_no_reader_of_another_client() -> None:
    readers, owners = Readers(), {US}
    mine = Reader("alice", US, "cloud")
    readers.enter(mine, owners)
    theirs = Reader("mallory", US, "cloud")
    assert readers.enter(theirs, owners) is None
    assert readers.enter(Reader("mallory", US, "cloud"), owners) is theirs


@given(
    st.lists(
        st.tuples(st.sampled_from("abcd"), st.sampled_from([None, US, "b" * 16]), st.booleans()),
        max_size=300,
    )
)
def test_readers_are_bounded_for_any_arrivals(arrivals: list[tuple[str, str | None, bool]]) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(stream_readers, "MAX_READERS", 40)
        _arrive(arrivals)


def _arrive(arrivals: list[tuple[str, str | None, bool]]) -> None:
    readers, here = Readers(), list[Reader]()
    for client, instance, stays in arrivals:
        reader = Reader(client, instance, "cloud")
        got = readers.enter(reader, {US})
        if isinstance(got, Refusal):
            continue
        if got is not None:
            here.remove(got)
        here.append(reader)
        if not stays:
            readers.leave(here.pop(0))
        assert len(readers) == len(here)
        others = [each for each in here if each.instance != US]
        assert len(others) <= stream_readers.MAX_READERS

"""The document follows its events, a choice follows its rows, and keys are those of a terminal."""

from __future__ import annotations

import os
import pty
import termios
from contextlib import suppress

import pytest

from orch_sidecar.tools.top.live import Choice, InvalidDocument, Live, Order, in_flight
from orch_sidecar.tools.top.screen import keys, single_keys
from tests.orch_sidecar.tools.top.live_documents import (
    admitted,
    document,
    ended,
    live,
    pool,
    queued,
)


def test_update_replaces_members_and_merges_requests_that_ended() -> None:
    found = live()
    found.apply("update", {"at": 5, "requests": [ended(2, batch=1.5), ended(3)]})
    assert found.at == 5
    assert [row["number"] for row in found.document["requests"]] == [1, 2, 3]
    assert found.document["requests"][1]["batch"] == 1.5
    found.apply("update", {"at": 6, "pools": [pool("other")]})
    assert [each["name"] for each in found.pools] == ["other"]
    assert len(found.document["requests"]) == 3


def test_hundred_requests_are_kept() -> None:
    found = live()
    found.apply("update", {"requests": [ended(number) for number in range(10, 160)]})
    numbers = [row["number"] for row in found.document["requests"]]
    assert (len(numbers), numbers[-1]) == (100, 159)


def test_snapshot_replaces_everything() -> None:
    found = live()
    found.apply("snapshot", document(pool("new"), requests=[]))
    assert [each["name"] for each in found.pools] == ["new"]
    assert found.document["requests"] == []


def test_update_before_the_first_snapshot_is_ignored() -> None:
    found = Live()
    found.apply("update", {"pools": []})
    assert found.document == {}


@pytest.mark.parametrize("data", [[], None, {"pools": {}}, {}])
def test_what_is_no_document_is_an_error(data: object) -> None:
    with pytest.raises(InvalidDocument):
        Live().apply("snapshot", data)


def test_rows_without_numbers_are_an_error() -> None:
    with pytest.raises(InvalidDocument, match="with numbers"):
        live().apply("update", {"requests": [{}]})


def test_choice_moves_through_rows_and_stops_at_both_ends() -> None:
    found, choice = live(), Choice()
    chosen = []
    for by in (1, 1, 1, 1, 1, -1):
        choice.move_request(found, by)
        chosen.append(choice.request)
    assert chosen == ["running-0", "running-1", "queued-0", "queued-1", "queued-1", "queued-0"]
    choice.request = "gone"
    choice.move_request(found, -1)
    assert choice.request == "queued-1"
    assert choice.request_of(choice.pool_of(found)) is not None


def test_choice_of_a_request_that_ended_is_none() -> None:
    found, choice = live(), Choice(request="queued-0")
    found.apply("update", {"pools": [pool(queue=[], admitted=[])]})
    assert choice.request_of(choice.pool_of(found)) is None
    choice.move_request(found, 1)
    assert choice.request == "queued-0", "there is none to choose"


def test_pools_are_chosen_in_a_circle_and_by_name() -> None:
    found, choice = live(pool("a"), pool("b")), Choice()
    choice.move_pool(found, 1)
    assert choice.pool == "b"
    found.apply("update", {"pools": [pool("b"), pool("a")]})
    assert choice.pool_of(found) is found.pools[0]
    choice.move_pool(found, -1)
    assert choice.pool == "a"
    found.apply("update", {"pools": []})
    assert choice.pool_of(found) is None
    choice.move_pool(found, 1)


def test_requests_are_sorted_as_chosen() -> None:
    rows = pool(
        admitted=[admitted(0, key="b"), admitted(1, key="a", admitted_at=1)],
        queue=[queued(0, key="c", queued_at=0)],
    )
    order = {each: [row["id"] for row in in_flight(rows, each)] for each in Order}
    assert order[Order.STATE] == ["running-0", "running-1", "queued-0"]
    assert order[Order.AGE] == ["queued-0", "running-1", "running-0"]
    assert order[Order.CLASS] == ["queued-0", "running-0", "running-1"]
    assert order[Order.KEY] == ["running-1", "running-0", "queued-0"]
    assert [each.next for each in Order] == [Order.AGE, Order.CLASS, Order.KEY, Order.STATE]


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"q", ["q"]),
        (b"\x1b[A\x1b[Bk", ["up", "down", "k"]),
        (b"\x1bOA\x1bOC\x1b[D", ["up", "right", "left"]),
        (b"\x1b[1;5Aq", ["up", "q"]),
        (b"\x1b[3~q", ["other", "q"]),
        (b"\x1b", ["escape"]),
        (b"\x1bq", ["escape", "q"]),
        (b"\x1b[", ["other"]),
        (b"\t\x1b[Z", ["\t", "left"]),
        ("é✓".encode(), []),
        (b"", []),
    ],
)
def test_keys_are_read(data: bytes, found: list[str]) -> None:
    assert list(keys(data)) == found


def test_terminal_is_restored_also_after_an_error() -> None:
    main, terminal = pty.openpty()
    try:
        before = termios.tcgetattr(terminal)
        with suppress(RuntimeError), single_keys(terminal):
            changed = termios.tcgetattr(terminal)
            assert not changed[3] & (termios.ICANON | termios.ECHO)
            assert changed[3] & termios.ISIG, "Ctrl-C still interrupts"
            raise RuntimeError
        assert termios.tcgetattr(terminal) == before
    finally:
        os.close(main)
        os.close(terminal)

"""Parsing of server-sent events."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_sidecar.wire.event_stream import EventStream

STREAM = (
    b": a comment\n\n"
    b"event: state\ndata: {}\n\n"
    b"event:change\r\ndata:1\r\n\r\n"
    b"id: 5\nretry: 1\ndata: no name\n\n"
    b"event: without data\n\n"
    b"event: two\ndata: a\ndata:  b\n\n"
    b"event: unfinished\ndata: x"
)
EVENTS = [("state", b"{}"), ("change", b"1"), ("", b"no name"), ("two", b"a\n b")]


@given(st.lists(st.integers(0, len(STREAM))))
def test_events_are_the_same_wherever_the_stream_is_cut(cuts: list[int]) -> None:
    stream, at = EventStream(100), 0
    events: list[tuple[str, bytes]] = []
    for cut in [*sorted(cuts), len(STREAM)]:
        events += stream.feed(STREAM[at:cut])
        at = cut
    assert events == EVENTS


@pytest.mark.parametrize(
    "endless",
    [b"x", b"data: 12345678\n", b"data:\n", b"data: " + b"x" * 200 + b"\n\n"],
    ids=["line", "lines of data", "lines of nothing", "one event"],
)
def test_memory_of_an_incomplete_event_is_bounded(endless: bytes) -> None:
    stream = EventStream(100)
    with pytest.raises(ValueError, match="exceeds the limit of 100 bytes"):
        list(chain.from_iterable(stream.feed(endless) for _ in range(200)))


def test_comments_are_not_kept() -> None:
    stream = EventStream(100)
    for _ in range(1000):
        assert list(stream.feed(b": still here\n")) == []
    assert list(stream.feed(b"data: a\n\n")) == [("", b"a")]


def test_name_that_is_not_utf_8_is_an_error() -> None:
    with pytest.raises(ValueError, match="utf-8"):
        list(EventStream(100).feed(b"event: \xff\n"))

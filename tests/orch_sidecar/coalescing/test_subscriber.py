"""Subscribers of a shared response: their heads and errors, and their ids, which are found once and
replaced everywhere, but nowhere else.
"""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_sidecar.api.refusal import Reason
from orch_sidecar.coalescing.broadcast import ResponseId
from orch_sidecar.wire.client_connections import StallWatchdog
from tests.orch_sidecar.answers import PLACES, cut
from tests.orch_sidecar.broadcasting import (
    DONE,
    EVENTS,
    STREAM,
    STREAM_HEAD,
    Client,
    Engine,
    broadcast_of,
    chunk,
    error_in,
    event,
    json_answer,
    json_body,
    stream_for,
)


async def test_id_may_arrive_late_and_before_some_clients() -> None:
    broadcast = broadcast_of()
    first = Client("mine").join(broadcast)
    engine = Engine(broadcast)
    engine.sends(STREAM_HEAD, chunk(b": keep-alive\n\n"))
    second = Client("yours").join(broadcast)
    engine.sends(chunk(event("a")), b"0\r\n\r\n")
    assert first.body == b": keep-alive\n\n" + event("a", "mine")
    assert second.body == b": keep-alive\n\n" + event("a", "yours")


@given(PLACES, st.booleans())
async def test_content_length_follows_from_each_clients_id(places: list[int], http10: bool) -> None:
    broadcast = broadcast_of()
    short, long = Client("a").join(broadcast), Client("b" * 100).join(broadcast, http10=http10)
    pieces = cut(json_answer(json_body("text")), places)
    engine = Engine(broadcast)
    engine.sends(*pieces[:-1])
    assert not short.data, "an answer that is no stream goes out as a whole"
    late = Client("late").join(broadcast)
    engine.sends(pieces[-1])
    for client in (short, long, late):
        got = client.got
        assert got is not None
        assert got.body == json_body("text", client.name)
        assert got.head.length == len(got.body)
        assert not got.head.chunked
        assert got.end
        assert client.ended_well


@pytest.mark.parametrize("status", [b"204 No Content", b"200 OK"])
async def test_response_without_a_body_is_only_a_head(status: bytes) -> None:
    broadcast = broadcast_of()
    client = Client("a").join(broadcast)
    length = b"" if status.startswith(b"204") else b"content-length: 0\r\n"
    Engine(broadcast).sends(b"HTTP/1.1 " + status + b"\r\n" + length + b"\r\n")
    got = client.got
    assert got is not None
    assert got.end
    assert got.field(b"content-length") == (None if status.startswith(b"204") else b"0")
    assert client.ended_well


@pytest.mark.parametrize("half", [b"", chunk(EVENTS[2])[:50], chunk(b"data: half")])
async def test_interrupted_stream_ends_with_an_error_after_the_last_complete_event(
    half: bytes,
) -> None:
    broadcast = broadcast_of()
    new, old = Client("new").join(broadcast), Client("old").join(broadcast, http10=True)
    engine = Engine(broadcast)
    engine.sends(STREAM_HEAD, *map(chunk, EVENTS[:2]), half)
    engine.closes()
    assert engine.ending.answered
    assert not engine.response.unanswered
    for client in (new, old):
        ending = client.ending
        assert ending.answered
        assert ending.failure is not None
        assert client.body.startswith(stream_for(client.name, 2) + b'data: {"error"')
        assert error_in(client.body)["code"] == "engine_failed"
        assert not client.aborted
    assert new.got is not None
    assert new.got.end
    assert new.writer.keep_alive
    assert not old.writer.keep_alive


async def test_slow_client_gets_the_available_bytes_before_the_error() -> None:
    broadcast = broadcast_of()
    fast, slow = Client("fast").join(broadcast), Client("slow", room=10).join(broadcast)
    engine = Engine(broadcast)
    engine.sends(STREAM_HEAD, *map(chunk, EVENTS))
    engine.closes()
    assert fast.subscriber.done.done()
    assert slow.body == stream_for("slow", 1)
    assert not slow.subscriber.done.done()
    slow.read()
    assert slow.body.startswith(stream_for("slow") + b'data: {"error"')
    assert slow.ending.failure is not None


async def test_silent_engine_ends_the_response_of_every_client() -> None:
    broadcast = broadcast_of()
    clients = [Client(name).join(broadcast) for name in "ab"]
    watch = StallWatchdog(engine_silence_s=2.0, client_stall_s=2.0)
    engine = Engine(broadcast)
    for client in clients:
        watch.add(client.writer)
    engine.sends(STREAM_HEAD, chunk(EVENTS[0]))
    for _ in range(3):
        list(watch.check(1.0))
    engine.sends(chunk(EVENTS[1]))
    for _ in range(3):
        list(watch.check(1.0))
    assert not any(client.subscriber.done.done() for client in clients)
    list(watch.check(1.0))
    for client in clients:
        assert error_in(client.body)["code"] == "engine_timeout"
    assert broadcast.abandoned
    assert engine.transport.closed


async def test_only_the_client_that_reads_nothing_is_dropped() -> None:
    broadcast = broadcast_of()
    stalled, reads = Client("stalled", room=10).join(broadcast), Client("reads").join(broadcast)
    watch = StallWatchdog(engine_silence_s=99.0, client_stall_s=2.0)
    watch.add(stalled.writer)
    engine = Engine(broadcast)
    engine.sends(STREAM_HEAD, *map(chunk, EVENTS))
    engine.sends(chunk(DONE) + b"0\r\n\r\n")
    for _ in range(4):
        list(watch.check(1.0))
    assert stalled.aborted
    assert stalled.subscriber.failure is not None
    assert stalled.subscriber.failure.reason is Reason.CLIENT_STALLED
    assert reads.ended_well


async def test_each_client_has_its_own_time_of_the_last_token() -> None:
    """A client that joins late, or reads slowly, gets the last token later."""
    broadcast = broadcast_of()
    client, slow = Client("a"), Client("b")
    for each in (client, slow):
        each.record.stream = True
        each.join(broadcast)
    slow.writer.pause()
    engine = Engine(broadcast)
    engine.sends(STREAM)
    assert client.record.last_token is not None
    assert slow.record.last_token is None
    slow.read()
    assert slow.record.last_token is not None
    assert slow.record.last_token > client.record.last_token


ID = "f00"


def renamed(piece: bytes, name: str, found: ResponseId | None = None) -> bytes:
    response_id = found or ResponseId(ID)
    texts = response_id.split(piece)
    return response_id.field_of(name).join(texts)


@pytest.mark.parametrize("before", ["chatcmpl-", "cmpl-", ""])
@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_id_is_replaced_in_any_json_spelling(before: str, separators: tuple[str, str]) -> None:
    def piece(name: str) -> bytes:
        return json.dumps({"a": 1, "id": before + name, "b": 2}, separators=separators).encode()

    assert renamed(piece(ID) * 2, "longer-id") == piece("longer-id") * 2


@pytest.mark.parametrize(
    "piece",
    [
        b"",
        b'{"id":"chatcmpl-f00d"}',
        b'{"id":"chatcmpl-f00',
        b'{"id":"chatcmpl-other"}',
        b'{"content":"chatcmpl-f00"}',
        b'{"request_id":"chatcmpl-f00"}',
        b'{"content":"\\"id\\":\\"chatcmpl-f00\\""}',
        b'{"id":"' + b"a" * 40 + b'-f00"}',
    ],
)
def test_other_text_is_unchanged(piece: bytes) -> None:
    assert renamed(piece, "mine") == piece


def test_id_is_found_after_something_that_looks_like_it() -> None:
    piece = b'{"user":"cmpl-f00","id":"cmpl-f00"}'
    assert renamed(piece, "mine") == b'{"user":"cmpl-f00","id":"cmpl-mine"}'


def test_id_is_known_from_the_first_piece_that_has_it() -> None:
    response_id = ResponseId(ID)
    response_id.split(b": keep-alive\n\n")
    assert not response_id.is_known
    response_id.split(b'{"id":"cmpl-f00"}')
    assert response_id.is_known
    assert renamed(b"none here", "mine", response_id) == b"none here"


@given(st.text(), st.text(max_size=5))
def test_generated_text_is_never_mistaken_for_the_id(text: str, around: str) -> None:
    looks = f'{around}"id":"chatcmpl-{ID}"{around}'

    def piece(name: str) -> bytes:
        document = {"id": f"chatcmpl-{name}", "text": text + looks}
        return json.dumps(document, separators=(",", ":")).encode()

    assert renamed(piece(ID), "mine") == piece("mine")

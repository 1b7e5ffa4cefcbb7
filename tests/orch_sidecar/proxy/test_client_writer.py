"""Forwarding an engine's response to one client, and parsing it.

A response that breaks: the client gets the error, never a clean end of half of it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_sidecar.api.endpoints import Endpoint
from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.api.usage import MAX_PIECE_BYTES
from orch_sidecar.observability.record import Outcome
from orch_sidecar.wire.http1 import LAST_CHUNK, MAX_BUFFERED_BYTES
from tests.orch_sidecar import apis
from tests.orch_sidecar.answers import PLACES, cut
from tests.orch_sidecar.broadcasting import (
    STREAM_HEAD,
    chunk,
    json_answer,
)
from tests.orch_sidecar.relayed import Relayed
from tests.orch_sidecar.spoken import DONE, SPOKEN, Spoken, sse

CLOSING_HEAD = b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"


def check(spoken: Spoken, relayed: Relayed) -> None:
    assert relayed.response.done.done()
    assert relayed.response.failure is None
    assert relayed.got[1] == spoken.body
    expected = Outcome.ENGINE_ERROR if spoken.failed else Outcome.OK
    assert relayed.response.outcome is expected
    assert relayed.response.answer.counts == spoken.counts


def framed(spoken: Spoken, chunks: list[bytes]) -> bytes:
    if not spoken.stream:
        return json_answer(spoken.body)
    return STREAM_HEAD + b"".join(chunk(each) for each in chunks if each) + LAST_CHUNK


@pytest.mark.parametrize("spoken", SPOKEN, ids=lambda spoken: spoken.name)
async def test_response_is_parsed_wherever_its_last_reads_are_cut(spoken: Spoken) -> None:
    """As vLLM writes it: one chunk per event and one for the end of the body, cut anywhere."""
    events = [each + b"\n\n" for each in spoken.body.split(b"\n\n")[:-1]]
    data = framed(spoken, events)
    head = len(data) - len(spoken.body) if not spoken.stream else len(STREAM_HEAD)
    for at in range(max(head, len(data) - 500), len(data)):
        check(spoken, Relayed(spoken.api, stream=spoken.stream).sends(data[:at], data[at:]))
    each_alone = [STREAM_HEAD, *map(chunk, events), LAST_CHUNK] if spoken.stream else [data]
    check(spoken, Relayed(spoken.api, stream=spoken.stream).sends(*each_alone))


@given(st.sampled_from(SPOKEN), PLACES, PLACES, st.booleans())
async def test_response_is_parsed_however_it_is_chunked_and_cut(
    spoken: Spoken, chunks: list[int], reads: list[int], http10: bool
) -> None:
    data = framed(spoken, cut(spoken.body, chunks))
    relayed = Relayed(spoken.api, stream=spoken.stream, http10=http10).sends(*cut(data, reads))
    check(spoken, relayed)


@given(st.sampled_from([spoken for spoken in SPOKEN if spoken.stream]), PLACES)
async def test_response_that_ends_with_its_connection_is_parsed(
    spoken: Spoken, reads: list[int]
) -> None:
    relayed = Relayed(spoken.api, http10=True).sends(CLOSING_HEAD, *cut(spoken.body, reads))
    check(spoken, relayed.closes())


async def test_large_events_and_responses_are_parsed_without_being_kept() -> None:
    long = "z" * (8 * MAX_BUFFERED_BYTES)
    event = sse(
        {"choices": [{"text": long}], "usage": {"prompt_tokens": 5, "completion_tokens": 3}}
    )
    for body in (event, event + DONE):
        relayed = Relayed()
        data = STREAM_HEAD + chunk(event) + (chunk(DONE) if body != event else b"") + LAST_CHUNK
        for at in range(0, len(data), 50_000):
            relayed.sends(data[at : at + 50_000])
            kept = relayed.response.answer
            assert len(kept._kept) + sum(map(len, kept.content)) <= 2 * MAX_BUFFERED_BYTES
        assert relayed.response.answer.counts == (5, 3, None, None)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 413, 415, 422])
async def test_client_error_is_no_engine_error(status: int) -> None:
    relayed = Relayed().sends(json_answer(b"{}", b"%d No" % status))
    assert relayed.response.outcome is Outcome.CLIENT_ERROR


@pytest.mark.parametrize("status", [408, 429, 499, 500, 501, 503])
async def test_other_error_statuses_are_engine_errors(status: int) -> None:
    relayed = Relayed().sends(json_answer(b"{}", b"%d No" % status))
    assert relayed.response.outcome is Outcome.ENGINE_ERROR


async def test_garbage_after_an_event_leaves_it_incomplete() -> None:
    """Nothing of that read is forwarded, so the client has half an event."""
    relayed = Relayed().sends(STREAM_HEAD + chunk(b"data: x"), chunk(b"\n\n") + b"what?\r\n")
    assert relayed.response.failure is not None
    assert relayed.client.aborted
    assert b"error" not in relayed.client.data


async def test_garbage_after_a_large_chunk_leaves_it_open() -> None:
    size = 2 * MAX_BUFFERED_BYTES
    large = b"data: x\n\n" * (size // 9)
    data = STREAM_HEAD + chunk(large)
    relayed = Relayed().sends(
        data[: len(STREAM_HEAD) + 7 + 9 * 8000],
        data[len(STREAM_HEAD) + 7 + 9 * 8000 :] + b"what?\r\n",
    )
    assert relayed.response.failure is not None
    assert relayed.client.aborted
    assert b"error" not in relayed.client.data


@pytest.mark.parametrize(
    ("http10", "head", "end"),
    [(False, STREAM_HEAD, LAST_CHUNK), (True, STREAM_HEAD, DONE), (False, CLOSING_HEAD, DONE)],
)
async def test_response_fails_once_as_it_is_framed(http10: bool, head: bytes, end: bytes) -> None:
    """Its engine is lost, and before its handler runs the client cancels, or the sidecar ends."""
    event = sse({})
    relayed = Relayed(http10=http10).sends(head, chunk(event) if head is STREAM_HEAD else event)
    relayed.resets()
    data = relayed.client.data
    assert data.endswith(end)
    relayed.writer.fail(Refusal(Reason.CANCELLED, "cancelled"))
    assert relayed.client.data == data
    assert not relayed.client.aborted


@pytest.mark.parametrize("http10", [False, True])
@pytest.mark.parametrize(
    "spoken", [each for each in SPOKEN if each.stream], ids=lambda spoken: spoken.name
)
async def test_stream_is_complete_once_its_last_event_was_sent(
    spoken: Spoken, http10: bool
) -> None:
    """Its body has yet to end when its client cancels, or its engine is lost: no error follows."""
    *before, last = [each + b"\n\n" for each in spoken.body.split(b"\n\n")[:-1]]
    relayed = Relayed(spoken.api, http10=http10).sends(STREAM_HEAD, *map(chunk, before))
    relayed.sends(*cut(chunk(last), [*range(0, len(last), MAX_PIECE_BYTES + 1)])).closes()
    check(spoken, relayed)
    assert relayed.client.data.endswith(last if http10 else chunk(last) + LAST_CHUNK)
    assert not relayed.response.complete, "the engine has to confirm the end of its lease"
    data = relayed.client.data
    relayed.writer.fail(Refusal(Reason.CANCELLED, "cancelled"))
    assert relayed.client.data == data


async def test_large_last_event_leaves_its_chunk_open_until_that_has_ended() -> None:
    last = sse(
        {"type": "response.completed", "text": "x" * 2 * MAX_BUFFERED_BYTES}, "response.completed"
    )
    data = chunk(last)
    relayed = Relayed(apis.RESPONSES).sends(STREAM_HEAD, data[:-9], data[-9:-2]).closes()
    assert relayed.response.failure is not None
    assert relayed.client.aborted
    relayed = Relayed(apis.RESPONSES).sends(STREAM_HEAD, data[:-9], data[-9:]).closes()
    assert relayed.response.failure is None
    assert relayed.got[1] == last


async def test_stream_to_a_client_that_does_not_read_is_not_complete() -> None:
    relayed = Relayed().sends(STREAM_HEAD, chunk(sse({})))
    relayed.sends(chunk(DONE))
    relayed.writer.pause()
    relayed.writer.fail(Refusal(Reason.CLIENT_STALLED, "stalled"))
    assert relayed.response.failure is not None


STREAMS = [spoken for spoken in SPOKEN if spoken.stream and not spoken.failed]


@pytest.mark.parametrize("spoken", STREAMS, ids=lambda spoken: spoken.name)
async def test_last_token_is_the_last_event_with_generated_text(
    spoken: Spoken, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The usage, the end of the message and [DONE] come later, and are no tokens."""
    events = [each + b"\n\n" for each in spoken.body.split(b"\n\n")[:-1]]
    generated = [
        at
        for at, event in enumerate(events)
        if b'"choices":[{' in event or b"_block_delta" in event or b"_text.delta" in event
    ]
    relayed = Relayed(spoken.api).sends(STREAM_HEAD)
    for at, event in enumerate(events):
        monkeypatch.setattr(time, "monotonic_ns", lambda at=at: at)
        relayed.sends(chunk(event))
    relayed.sends(LAST_CHUNK)
    assert relayed.record.last_token == generated[-1]


async def test_response_that_is_not_streamed_has_no_last_token() -> None:
    answer = json_answer(b'{"choices":[{"text":"one"}]}')
    assert Relayed(stream=False).sends(answer).record.last_token is None


FIRST = b'data: {"a": 1}\n\n'


def sends_garbage(relayed: Relayed) -> Relayed:
    return relayed.sends(b"!! not a chunk !!\r\n")


ENDS = [Relayed.closes, Relayed.resets, sends_garbage]

End = Callable[[Relayed], Relayed]


@pytest.mark.parametrize(
    "garbage",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabcdef",
        b"HTTP/1.1 204 No Content\r\ncontent-length: 3\r\n\r\nabc",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: h2c\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70_000,
        b"\x00" * 100_000,
    ],
)
async def test_response_that_is_not_http_can_be_answered_otherwise_and_ends_its_connection(
    garbage: bytes,
) -> None:
    relayed = Relayed(stream=False).sends(garbage)
    failure = relayed.response.failure
    assert failure is not None
    assert failure.reason is Reason.ENGINE_FAILED
    assert "not valid HTTP" in failure.message
    assert relayed.engine.closed
    assert not relayed.writer.started
    assert relayed.client.data == b""


@pytest.mark.parametrize("end", [Relayed.closes, Relayed.resets])
@pytest.mark.parametrize("begun", [b"", b"HTTP/1.1 200 OK\r\ncontent-type: text/ev"])
async def test_response_that_ends_before_its_head_can_be_answered_otherwise(
    begun: bytes, end: End
) -> None:
    relayed = end(Relayed().sends(begun) if begun else Relayed())
    failure = relayed.response.failure
    assert failure is not None
    assert failure.reason is Reason.ENGINE_FAILED
    assert not relayed.writer.started
    assert not relayed.client.aborted


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("api", [apis.CHAT, apis.COMPLETIONS, apis.RESPONSES, apis.MESSAGES])
async def test_stream_that_breaks_between_events_ends_with_an_error_of_its_api(
    api: Endpoint, end: End
) -> None:
    relayed = end(Relayed(api).sends(STREAM_HEAD, chunk(FIRST)))
    first, failed, *rest = relayed.got[1].decode().split("\n\n")
    assert first == 'data: {"a": 1}'
    assert not relayed.client.aborted
    assert relayed.writer.keep_alive, "the framing is whole: the connection may go on"
    if api in (apis.CHAT, apis.COMPLETIONS):
        assert rest == ["data: [DONE]", ""]
        error = json.loads(failed.removeprefix("data: "))["error"]
        found = (error["code"], error["type"], error["retriable"])
        assert found == ("engine_failed", "server_error", True)
        return
    assert rest == [""]
    name, data = failed.split("\n")
    assert name == "event: error"
    document: dict[str, Any] = json.loads(data.removeprefix("data: "))
    assert document["type"] == "error"
    if api is apis.MESSAGES:
        assert document["error"]["type"] == "api_error"
        assert document["error"]["message"]
    else:
        assert document["code"] == "engine_failed"
        assert document["message"]
        assert "param" in document


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize(
    "reads",
    [
        [b"8\r\ndata: {}\r\n"],  # a chunk that ends in the middle of an event
        [b"9\r\ndata: {}\n\r\n"],
        [chunk(FIRST), b"8\r\ndata: {}\r\n"],
        [b"7\r\ndata: x\r\n", b"1\r\n\n\r\n"],  # the line ends, the event does not
        [b"7\r\ndata: x\r\n", b"2\r\n\r\n\r\n"],
    ],
)
async def test_stream_that_breaks_within_an_event_is_aborted(reads: list[bytes], end: End) -> None:
    relayed = end(Relayed().sends(STREAM_HEAD, *reads))
    assert relayed.client.aborted
    assert b"error" not in relayed.client.data


@pytest.mark.parametrize("end", [Relayed.closes, Relayed.resets])
@pytest.mark.parametrize(
    "partial",
    [b"1", b"12", b"12\r", b"12\r\n", b"12\r\ndata: {", b"9\r\ndata: x\n\n", b"0\r\n"],
)
async def test_chunk_that_is_half_sent_when_the_engine_ends_is_held_back(
    partial: bytes, end: End
) -> None:
    """So what went out last ended an event, and the failure can be reported."""
    relayed = end(Relayed().sends(STREAM_HEAD, chunk(FIRST), partial))
    first, failed, *rest = relayed.got[1].decode().split("\n\n")
    assert first == 'data: {"a": 1}'
    assert failed.startswith('data: {"error": ')
    assert rest == ["data: [DONE]", ""]


@pytest.mark.parametrize("end", [Relayed.closes, Relayed.resets])
@pytest.mark.parametrize("line", [b"data: x\n\n", b"data: x\n\n\r\n"])
async def test_large_chunk_that_breaks_is_aborted(line: bytes, end: End) -> None:
    """It is too large to be held back, so half of it has gone out, whatever that ends with."""
    lines = line * (2 * MAX_BUFFERED_BYTES // len(line))
    half = 2 * len(lines)
    relayed = end(Relayed().sends(STREAM_HEAD, chunk(FIRST), b"%x\r\n" % half, lines))
    assert relayed.client.aborted
    assert b'"error"' not in relayed.client.data


@pytest.mark.parametrize("end", [Relayed.closes, Relayed.resets])
@pytest.mark.parametrize(
    "answer",
    [
        b"content-length: 100\r\n\r\n" + b'{"choices": [',
        # No event stream, so nothing can be reported in it, whatever its last bytes look like.
        b"transfer-encoding: chunked\r\n\r\n" + chunk(b'{"choices": [\n\n'),
    ],
)
async def test_answer_that_is_cut_short_is_aborted(answer: bytes, end: End) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
    relayed = end(Relayed(stream=False).sends(head + answer))
    assert relayed.client.aborted
    assert relayed.got[1].startswith(b'{"choices": [')


async def test_answer_that_ends_with_its_connection_is_aborted_if_that_is_reset() -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n"
    relayed = Relayed(stream=False).sends(head + b"half of").resets()
    assert relayed.client.aborted


async def test_http_1_0_client_of_a_broken_stream_gets_the_error_without_chunks() -> None:
    relayed = Relayed(http10=True).sends(STREAM_HEAD, chunk(FIRST)).closes()
    events = relayed.client.data.partition(b"\r\n\r\n")[2].split(b"\n\n")
    assert events[0] == FIRST.strip()
    assert events[1].startswith(b'data: {"error": ')
    assert events[2:] == [b"data: [DONE]", b""]
    half = Relayed(http10=True).sends(STREAM_HEAD, chunk(FIRST), b"8\r\ndata: {}\r\n").closes()
    assert half.client.aborted, "a close would look like the end of the answer"

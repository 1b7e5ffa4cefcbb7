"""A response that breaks: the client gets the error, never a clean end of half of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from orch_sidecar.api.endpoints import Endpoint
from orch_sidecar.api.refusal import Reason
from orch_sidecar.wire.http1 import MAX_BUFFERED_BYTES
from tests.orch_sidecar import apis
from tests.orch_sidecar.broadcasting import STREAM_HEAD, chunk
from tests.orch_sidecar.relayed import Relayed

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

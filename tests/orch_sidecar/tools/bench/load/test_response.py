"""What a connection makes of the bytes that come, however they are cut."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_sidecar.tools.bench.load.call import Call, Fate, Request
from orch_sidecar.tools.bench.load.driver import LoadGenerator
from orch_sidecar.tools.bench.load.endpoint import Endpoint
from orch_sidecar.wire.engine_connection import ConnectionPool, EngineConnection
from tests.orch_sidecar.answers import PLACES, cut
from tests.orch_sidecar.tools.bench.load.test_stream import ANSWER, HEAD
from tests.patience import HANG_S

CHUNKED = HEAD + b"Server-Timing: queue;dur=2.5\r\nTransfer-Encoding: chunked\r\n\r\n"


class Wire(asyncio.Transport):
    """The other end of a connection, which keeps what was written to it."""

    def __init__(self, connection: EngineConnection) -> None:
        super().__init__()
        self._connection = connection
        self.written = b""
        self.closed = False
        connection.connection_made(self)

    def write(self, data: bytes | bytearray | memoryview[int]) -> None:
        self.written += bytes(data)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            asyncio.get_running_loop().call_soon(self._connection.connection_lost, None)

    def is_closing(self) -> bool:
        return self.closed


def chunks(*payloads: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in payloads) + b"0\r\n\r\n"


def running(
    connection: EngineConnection, call: Call, now: Callable[[], float] = lambda: 1.0
) -> tuple[asyncio.Task[None], LoadGenerator]:
    """A request that is sent on this connection."""
    load = LoadGenerator(Endpoint.of("http://127.0.0.1:1"))
    load.now = now  # type: ignore[method-assign]
    load._pool.give_back(connection)
    return asyncio.create_task(load.send(call, Request(b"POST"))), load


async def made_of(parts: Iterable[bytes], *, lost: Exception | bool | None = False) -> Call:
    """The call when these bytes have come, one part a second, and perhaps the end."""
    ticks = count(-1)  # when it is sent
    connection = EngineConnection()
    wire = Wire(connection)
    call = Call(due_s=0.0)
    sending, _ = running(connection, call, lambda: float(next(ticks)))
    await asyncio.sleep(0)
    assert wire.written == b"POST"
    for part in parts:
        connection.data_received(part)
    if not isinstance(lost, bool):
        connection.connection_lost(lost)
    async with asyncio.timeout(HANG_S):
        await sending
    return call


@given(places=PLACES, sizes=st.lists(st.integers(1, 40), max_size=20))
def test_answer_is_the_same_wherever_its_bytes_are_cut(places: list[int], sizes: list[int]) -> None:
    payloads, start = [], 0
    for size in sizes:
        payloads.append(ANSWER[start : start + size])
        start += size
    payloads.append(ANSWER[start:])
    answer = CHUNKED + chunks(*(each for each in payloads if each))
    call = asyncio.run(made_of(part for part in cut(answer, places) if part))
    assert (call.fate, call.why, call.status) == (Fate.ANSWERED, "", 200)
    assert len(call.event_s) == 3
    assert (call.input_tokens, call.output_tokens, call.queue_ms) == (7, 3, 2.5)
    assert list(call.event_s) == sorted(call.event_s)
    assert call.ended_s is not None
    assert call.ended_s >= call.event_s[-1]


async def test_time_of_an_event_is_that_of_its_last_bytes() -> None:
    event = b'data: {"choices":[{"text":"a","finish_reason":null}]}\n\n'
    first, second = chunks(event)[:-5], chunks(event, b"data: [DONE]\n\n")
    call = await made_of([CHUNKED, first, second[:20], second[20:-9], second[-9:]])
    assert list(call.event_s) == [1.0, 3.0]


@pytest.mark.parametrize("last", ['"text":"c"', '"text":""'])
async def test_request_ends_with_its_last_token(last: str) -> None:
    """Not with its usage, [DONE] or the end of HTTP. The last token may be one without a text."""
    event = b'data: {"choices":[{"text":"a","finish_reason":null}]}\n\n'
    final = b'data: {"choices":[{%b,"finish_reason":"stop"}]}\n\n' % last.encode()
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2}}\n\n'
    parts = [chunks(each)[:-5] for each in (event, final, usage, b"data: [DONE]\n\n")]
    call = await made_of([CHUNKED, *parts, b"0\r\n\r\n"])
    assert (call.fate, call.output_tokens, call.ended_s) == (Fate.ANSWERED, 2, 2.0)


async def test_informational_heads_are_passed_over() -> None:
    early = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
    call = await made_of([early + CHUNKED + chunks(ANSWER)])
    assert (call.fate, call.status) == (Fate.ANSWERED, 200)


async def test_without_usage_tokens_are_counted_by_events() -> None:
    uncounted = ANSWER.replace(b'"usage":', b'"user":')
    call = await made_of([CHUNKED + chunks(uncounted)])
    assert (call.output_tokens, call.counted_by_events) == (3, True)
    assert call.input_tokens is None


async def test_response_without_a_stream_has_usage_and_no_first_token() -> None:
    body = b'{"choices":[],"usage":{"prompt_tokens":7,"total_tokens":9,"completion_tokens":2}}'
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    call = await made_of([head % len(body) + body[:10], body[10:]])
    assert (call.fate, call.input_tokens, call.output_tokens) == (Fate.ANSWERED, 7, 2)
    assert list(call.event_s) == []
    assert call.ended_s == 1.0
    assert not call.counted_by_events


async def test_answer_that_ends_with_its_connection_is_whole() -> None:
    call = await made_of([HEAD + b"\r\n" + ANSWER], lost=None)
    assert (call.fate, call.output_tokens) == (Fate.ANSWERED, 3)


@pytest.mark.parametrize(
    ("sent", "lost", "why"),
    [
        (b"", None, "the connection was lost"),
        (CHUNKED[:50], None, "the connection was lost"),
        (CHUNKED + chunks(ANSWER)[:-1], None, "the connection was lost"),
        (HEAD + b"\r\n" + ANSWER, ConnectionResetError(), "the connection was lost"),
        (HEAD + b"\r\n" + ANSWER[:100], None, "the stream ended without [DONE]"),
        (CHUNKED + chunks(ANSWER[:100]), False, "the stream ended without [DONE]"),
        (
            CHUNKED + chunks(b"data: {\n\n", ANSWER),
            False,
            "error in the stream: an event is inv",
        ),
        (CHUNKED + chunks(b'data: {"error":{"code":502}}\n\n'), False, "error in the stream: 502"),
        (b"SSH-2.0-x\r\n\r\n", False, "the response is not valid HTTP: not a status line"),
        (CHUNKED + b"zz\r\n", False, "the response is not valid HTTP: not a chunk size"),
        (
            CHUNKED + chunks(ANSWER) + b"x",
            False,
            "the response is not valid HTTP: there are bytes after",
        ),
    ],
)
async def test_answer_that_is_not_whole_has_failed(
    sent: bytes, lost: Exception | bool | None, why: str
) -> None:
    call = await made_of([sent], lost=lost)
    assert call.fate is Fate.FAILED
    assert call.why.startswith(why)
    assert call.served is None


@pytest.mark.parametrize(
    ("status", "fate", "why"),
    [
        (b"429 Too Many Requests", Fate.REFUSED, "queue_full"),
        (b"503 Service Unavailable", Fate.REFUSED, "queue_full"),
        (b"500 Oops", Fate.FAILED, "status 500: queue_full"),
        (b"400 Bad Request", Fate.FAILED, "status 400: queue_full"),
        (b"307 Temporary Redirect", Fate.FAILED, "status 307: queue_full"),
    ],
)
async def test_other_statuses_are_refusals_and_failures(
    status: bytes, fate: Fate, why: str
) -> None:
    body = b'{"error":{"message":"full","type":"x","code":"queue_full"}}'
    head = b"HTTP/1.1 " + status + b"\r\nContent-Length: %d\r\n\r\n" % len(body)
    call = await made_of([head, body])
    assert (call.fate, call.why) == (fate, why)


async def test_error_that_is_not_json_is_quoted_in_part() -> None:
    body = b"<html>\r\n" + b"Bad gateway " * 50
    call = await made_of([b"HTTP/1.1 502 X\r\nContent-Length: %d\r\n\r\n" % len(body) + body])
    assert call.why == "status 502: " + "<html> " + ("Bad gateway " * 50)[:73]


@pytest.mark.parametrize("timing", [b"queue;dur=nan", b"queue", b"total;dur=1", b"queue;dur=1e9"])
async def test_server_timing_without_a_queue_is_ignored(timing: bytes) -> None:
    call = await made_of([CHUNKED.replace(b"queue;dur=2.5", timing) + chunks(ANSWER)])
    assert call.fate is Fate.ANSWERED
    assert call.queue_ms is None


async def test_call_that_is_cancelled_is_cut_and_its_connection_is_closed() -> None:
    connection = EngineConnection()
    wire = Wire(connection)
    call = Call()
    sending, _ = running(connection, call)
    await asyncio.sleep(0)
    connection.data_received(HEAD + b"\r\n" + ANSWER[:100])  # one that ends with its connection
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    assert (call.fate, wire.closed, connection.open) == (Fate.CUT, True, False)
    await asyncio.sleep(0)  # the loss of the connection is reported, and concerns no request
    assert (call.fate, call.why) == (Fate.CUT, "")


@pytest.mark.parametrize(
    ("field", "more", "kept"),
    [(b"keep-alive", b"", True), (b"close", b"", False), (b"keep-alive", CHUNKED, False)],
)
async def test_connection_is_kept_unless_the_server_closes_it_or_sends_what_nobody_asked_for(
    field: bytes, more: bytes, kept: bool
) -> None:
    connection = EngineConnection()
    Wire(connection)
    sending, load = running(connection, Call())
    await asyncio.sleep(0)
    connection.data_received(
        CHUNKED.replace(b"Server-Timing", b"Connection: " + field + b"\r\nX") + chunks(ANSWER)
    )
    if more:
        connection.data_received(more)
    await sending
    assert connection.open is kept
    assert (load._pool.take() is connection) is kept


async def test_connection_that_was_lost_meanwhile_fails_the_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def acquired(pool: ConnectionPool) -> EngineConnection:
        return EngineConnection()

    monkeypatch.setattr(ConnectionPool, "acquire", acquired)
    call = Call()
    sending, _ = running(EngineConnection(), call)
    await sending
    assert (call.fate, call.why) == (Fate.FAILED, "the connection was lost")

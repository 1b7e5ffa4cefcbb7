"""What is made of the bytes of a response: its events, however they are cut, and its end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_sidecar.tools.bench.load.call import Call, Fate, Request, shown
from orch_sidecar.tools.bench.load.driver import LoadGenerator
from orch_sidecar.tools.bench.load.endpoint import Endpoint
from orch_sidecar.tools.bench.load.response import code_of
from orch_sidecar.wire.engine_connection import ConnectionPool, EngineConnection
from tests.orch_sidecar.answers import PLACES, cut
from tests.patience import HANG_S

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
DONE = b"data: [DONE]\n\n"
USAGE = {"choices": [], "usage": {"prompt_tokens": 7, "total_tokens": 10, "completion_tokens": 3}}


def event(document: Any, separators: tuple[str, str] = (",", ":")) -> bytes:
    return b"data: " + json.dumps(document, separators=separators).encode() + b"\n\n"


def completion(text: str, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": text, "finish_reason": finish}]}


def chat(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


ANSWER = b"".join(
    (
        event(chat(role="assistant", content="")),
        b": the connection is alive\n\n",
        event(chat(content="one\n\nline")),
        event(chat(content="data: [DONE]")),
        event(chat(content="three", finish="length")),
        event(USAGE),
        DONE,
    )
)
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


async def made_of(
    parts: Iterable[bytes], *, lost: Exception | bool | None = False, **more: Any
) -> Call:
    """The call when these bytes have come, one part a second, and perhaps the end."""
    ticks = count(-1)  # when it is sent
    connection = EngineConnection()
    wire = Wire(connection)
    call = Call(due_s=0.0, **more)
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


async def read(*parts: bytes) -> Call:
    """What is read of the events in these bytes, which come one part a second."""
    return await made_of([HEAD + b"\r\n", *parts], lost=None)


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
async def test_counts_alone_bring_no_token(separators: tuple[str, str]) -> None:
    call = await read(event(USAGE, separators) + DONE)
    assert (list(call.event_s), call.ended_s) == ([], 2.0)
    assert (call.input_tokens, call.output_tokens) == (7, 3)


# A text that is held back (half a character, or a special token) is a token all the same: vLLM
# sends the event with an empty text.
@pytest.mark.parametrize(
    ("documents", "tokens"),
    [
        ([chat(role="assistant", content=""), chat(role="assistant")], 0),
        ([chat(role="assistant", content="a")], 1),
        ([chat(reasoning_content="hm"), chat(tool_calls=[{"index": 0}])], 2),
        ([completion(""), chat(content="")], 2),
        ([completion("", "stop"), chat("stop"), chat("stop", content="")], 0),
        ([completion("a", "length"), chat("length", content="a")], 2),
        ([{"choices": None}, {"choices": [{"delta": None, "finish_reason": "stop"}]}], 0),
        ([completion("a") | {"usage": None}], 1),
    ],
)
async def test_events_bring_a_token_unless_they_only_begin_or_end_a_sequence(
    documents: list[Any], tokens: int
) -> None:
    call = await read(*map(event, documents), DONE)
    assert (len(call.event_s), call.input_tokens) == (tokens, None)


async def test_error_in_a_stream_is_reported_by_its_code() -> None:
    error = {"error": {"message": "gone", "type": "engine_gone", "code": 502}}
    call = await read(event(completion("a")) + event(error) + b"data: {\n\n" + DONE)
    assert (len(call.event_s), call.fate) == (1, Fate.FAILED)
    assert call.why == "error in the stream: 502"


@pytest.mark.parametrize(
    "data",
    [
        b"{", b"[]", b"1", b"\xff", b'{"choices":{}}', b'{"choices":[1]}',
        b'{"choices":[{"text":1}]}',
    ],
)  # fmt: skip
async def test_event_of_another_shape_is_an_error(data: bytes) -> None:
    call = await read(b"data: " + data + b"\n\n", DONE)
    assert call.why.startswith("error in the stream: an event is invalid: ")
    assert list(call.event_s) == []


def test_code_of_an_error_is_its_code_else_its_type_else_its_message() -> None:
    error = {"message": "m", "type": "t", "code": "c"}
    for document, code in (
        ({"error": error}, "c"),
        ({"error": error | {"code": None}}, "t"),
        ({"error": {"message": "m"}}, "m"),
        ({"error": "Unauthorized"}, "Unauthorized"),
        ({"detail": "Not Found"}, "{'detail': 'Not Found'}"),
    ):
        assert code_of(json.dumps(document).encode()) == code
    assert code_of(b"") == "an empty response"


def test_server_text_is_one_line_without_control_characters() -> None:
    assert shown("a\x1b[31m\r\n\tb" + "x" * 100, 12) == "a [31m bxxxx"


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
    assert [call.first_s, *call.event_s[1:]] == sorted(call.event_s)
    assert call.ended_s is not None
    assert call.ended_s >= call.event_s[-1]


async def test_time_of_an_event_is_that_of_its_last_bytes() -> None:
    text = event(completion("a"))
    first, second = chunks(text)[:-5], chunks(text, DONE)
    call = await made_of([CHUNKED, first, second[:20], second[20:-9], second[-9:]])
    assert list(call.event_s) == [1.0, 3.0]


@pytest.mark.parametrize(("last", "events_s"), [("c", [1.0, 2.0]), ("", [1.0])])
async def test_request_ends_with_its_last_token(last: str, events_s: list[float]) -> None:
    """Not with its usage, [DONE] or the end of HTTP. The last token may be one without a text."""
    documents = (completion("a"), completion(last, "stop"), USAGE)
    parts = [chunks(each)[:-5] for each in (*map(event, documents), DONE)]
    call = await made_of([CHUNKED, *parts, b"0\r\n\r\n"])
    assert (call.fate, call.output_tokens, call.ended_s) == (Fate.ANSWERED, 3, 2.0)
    assert list(call.event_s) == events_s


async def test_only_the_event_that_finishes_an_answer_is_reported_as_the_last() -> None:
    reported_as_last: list[bool] = []
    documents = (completion("a"), completion("b c", "length"), USAGE)
    await made_of(
        [CHUNKED, chunks(*map(event, documents), DONE)], on_events=reported_as_last.append
    )
    assert reported_as_last == [False, True]


EARLY = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
UNCOUNTED = ANSWER.replace(b'"usage":', b'"user":')
JSON = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
COUNTS = json.dumps(USAGE).encode()


@pytest.mark.parametrize(
    ("sent", "lost", "events", "tokens", "counted_by_events"),
    [
        (EARLY + CHUNKED + chunks(ANSWER), False, 3, (7, 3), False),
        (HEAD + b"\r\n" + ANSWER, None, 3, (7, 3), False),  # it ends with its connection
        (CHUNKED + chunks(UNCOUNTED), False, 3, (None, 3), True),
        (JSON % (len(COUNTS), COUNTS), False, 0, (7, 3), False),
    ],
)
async def test_answer_that_is_whole_has_its_tokens(
    sent: bytes, lost: bool | None, events: int, tokens: object, counted_by_events: bool
) -> None:
    call = await made_of([sent], lost=lost)
    assert (call.fate, call.status, len(call.event_s)) == (Fate.ANSWERED, 200, events)
    assert ((call.input_tokens, call.output_tokens), call.counted_by_events) == (
        tokens,
        counted_by_events,
    )


LOST, CUT = "the connection was lost", "the stream ended without [DONE]"
NO_HTTP = "the response is not valid HTTP: "


@pytest.mark.parametrize(
    ("sent", "lost", "why"),
    [
        (b"", None, LOST),
        (CHUNKED[:50], None, LOST),
        (CHUNKED + chunks(ANSWER)[:-1], None, LOST),
        (HEAD + b"\r\n" + ANSWER, ConnectionResetError(), LOST),
        (HEAD + b"\r\n" + ANSWER[:100], None, CUT),
        (CHUNKED + chunks(ANSWER[:100]), False, CUT),
        (b"SSH-2.0-x\r\n\r\n", False, f"{NO_HTTP}not a status line"),
        (CHUNKED + b"zz\r\n", False, f"{NO_HTTP}not a chunk size"),
        (CHUNKED + chunks(ANSWER) + b"x", False, f"{NO_HTTP}there are bytes after"),
    ],
)
async def test_answer_that_is_not_whole_has_failed(
    sent: bytes, lost: Exception | bool | None, why: str
) -> None:
    call = await made_of([sent], lost=lost)
    assert (call.fate, call.why[: len(why)], call.served) == (Fate.FAILED, why, None)


FULL = b'{"error":{"message":"full","type":"x","code":"queue_full"}}'
PAGE = b"<html>\r\n" + b"Bad gateway " * 50


@pytest.mark.parametrize(
    ("status", "body", "fate", "why"),
    [
        (b"429 Too Many Requests", FULL, Fate.REFUSED, "queue_full"),
        (b"503 Service Unavailable", FULL, Fate.REFUSED, "queue_full"),
        (b"500 Oops", FULL, Fate.FAILED, "status 500: queue_full"),
        (b"400 Bad Request", FULL, Fate.FAILED, "status 400: queue_full"),
        (b"307 Temporary Redirect", FULL, Fate.FAILED, "status 307: queue_full"),
        (b"502 X", PAGE, Fate.FAILED, f"status 502: <html> {('Bad gateway ' * 50)[:73]}"),
    ],
)
async def test_other_statuses_are_refusals_and_failures(
    status: bytes, body: bytes, fate: Fate, why: str
) -> None:
    head = b"HTTP/1.1 " + status + b"\r\nContent-Length: %d\r\n\r\n" % len(body)
    call = await made_of([head, body])
    assert (call.fate, call.why) == (fate, why)


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

"""A shared response without sockets: clients and an engine whose transports are bytes."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

from orch_sidecar.api.refusal import Refusal
from orch_sidecar.coalescing.broadcast import Broadcast
from orch_sidecar.coalescing.subscriber import Subscriber
from orch_sidecar.observability.record import RequestRecord
from orch_sidecar.pools.pool import Pool
from orch_sidecar.proxy.client_writer import ClientWriter
from orch_sidecar.proxy.engine_response import EngineResponse
from orch_sidecar.wire.backpressure import RejectionReader
from orch_sidecar.wire.client_request import ClientRequest, RequestParser
from orch_sidecar.wire.engine_connection import ConnectionPool, EngineConnection
from orch_sidecar.wire.http1 import Head, body_of, parse_head
from orch_sidecar.wire.turn import Turn
from tests.orch_sidecar import records

SHARED_ID = "shared-0123456789abcdef"
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"server: uvicorn\r\ntransfer-encoding: chunked\r\n\r\n"
)


def chunk(payload: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(payload), payload)


def event(text: str, request_id: str = SHARED_ID) -> bytes:
    """A chunk of vLLM's chat stream. `text` is JSON already, less its quotes."""
    line = (
        f'data: {{"id":"chatcmpl-{request_id}","object":"chat.completion.chunk","created":1,'
        f'"model":"tiny","choices":[{{"index":0,"delta":{{"content":"{text}"}}}}]}}\n\n'
    )
    return line.encode()


def json_body(text: str, request_id: str = SHARED_ID) -> bytes:
    body = (
        f'{{"id":"cmpl-{request_id}","object":"text_completion","created":1,"model":"tiny",'
        f'"choices":[{{"index":0,"text":"{text}"}}],'
        f'"usage":{{"prompt_tokens":7,"total_tokens":10,"completion_tokens":3}}}}'
    )
    return body.encode()


def json_answer(body: bytes, status: bytes = b"200 OK", fields: bytes = b"") -> bytes:
    head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\n%bcontent-length: %d\r\n\r\n"
    return head % (status, fields, len(body)) + body


WORDS = ["one ", "two ", "three", "x" * 40]
DONE = b"data: [DONE]\n\n"
EVENTS = [event(word) for word in WORDS]
STREAM = STREAM_HEAD + b"".join(map(chunk, [*EVENTS, DONE])) + b"0\r\n\r\n"


@dataclass(frozen=True)
class Got:
    """What a client has got so far. `end`: nothing can follow in this answer."""

    head: Head
    body: bytes
    end: bool

    def field(self, name: bytes) -> bytes | None:
        return next((value for field, value in self.head.fields if field == name), None)


class Transport(asyncio.Transport):
    """A transport that only remembers."""

    def __init__(self) -> None:
        super().__init__()
        self.data = b""
        self.closed = False
        self.aborted = False
        self.reading = True

    def write(self, data: Any) -> None:
        assert not self.closed, "a write to a transport that is closed"
        self.data += data

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


POOL = cast(
    Pool,
    SimpleNamespace(
        response_fields=b"x-measurement-type: batched_online\r\n",
        response_fields_at_once=b"x-orch-queue-position: 0\r\n",
        admission=SimpleNamespace(draining=None),
        silence_limit_s=lambda: 600.0,
    ),
)


class Ending(NamedTuple):
    """How a response ended. `answered`: with something of it having been sent."""

    failure: Refusal | None
    answered: bool


def record_of(request_id: str, **more: Any) -> RequestRecord:
    ids = {"request_id": request_id, "correlation_id": request_id}
    return records.record_of(**({"stream": True} | ids | more))


def http_of(
    transport: asyncio.Transport,
    *fields: tuple[str, str],
    method: str = "POST",
    target: str = "/v1/chat/completions",
    body: bytes = b"",
    http10: bool = False,
) -> ClientRequest:
    """A request that came whole. `fields`: besides Host and Content-Length."""
    protocol = SimpleNamespace(
        response=None, writing_paused=False, origin_fields={}, transport=transport, turn=Turn()
    )
    head = f"{method} {target} HTTP/1.{0 if http10 else 1}\r\nHost: sidecar\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in fields)
    parser = RequestParser(protocol, 16_384)
    head += f"Content-Length: {len(body)}\r\n\r\n"
    parser.parse(head.encode("utf-8", "surrogateescape") + body)
    [request] = parser.ready
    request.keep_alive = True
    return request


class Client(Transport):
    """A client, and its subscriber. `room`: bytes before its transport is full."""

    def __init__(self, name: str, room: int | None = None) -> None:
        super().__init__()
        self.name = name
        self.room = room
        self.buffered = 0
        self.subscriber: Subscriber = cast(Subscriber, None)
        self.writer: ClientWriter = cast(ClientWriter, None)
        self.record = record_of(name)

    def join(self, broadcast: Broadcast, *, http10: bool = False) -> Client:
        self.writer = ClientWriter(http_of(self, http10=http10), self.record)
        self.subscriber = broadcast.join(self.writer)
        self.subscriber.start()
        return self

    @property
    def ending(self) -> Ending:
        """How the response ended; it has."""
        assert self.subscriber.done.done()
        return Ending(self.subscriber.failure, self.writer.started)

    def write(self, data: Any) -> None:
        super().write(data)
        if self.room is not None:
            self.buffered += len(data)
            if self.buffered > self.room and not self.writer.paused:
                self.writer.pause()

    def read(self, room: int | None = None) -> None:
        """The client takes all that was written. `room`: from now on."""
        self.room, self.buffered = room, 0
        if self.writer.paused:
            self.writer.resume()

    def leave(self) -> None:
        """It disconnects, and its handler ends."""
        self.closed = True
        self.subscriber.close()

    def get_write_buffer_size(self) -> int:
        return self.buffered

    @property
    def got(self) -> Got | None:
        """What the client can make of its bytes. None: not even a head."""
        parsed = parse_head(self.data)
        if parsed is None:
            assert not self.data
            return None
        head, start = parsed
        body = body_of(head, dechunk=True)
        text = body.feed(self.data[start:]) if len(self.data) > start else b""
        return Got(head, text, body.done)

    @property
    def body(self) -> bytes:
        got = self.got
        return b"" if got is None else got.body

    @property
    def ended_well(self) -> bool:
        """Whether it received the end of a complete answer."""
        return self.subscriber.done.done() and self.subscriber.failure is None


class Engine:
    """An engine's connection, and the response that it feeds."""

    def __init__(self, broadcast: Broadcast, *, rejection: RejectionReader | None = None) -> None:
        self.broadcast = broadcast
        self.pool = ConnectionPool("http://127.0.0.1:9", 1.0)
        self.transport = Transport()
        self.connection = EngineConnection()
        self.connection.connection_made(self.transport)
        self.response = EngineResponse(broadcast, self.pool, events=True, rejection=rejection)
        broadcast.attach(self.response, POOL)
        self.response.start(self.connection, b"POST / HTTP/1.1\r\n\r\n")

    def sends(self, *data: bytes) -> None:
        """Each piece comes with a read of its own."""
        for piece in data:
            if self.connection.receiver is not None:
                self.connection.data_received(piece)
        self._detach()

    def closes(self, error: Exception | None = None) -> None:
        self.connection.connection_lost(error)
        self._detach()

    def _detach(self) -> None:
        """As the stages do that wait for the response, and queue the request again."""
        if self.response.done.done():
            self.broadcast.detach()
            if not self.broadcast.started:
                self.broadcast.record.admitted = None

    @property
    def ending(self) -> Ending:
        """How the response ended; it has."""
        assert self.response.done.done()
        return Ending(self.response.failure, self.broadcast.started)

    @property
    def kept(self) -> bool:
        """Whether its connection may serve another request."""
        return self.connection in self.pool._idle


def stream_for(name: str, count: int = len(WORDS)) -> bytes:
    """The first events of `STREAM` as the client of that name is to get them."""
    return b"".join(event(word, name) for word in WORDS[:count])


def whole_for(name: str) -> bytes:
    """All of `STREAM`'s body as the client of that name is to get it."""
    return stream_for(name) + DONE


def error_in(body: bytes) -> dict[str, Any]:
    """The error event that a stream ends with."""
    *_, last, done, rest = body.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    error = json.loads(last.removeprefix(b"data: "))["error"]
    assert isinstance(error, dict)
    return error


def broadcast_of(buffer_bytes: int = 1 << 20) -> Broadcast:
    return Broadcast(record_of(SHARED_ID), buffer_bytes=buffer_bytes)

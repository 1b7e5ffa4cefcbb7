"""The HTTP client of a measurement: sends requests and records when each event arrives.

Timestamps are taken in `data_received`, before any parsing.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any, Final, cast

from orch_sidecar.api import usage
from orch_sidecar.tools.bench.load.call import Call, Fate, Request
from orch_sidecar.tools.bench.load.endpoint import Endpoint
from orch_sidecar.tools.bench.load.stream import EventStream, code_of, shown
from orch_sidecar.wire.http1 import Body, FramingError, Head, body_of, parse_head

# A server may be closing a connection that was idle for longer: vLLM does after 5 s. A request
# sent just then is lost, and a POST is never retried.
REUSE_WITHIN_S: Final = 2.0

# Connections beyond a server's listen backlog (1024 in the sidecar, 128 elsewhere) are dropped by
# its kernel and retried after a second.
CONNECTING_AT_ONCE: Final = 64

_MAX_BODY_BYTES: Final = 65_536  # the end of a response that is not a stream
_MILLISECONDS: Final = re.compile(rb"[0-9]{1,12}(?:\.[0-9]{1,9})?")


class Connection(asyncio.Protocol):
    """One keep-alive connection, which carries one request at a time."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._transport: asyncio.Transport | None = None
        self._call: Call | None = None  # the request in flight
        self._head: Head | None = None
        self._body: Body | None = None
        self._buffer = b""  # an incomplete head
        self._answer = b""  # the body of a response that is not a stream
        self._events: EventStream | None = None
        self._last_token_s: float | None = None
        self._done: asyncio.Future[None] | None = None
        self.idle_since_s = 0.0

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def run(self, call: Call, message: bytes) -> None:
        """Sends a request and returns when it has ended, whatever its outcome.

        Cancellation closes the connection and marks the call as cut.
        """
        if self._transport is None:
            call.fate, call.why, call.ended_s = Fate.FAILED, "the connection was lost", self._now()
            return
        self._call, self._head, self._body, self._events = call, None, None, None
        self._buffer = self._answer = b""
        self._last_token_s = None
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(message)
        try:
            await self._done
        except asyncio.CancelledError:
            self._end(Fate.CUT, "")
            self.close()
            raise

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass

    def data_received(self, data: bytes) -> None:
        at_s = self._now()
        if self._call is None:
            self.close()  # unsolicited data
            return
        try:
            body = self._body
            if body is None:
                body = self._begin(self._call, self._buffer + data)
                if body is None:
                    return
                data = self._buffer
            payload = body.feed(data)
        except FramingError as error:
            self._end(Fate.FAILED, f"the response is not valid HTTP: {error}")
            self.close()
            return
        if payload:
            self._read(self._call, payload, at_s)
        if body.done:
            self._finish(self._call, at_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        body, call = self._body, self._call
        if call is not None and body is not None and not body.delimits_itself and exc is None:
            self._finish(call, self._now())
        else:
            self._end(Fate.FAILED, "the connection was lost")

    def _begin(self, call: Call, data: bytes) -> Body | None:
        self._buffer = data
        parsed = parse_head(data)
        while parsed is not None and parsed[0].status < 200:
            self._buffer = self._buffer[parsed[1] :]
            parsed = parse_head(self._buffer)
        if parsed is None:
            return None
        self._head, start = parsed
        self._buffer = self._buffer[start:]
        call.status = self._head.status
        kind = dict(self._head.fields).get(b"content-type", b"").lower()
        if kind.startswith(b"text/event-stream") and self._head.status == 200:
            self._events = EventStream()
        self._body = body_of(self._head, dechunk=True)
        return self._body

    def _read(self, call: Call, payload: bytes, at_s: float) -> None:
        if self._events is None:
            self._answer = (self._answer + payload)[-_MAX_BODY_BYTES:]
            return
        generated = self._events.generated
        for _ in range(self._events.feed(payload)):
            call.event_s.append(at_s)
        if self._events.generated > generated:
            self._last_token_s = at_s
            if call.on_events is not None:
                call.on_events(call)

    def _finish(self, call: Call, at_s: float) -> None:
        head, events = self._head, self._events
        assert head is not None
        call.queue_ms = _queue_ms(head)
        if head.status in (429, 503):
            self._end(Fate.REFUSED, _code_of(self._answer))
        elif head.status != 200:
            self._end(Fate.FAILED, f"status {head.status}: {_code_of(self._answer)}")
        elif events is None:
            call.input_tokens, call.output_tokens, _, _ = usage.read(self._answer)
            self._end(Fate.ANSWERED, "", at_s)
        else:
            self._finish_stream(call, events, at_s)
        if head.keep_alive and self._body is not None and self._body.delimits_itself:
            self.idle_since_s = self._now()
        else:
            self.close()

    def _finish_stream(self, call: Call, events: EventStream, at_s: float) -> None:
        events.end()
        call.input_tokens, call.output_tokens = events.usage
        if events.error:
            self._end(Fate.FAILED, f"error in the stream: {events.error}")
        elif not events.done:
            self._end(Fate.FAILED, "the stream ended without [DONE]")
        else:
            if call.output_tokens is None and call.event_s:
                call.output_tokens, call.counted_by_events = len(call.event_s), True
            # The usage, [DONE] and the end of HTTP come after the last token.
            last_s = self._last_token_s
            self._end(Fate.ANSWERED, "", at_s if last_s is None else last_s)

    def _end(self, fate: Fate, why: str, at_s: float | None = None) -> None:
        """Records the outcome of the request in flight, if there is one."""
        call, self._call = self._call, None
        if call is None:
            return
        call.fate, call.why = fate, why
        call.ended_s = self._now() if at_s is None else at_s
        if self._done is not None and not self._done.done():
            self._done.set_result(None)


class ConnectionPool:
    """The connections to one endpoint; reuses idle ones."""

    def __init__(self, endpoint: Endpoint, now: Callable[[], float]) -> None:
        self._endpoint = endpoint
        self._now = now
        self._ssl = endpoint.ssl
        self._idle: list[Connection] = []
        self._connecting = asyncio.Semaphore(CONNECTING_AT_ONCE)

    async def run(self, call: Call, request: Request) -> None:
        """Sends a request on an idle connection, or on a new one."""
        connection = self._take_idle()
        if connection is not None:
            call.sent_s = self._now()
        else:
            try:
                async with self._connecting:
                    call.sent_s = self._now()
                    connection = await self._connect()
            except OSError as error:
                call.fate, call.ended_s = Fate.FAILED, self._now()
                call.why = f"connection failed: {shown(error.strerror or str(error))}"
                return
        call.connected = True
        await connection.run(call, request.message)
        _check_length(call, request)
        if connection.open:
            self._idle.append(connection)

    def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    async def _connect(self) -> Connection:
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: Connection(self._now),
            self._endpoint.host,
            self._endpoint.port,
            ssl=self._ssl,
        )
        return connection

    def _take_idle(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.open and self._now() - connection.idle_since_s <= REUSE_WITHIN_S:
                return connection
            connection.close()
        return None


def _check_length(call: Call, request: Request) -> None:
    """Compares the token counts with the request, which supplies an unreported prompt length."""
    if call.fate is not Fate.ANSWERED:
        return
    if call.input_tokens is None:
        call.input_tokens = request.input_tokens
    call.length_as_requested = request.input_tokens in (None, call.input_tokens) and (
        request.output_tokens in (None, call.output_tokens)
    )


def _code_of(answer: bytes) -> str:
    """Returns the error code of a response body, or else the beginning of its text."""
    text = answer.decode(errors="replace")
    try:
        document: Any = json.loads(text)
    except ValueError:
        document = text
    return code_of(document)


def _queue_ms(head: Head) -> float | None:
    """Returns the wait for a slot that a sidecar reports in `Server-Timing`."""
    for part in dict(head.fields).get(b"server-timing", b"").split(b","):
        name, _, value = part.strip().partition(b";dur=")
        if name == b"queue" and _MILLISECONDS.fullmatch(value) is not None:
            return float(value)
    return None

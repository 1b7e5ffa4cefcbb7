"""The client's side of one connection: a request out, and when each part of its answer came.

Times are taken where the bytes arrive, in `data_received`; nothing is parsed there but framing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Final, cast

from orch_sidecar import usage
from orch_sidecar.bench.call import Call, Fate
from orch_sidecar.bench.endpoint import Endpoint
from orch_sidecar.http1 import Body, FramingError, Head, body_of, parse_head

# A server may be closing what was idle for longer than this.
REUSE_WITHIN_S: Final = 2.0

_DONE: Final = b"data: [DONE]"
_KEPT: Final = 65_536  # of the end of an answer, or of an error


class Connection(asyncio.Protocol):
    """One connection, for one request after the other."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._transport: asyncio.Transport | None = None
        self._call: Call | None = None
        self._head: Head | None = None
        self._body: Body | None = None
        self._buffer = b""
        self._event = b""  # an event that has not ended
        self._tail = b""
        self._events = False
        self._done: asyncio.Future[None] | None = None
        self.idle_since_s = 0.0

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def run(self, call: Call, message: bytes) -> None:
        """Sends a request; returns when its answer has ended, however it did.

        Cancelled, it drops the connection, and the call is cut.
        """
        assert self._transport is not None
        self._call, self._head, self._body = call, None, None
        self._buffer = self._event = self._tail = b""
        self._done = asyncio.get_running_loop().create_future()
        call.sent_s = self._now()
        self._transport.write(message)
        try:
            await self._done
        except asyncio.CancelledError:
            self._end(Fate.CUT, "")
            self.close()
            raise
        finally:
            self._call = self._done = None

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass

    def data_received(self, data: bytes) -> None:
        if self._call is None:
            self.close()  # nobody asked for anything
            return
        at_s = self._now()
        try:
            body = self._body
            if body is None:
                body = self._begin(self._buffer + data)
                if body is None:
                    return
                data = self._buffer
            payload = body.feed(data)
        except FramingError as error:
            self._end(Fate.FAILED, f"the answer is not HTTP: {error}")
            self.close()
            return
        if payload:
            self._read(payload, at_s)
        if body.done:
            self._finish()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        body = self._body
        if body is not None and not body.delimits_itself and exc is None:
            self._finish()
        else:
            self._end(Fate.FAILED, "the connection was lost")

    def _begin(self, data: bytes) -> Body | None:
        self._buffer = data
        parsed = parse_head(data)
        while parsed is not None and parsed[0].status < 200:
            self._buffer = self._buffer[parsed[1] :]
            parsed = parse_head(self._buffer)
        if parsed is None:
            return None
        self._head, start = parsed
        self._buffer = self._buffer[start:]
        assert self._call is not None
        self._call.status = self._head.status
        kind = dict(self._head.fields).get(b"content-type", b"").lower()
        self._events = kind.startswith(b"text/event-stream") and self._head.status == 200
        self._body = body_of(self._head, dechunk=True)
        return self._body

    def _read(self, payload: bytes, at_s: float) -> None:
        self._tail = (self._tail + payload)[-_KEPT:]
        if not self._events:
            return
        *whole, self._event = (self._event + payload).split(b"\n\n")
        assert self._call is not None
        for event in whole:
            if has_content(event):
                self._call.event_s.append(at_s)

    def _finish(self) -> None:
        call, head = self._call, self._head
        assert call is not None
        assert head is not None
        call.queue_ms = _queue_ms(head)
        call.input_tokens, call.output_tokens = usage.read(b"", self._tail)
        if head.status in (429, 503):
            self._end(Fate.REFUSED, code_of(self._tail))
        elif head.status != 200:
            self._end(Fate.FAILED, f"status {head.status}: {code_of(self._tail)}")
        elif self._events and usage.failed(b"", self._tail):
            self._end(Fate.FAILED, f"in the stream: {code_of(self._tail)}")
        elif self._events and not self._tail.rstrip().endswith(_DONE):
            self._end(Fate.FAILED, "the stream has no end")
        else:
            self._end(Fate.ANSWERED, "")
        if head.keep_alive and self._body is not None and self._body.delimits_itself:
            self.idle_since_s = self._now()
        else:
            self.close()

    def _end(self, fate: Fate, why: str) -> None:
        call = self._call
        if call is None or call.fate is not Fate.PENDING:
            return
        call.fate, call.why, call.ended_s = fate, why, self._now()
        if self._done is not None and not self._done.done():
            self._done.set_result(None)


class Connections:
    """Connections to one endpoint, kept while they are good to write to."""

    def __init__(self, endpoint: Endpoint, now: Callable[[], float]) -> None:
        self._endpoint = endpoint
        self._now = now
        self._ssl = endpoint.ssl
        self._idle: list[Connection] = []

    async def run(self, call: Call, message: bytes) -> None:
        """One request on a connection of the pool, or on a new one."""
        connection = self._kept()
        if connection is None:
            call.sent_s = self._now()  # for one that finds nobody to connect to
            try:
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: Connection(self._now),
                    self._endpoint.host,
                    self._endpoint.port,
                    ssl=self._ssl,
                )
            except OSError as error:
                call.fate, call.ended_s = Fate.FAILED, self._now()
                call.why = f"no connection: {error.strerror or error}"
                return
        await connection.run(call, message)
        if connection.open:
            self._idle.append(connection)

    def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    def _kept(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.open and self._now() - connection.idle_since_s <= REUSE_WITHIN_S:
                return connection
            connection.close()
        return None


def has_content(event: bytes) -> bool:
    """Whether an event carries generated text: not the end, and not the counts alone."""
    return (
        event.startswith(b"data: ")
        and not event.startswith(_DONE)
        and b'"choices":[]' not in event
        and not event.startswith(b'data: {"error"')
    )


def code_of(answer: bytes) -> str:
    """The code of an OpenAI error, within an answer or a stream; a few words if there is none."""
    start = answer.find(b'{"error"')
    if start < 0:
        return answer[:80].decode(errors="replace").strip() or "an empty answer"
    try:
        document, _ = json.JSONDecoder().raw_decode(answer[start:].decode(errors="replace"))
        error = document["error"]
        return str(error.get("code") or error.get("type") or error.get("message"))[:80]
    except (ValueError, KeyError, AttributeError):
        return "an error"


def _queue_ms(head: Head) -> float | None:
    """The wait for a slot, as a sidecar tells it in `Server-Timing`."""
    for part in dict(head.fields).get(b"server-timing", b"").split(b","):
        name, _, value = part.strip().partition(b";dur=")
        if name == b"queue":
            try:
                return float(value)
            except ValueError:
                return None
    return None

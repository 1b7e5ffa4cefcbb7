"""The response to a client that watches the queue.

While the request is queued, its head goes out, and after it comments, which every client of
server-sent events ignores:

    : queued position=3 start_ms=1200
    : started waited_ms=1180

Then come the engine's events, in chunks of this response. As the status is 200 by now, whatever
else the engine or this sidecar would have answered becomes an error event. A request that is
admitted, or refused, at once gets the response of any other.
"""

from __future__ import annotations

import time
from typing import Final

from aiohttp import web

from orch_sidecar.api.headers import (
    CACHE_CONTROL,
    CONNECTION,
    CONTENT_ENCODING,
    CONTENT_TYPE,
    TRANSFER_ENCODING,
    X_ACCEL_BUFFERING,
    field_line,
    raw,
)
from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.observability.record import Outcome, RequestRecord
from orch_sidecar.pools.pool import Pool
from orch_sidecar.proxy.client_writer import ClientWriter, Source, is_event_stream, response_fields
from orch_sidecar.wire.http1 import LAST_CHUNK, Head

# A line is repeated after this time: the prediction has changed, and proxies close silent streams.
AGAIN_S: Final = 2.0
# Of an answer that is not a stream: more than any error of an engine.
_MOST_BYTES: Final = 65_536

_HEAD: Final = b"".join(
    (
        b"HTTP/1.1 200 OK\r\n",
        field_line(CONTENT_TYPE, "text/event-stream; charset=utf-8"),
        field_line(CACHE_CONTROL, "no-cache"),
        field_line(X_ACCEL_BUFFERING, "no"),  # else nginx keeps the comments to itself
    )
)
_CHUNKED: Final = field_line(TRANSFER_ENCODING, "chunked")
_CLOSE: Final = field_line(CONNECTION, "close")
_CONTENT_ENCODING: Final = raw(CONTENT_ENCODING)


class QueueResponse(ClientWriter):
    """A response that may begin before its request has slots.

    `announced`: it has begun; `chunked`: with chunks of its own. `started`: the engine's events, or
    an error, have begun: no comment may follow, and nothing can be retried.
    """

    __slots__ = ("_again_at", "_answer", "_position", "_running", "announced", "chunked")

    def __init__(self, http: web.BaseRequest, record: RequestRecord) -> None:
        """Raises CancelledError if the client is gone."""
        super().__init__(http, record)
        self.announced = False
        self.chunked = not self.dechunk
        self._position: int | None = None
        self._running = False
        self._again_at = 0.0
        self._answer: list[bytes] | None = None  # of an engine that does not answer with events

    # While the request waits

    def queued(self, pool: Pool, position: int, start_ms: int | None, now: float) -> None:
        """Shows the place in the queue, if it has changed or was last shown a while ago.

        The position that is shown never rises: those that overtake only change the prediction.
        """
        if self.started or self.transport.is_closing():
            return
        head, shown = b"" if self.announced else self._announce(pool), self._position
        if head or shown is None or position < shown or now >= self._again_at or self._running:
            position = position if shown is None else min(shown, position)
            start = "" if start_ms is None else f" start_ms={start_ms}"
            if self._comment(f": queued position={position}{start}\n\n", now, head):
                self._position, self._running = position, False

    def running(self, now: float) -> None:
        """Shows that the request has its slots, once and then at times until the stream begins."""
        if not self.announced or self.started or self.transport.is_closing():
            return
        if not self._running or now >= self._again_at:
            arrived, admitted = self.record.identity.arrived, self.record.admitted
            assert admitted is not None, "it has its slots"
            text = f": started waited_ms={(admitted - arrived) // 10**6}\n\n"
            self._running = self._comment(text, now) or self._running

    def refuse(self, refusal: Refusal) -> bool:
        """Ends the response with an error event. False: it has not begun, so that the client can
        still get a status of its own."""
        if not self.announced:
            return False
        self.started = True
        if not self.transport.is_closing():
            self.end_with(refusal, in_stream=True, chunked=self.chunked)
        return True

    def interrupt(self) -> None:
        """Resets the connection if the response has begun: no other one may follow in it."""
        if self.announced:
            self.abort_client()

    # Sink of an engine's response

    def attach(self, source: Source, pool: Pool) -> None:
        super().attach(source, pool)
        self.running(pool.connections.loop.time())

    def begin(self, head: Head) -> None:
        super().begin(head)
        encoded = any(name == _CONTENT_ENCODING for name, _ in head.fields)
        events = head.status == 200 and is_event_stream(head) and not encoded
        self._answer = None if events else []

    def write(self, data: bytes) -> None:
        if not self.announced or self.transport.is_closing():
            super().write(data)
        elif self._answer is not None:
            if sum(map(len, self._answer)) < _MOST_BYTES:
                self._answer.append(data)
        else:
            self._begin_body()
            self.transport.write(self._framed(data))
            self.wrote(data)

    def finish(self, outcome: Outcome) -> None:
        if not self.announced:
            super().finish(outcome)
            return
        self._begin_body()
        end = b"" if self._answer is None else self._framed(self._error_events(self._answer))
        if not self.transport.is_closing():
            self.transport.write(end + LAST_CHUNK if self.chunked else end)

    def fail(self, refusal: Refusal, *, at_event_boundary: bool | None = None) -> None:
        if not self.announced or at_event_boundary is None:
            super().fail(refusal, at_event_boundary=at_event_boundary)
        elif not self.transport.is_closing():
            self.end_with(refusal, in_stream=at_event_boundary, chunked=self.chunked)

    # Parts

    def _announce(self, pool: Pool) -> bytes:
        """Returns the head, to be sent. `Server-Timing` is not in it: no time is known yet."""
        self.announced = self.dechunk = True
        self.record.status = 200
        if pool.admission.draining:
            self.keep_alive = False
        framing = _CHUNKED if self.chunked else b""
        closing = b"" if self.keep_alive else _CLOSE
        fields = response_fields(self.record, pool)
        return b"".join((_HEAD, framing, closing, fields, b"\r\n"))

    def _comment(self, text: str, now: float, head: bytes = b"") -> bool:
        """Writes a comment, after the head if that is given; returns False, and writes nothing,
        while the client has yet to read others."""
        if not head and self.transport.get_write_buffer_size():
            return False
        self._again_at = now + AGAIN_S
        self.transport.write(head + self._framed(text.encode()))
        return True

    def _begin_body(self) -> None:
        if not self.started:
            self.started = True
            self.record.first_byte = time.monotonic_ns()

    def _framed(self, data: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(data), data) if self.chunked and data else data

    def _error_events(self, answer: list[bytes]) -> bytes:
        """Returns the engine's answer, which is not a stream, as error events."""
        head, form = self._head, self.record.identity.endpoint.error_format
        assert head is not None
        relayed = form.relayed(b"".join(answer)) if head.status >= 400 else None
        if relayed is not None:
            return relayed
        text = f"the engine answered with status {head.status}, and with no stream of events"
        return form.in_stream(Refusal(Reason.ENGINE_FAILED, text))

"""Writes the response to a client that waits in a queue and is shown its place there.

While such a request is queued, the head of its response goes out, and after it comments, which
every client of server-sent events ignores:

    : queued position=3 start_ms=1200
    : started waited_ms=1180

Then come the engine's events. As the status is 200 by now, whatever else the engine or this sidecar
would have answered becomes an error event. A request that is admitted, or refused, at once gets the
response of any other.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

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
from orch_sidecar.proxy.client_writer import (
    ClientWriter,
    Source,
    chunk,
    response_fields,
)
from orch_sidecar.wire.client_request import ClientRequest
from orch_sidecar.wire.forwarding import is_event_stream
from orch_sidecar.wire.http1 import Head

# When a line is repeated: the prediction has changed by then, and proxies close silent streams.
REPEAT_S: Final = 2.0
# The limit of an answer that is not a stream: more than any error of an engine.
_MAX_ANSWER_BYTES: Final = 65_536

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


@dataclass(slots=True)
class _ShownPlace:
    """The place that a client was shown last, and when that is repeated."""

    position: int
    has_slots: bool = False
    repeat_at: float = 0.0


class QueueResponse(ClientWriter):
    """A response that may begin before its request has slots. Once it has begun, no status can
    follow, and its body is framed here; once it has `started`, no comment can follow either."""

    __slots__ = ("_answer", "_shown")

    def __init__(self, http: ClientRequest, record: RequestRecord) -> None:
        """Raises CancelledError if the client is gone."""
        super().__init__(http, record)
        self._shown: _ShownPlace | None = None  # None: it has not begun
        self._answer: list[bytes] | None = None  # an engine's, if it is not a stream of events

    # While the request waits

    @property
    def has_begun(self) -> bool:
        """Whether the client has been shown its place."""
        return self._shown is not None

    def show_place(self, pool: Pool, position: int, start_ms: int | None, now: float) -> None:
        """Shows the place in the queue, if it has changed or was last shown a while ago.

        The position that is shown never rises: those that overtake only change the prediction.
        """
        if self.started or self.transport.is_closing():
            return
        head, shown = b"", self._shown
        if shown is None:
            head, shown = self._queued_head(pool), _ShownPlace(position)
            self._shown = shown
        elif position >= shown.position and now < shown.repeat_at and not shown.has_slots:
            return
        position = min(shown.position, position)
        start = "" if start_ms is None else f" start_ms={start_ms}"
        if self._comment(shown, f": queued position={position}{start}\n\n", now, head):
            shown.position, shown.has_slots = position, False

    def show_slots(self, now: float) -> None:
        """Shows that the request has its slots: at once, and repeatedly until the stream begins."""
        shown = self._shown
        if shown is None or self.started or self.transport.is_closing():
            return
        if not shown.has_slots or now >= shown.repeat_at:
            arrived, admitted = self.record.arrived, self.record.admitted
            assert admitted is not None, "it has its slots"
            text = f": started waited_ms={(admitted - arrived) // 10**6}\n\n"
            shown.has_slots |= self._comment(shown, text, now)

    def refuse(self, refusal: Refusal) -> bool:
        """Ends the response if it has begun. False: the client can still get another status."""
        if self._shown is None:
            return False
        self.started = True
        self.end_with(refusal, in_stream=True, chunked=self.adds_framing)
        return True

    def interrupt(self) -> None:
        """Resets the client's connection if the response has begun: no other one may follow."""
        if self._shown is not None:
            self.abort_client()

    # Sink of an engine's response

    def attach(self, source: Source, pool: Pool) -> None:
        super().attach(source, pool)
        self.show_slots(pool.connections.loop.time())

    def begin(self, head: Head) -> None:
        super().begin(head)
        encoded = any(name == _CONTENT_ENCODING for name, _ in head.fields)
        events = head.status == 200 and is_event_stream(head) and not encoded
        self._answer = None if events or self._shown is None else []

    def begin_unframed(self, head: Head, length: int | None = None) -> None:
        if self._shown is None:
            super().begin_unframed(head, length)
        else:
            self.begin(head)

    def write(self, data: bytes, *, last: bool = False) -> None:
        answer = self._answer
        if answer is None or last or self.transport.is_closing():
            super().write(data, last=last)
        elif sum(map(len, answer)) < _MAX_ANSWER_BYTES:
            answer.append(data)

    def finish(self, outcome: Outcome, last: bytes = b"") -> None:
        if self._answer is not None:
            last = self._error_events(b"".join(self._answer) + last)
        super().finish(outcome, last)

    def cut_short(self, refusal: Refusal, *, at_event_boundary: bool) -> None:
        if self._shown is None:
            super().cut_short(refusal, at_event_boundary=at_event_boundary)
        elif self.started:
            self.end_with(refusal, in_stream=at_event_boundary, chunked=self.adds_framing)

    def start(self) -> bytes:
        if self._shown is None:
            return super().start()
        self.started = True
        self.record.first_byte = time.monotonic_ns()
        return b""

    # Parts

    def _queued_head(self, pool: Pool) -> bytes:
        """Begins the response. `Server-Timing` is not in its head: no time is known yet."""
        self.adds_framing, self.dechunk = not self.dechunk, True
        self.record.status = 200
        if pool.admission.draining:
            self.keep_alive = False
        framing = _CHUNKED if self.adds_framing else b""
        closing = b"" if self.keep_alive else _CLOSE
        fields = response_fields(self.record, pool)
        return b"".join((_HEAD, framing, closing, fields, b"\r\n"))

    def _comment(self, shown: _ShownPlace, text: str, now: float, head: bytes = b"") -> bool:
        """Writes a comment, after the head if that is given; returns False, and writes nothing,
        while the client has yet to read others."""
        if not head and self.transport.get_write_buffer_size():
            return False
        shown.repeat_at = now + REPEAT_S
        line = text.encode()
        self.transport.write(head + (chunk(line) if self.adds_framing else line))
        return True

    def _error_events(self, answer: bytes) -> bytes:
        """Returns the engine's answer, which is not a stream, as error events."""
        head, form = self._head, self.record.endpoint.error_format
        assert head is not None
        relayed = form.relayed(answer) if head.status >= 400 else None
        if relayed is not None:
            return relayed
        text = f"the engine answered with status {head.status}, and with no stream of events"
        return form.in_stream(Refusal(Reason.ENGINE_FAILED, text))

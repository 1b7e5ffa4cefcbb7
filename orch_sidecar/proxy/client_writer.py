"""An engine's answer on its way to the client: bytes in, bytes out.

The head is rewritten once, together with the first bytes of the body; then whole chunks are
passed on as they came, from the engine connection's `data_received` straight to the client's
transport. No task is woken, and nothing is parsed but the framing; the end is read for token
counts and errors. If the engine fails before the head went out, the caller can still answer;
after that the failure is said in the stream if an event has just ended, and otherwise the
connection is aborted: never a clean end of file.

A sidecar below may turn a request away for now, and so may an engine that is about to end. That
is for the queue up here, not for the client: such an answer is held back until its end says
which it is.
"""

from __future__ import annotations

import asyncio

from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.api.usage import MOST_PIECE_BYTES, MOST_PIECES, AnswerReader
from orch_sidecar.observability.record import RequestRecord
from orch_sidecar.proxy.answering import (
    ANSWERED,
    TURNED_AWAY,
    Relayed,
    failure_in_stream,
    final_head,
    head_bytes,
    is_event_stream,
    reset,
)
from orch_sidecar.wire import backpressure as tier
from orch_sidecar.wire.backpressure import TurningAway
from orch_sidecar.wire.engine_connection import ConnectionPool, EngineConnection
from orch_sidecar.wire.forwarding import framed_for, kept
from orch_sidecar.wire.http1 import Body, ChunkedBody, FramingError, Head, LengthBody, body_of


class Relay:
    """One answer. It is the engine connection's receiver, and paused by the client's side.

    `keep_alive`: whether the client's connection may serve another request after it.
    `unanswered`: the connection went before any byte of an answer came.
    `retry_after_ms`: the request was turned away below, and the client knows nothing of it.
    `answer`: what is read of it.
    """

    __slots__ = (
        "_body",
        "_buffer",
        "_client",
        "_connection",
        "_content",
        "_extra",
        "_head",
        "_head_sent",
        "_held",
        "_http10",
        "_pool",
        "_turned_away",
        "answer",
        "done",
        "keep_alive",
        "paused",
        "reads",
        "record",
        "retry_after_ms",
        "unanswered",
        "was_paused",
    )

    def __init__(
        self,
        client: asyncio.Transport,
        pool: ConnectionPool,
        record: RequestRecord,
        extra: bytes,
        http10: bool,
        keep_alive: bool,
        turned_away: TurningAway | None = None,
    ) -> None:
        """`extra`: fields of ours for the answer. `turned_away`: says
        of an answer whether the request was turned away below, and can wait up here."""
        self._client = client
        self._pool = pool
        self._connection: EngineConnection | None = None
        self._extra = extra
        self._http10 = http10
        self.keep_alive = keep_alive
        self._head: Head | None = None
        self._head_sent = False
        self._turned_away = turned_away
        self._held: bytes | None = None
        self._body: Body | None = None
        self._buffer = b""
        self.record = record
        self.answer = AnswerReader(events=record.stream)
        self._content = self.answer.content
        self.paused = self.was_paused = False
        self.unanswered = False
        self.retry_after_ms: int | None = None
        self.reads = 0
        self.done: asyncio.Future[Relayed] = pool.loop.create_future()

    def start(self, connection: EngineConnection, *request: bytes) -> None:
        """Sends the request, whose parts these are; from here on the answer flows."""
        self._connection = connection
        connection.send(self, *request)

    @property
    def progress(self) -> tuple[int, int]:
        """Changes whenever bytes come from the engine, or go to a client that is behind."""
        return self.reads, self._client.get_write_buffer_size() if self.paused else 0

    def stop(self) -> None:
        """The client is gone, or this took too long: closes the engine's connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def abort_client(self) -> None:
        """Drops the client's connection by a reset."""
        reset(self._client)

    # Back-pressure, from the client's transport.

    def pause(self) -> None:
        self.paused = self.was_paused = True
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        self.paused = False
        if self._connection is not None:
            self._connection.resume()

    # Receiver, from the engine's connection.

    def received(self, data: bytes) -> None:
        self.reads += 1
        content = self._content
        before = len(content)
        if self._client.is_closing():
            self.stop()  # its handler is being cancelled and has yet to run
            return
        try:
            body = self._body
            if body is None:
                data = self._buffer + data
                body = self._begin(data)
                if body is None:
                    return
                data = self._buffer
                self._buffer = b""
            out = body.feed(data)
        except FramingError as error:
            del content[before:]  # what came together with that is not passed on
            self.fail(Refusal(Reason.ENGINE_FAILED, f"the engine's answer is not HTTP: {error}"))
            return
        if out:
            self._write(out)
        if body.done:
            self._finish(body)
        elif before >= MOST_PIECES or len(data) > MOST_PIECE_BYTES:
            self.answer.fold()

    def lost(self, error: Exception | None) -> None:
        self._connection = None
        body = self._body
        if body is not None and not body.delimits_itself and error is None:
            self._finish(body)
            return
        cause = f": {error}" if error else ""
        self.unanswered = not self.reads
        self.fail(
            Refusal(
                Reason.ENGINE_FAILED,
                f"the engine closed the connection before its answer was complete{cause}",
            )
        )

    def fail(self, refusal: Refusal) -> None:
        """The answer cannot be completed: says so as well as is still possible."""
        if self.done.done():
            return
        # Set here: aborting the client cancels the handler that would set it.
        self.record.outcome = refusal.reason
        self.stop()
        self.done.set_result(Relayed(refusal, answered=self._head_sent))
        if self._head_sent and not self._client.is_closing():
            if self._at_event_boundary():
                chunked = isinstance(self._body, ChunkedBody)
                form = self.record.endpoint.error_format
                self._client.write(failure_in_stream(form, refusal, chunked=chunked))
            else:
                self.keep_alive = False
                self.abort_client()

    def _begin(self, data: bytes) -> Body | None:
        """Takes the head off `data`, leaves the rest in the buffer."""
        head, self._buffer = final_head(data)
        if head is None:
            return None
        self._head = head
        self._body = body_of(head, dechunk=self._http10, content=self._content)
        if self._turned_away is not None and head.status in tier.TURNING_AWAY:
            self._held = b""
        return self._body

    def _write(self, out: bytes) -> None:
        if self._held is not None:
            out = self._held + out
            if len(out) <= tier.MOST_BYTES:
                self._held = out
                return
            self._held = None
        if not self._head_sent:
            # Only a piece of a chunked body may be empty; the first byte is a real one.
            out = self._head_bytes() + out
        self._client.write(out)

    def _head_bytes(self) -> bytes:
        head = self._head
        assert head is not None
        self._head_sent = True
        if not framed_for(head, self._http10):
            self.keep_alive = False  # the end of the connection is the end of the body
        fields = kept(head, self._http10)
        return head_bytes(fields, head.status, self.record, self._extra, self.keep_alive)

    def _finish(self, body: Body) -> None:
        head, connection = self._head, self._connection
        assert head is not None
        if self._held is not None and self._turned_away is not None:
            self.retry_after_ms = self._turned_away(head, self._held)
        turned_away = self.retry_after_ms is not None
        if not turned_away and not self._head_sent and not self._client.is_closing():
            self._client.write(self._head_bytes() + (self._held or b""))
        self._connection = None
        if connection is not None:
            if self.paused:
                connection.resume()
            if head.keep_alive and body.delimits_itself:
                self._pool.give_back(connection)
            else:
                connection.close()
        self.done.set_result(TURNED_AWAY if turned_away else ANSWERED)

    def _at_event_boundary(self) -> bool:
        head, body = self._head, self._body
        assert head is not None
        if isinstance(body, LengthBody) or not is_event_stream(head):
            return False
        if isinstance(body, ChunkedBody) and body.within_chunk:
            return False
        return self.answer.at_event_boundary

"""An engine's answer on its way to several clients: bytes in, whole events out.

The receiver of one engine connection, for a fanout as a relay is for one client. As long as
nothing has been passed on, its end is only told to who waits for it: another engine can still
be asked, and the clients need not know.
"""

from __future__ import annotations

import asyncio

from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.api.usage import AnswerReader
from orch_sidecar.coalescing.broadcast import Broadcast
from orch_sidecar.proxy.answering import ANSWERED, TURNED_AWAY, Relayed, final_head, is_event_stream
from orch_sidecar.wire import backpressure as tier
from orch_sidecar.wire.backpressure import TurningAway
from orch_sidecar.wire.engine_connection import ConnectionPool, EngineConnection
from orch_sidecar.wire.http1 import Body, FramingError, Head, body_of


class Decode:
    """One attempt at an answer. `done`: how it ended, for the engine; clients may be behind.

    `unanswered`: the connection went before any byte of an answer came.
    `retry_after_ms`: the request was turned away below, and the clients know nothing of it.
    """

    __slots__ = (
        "_body",
        "_connection",
        "_events",
        "_fanout",
        "_head",
        "_held",
        "_paused",
        "_pool",
        "_reads_before",
        "_turned_away",
        "done",
        "retry_after_ms",
        "unanswered",
        "was_paused",
    )

    def __init__(
        self, fanout: Broadcast, pool: ConnectionPool, *, turned_away: TurningAway | None = None
    ) -> None:
        """`turned_away`: says of an answer whether the request was turned away below, and can
        wait up here."""
        self._fanout = fanout
        self._pool = pool
        self._turned_away = turned_away
        self._reads_before = fanout.log.reads  # of attempts before this one
        self._connection: EngineConnection | None = None
        self._head: Head | None = None
        self._body: Body | None = None
        self._events = False  # it is a stream, and every piece so far ended with a whole event
        self._held = b""  # the beginning of the head, of an event, or of an answer that is none
        self._paused = self.was_paused = False
        self.unanswered = False
        self.retry_after_ms: int | None = None
        self.done: asyncio.Future[Relayed] = pool.loop.create_future()

    @property
    def status(self) -> int:
        """The engine's status; 0 while it has said none."""
        return 0 if self._head is None else self._head.status

    @property
    def reads(self) -> int:
        """How often bytes came: in a stream, about once per token."""
        return self._fanout.log.reads

    @property
    def answer(self) -> AnswerReader:
        """What is read of the answer."""
        return self._fanout.answer

    def start(self, connection: EngineConnection, *request: bytes) -> None:
        """Sends the request, whose parts these are; from here on the answer flows."""
        self._connection = connection
        self._fanout.source = self
        connection.send(self, *request)

    def stop(self) -> None:
        """Nobody wants it any more, or it cannot go on: closes the engine's connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # Back-pressure, from the fanout.

    def pause(self) -> None:
        if self._connection is not None:
            self._paused = self.was_paused = True
            self._connection.pause()

    def resume(self) -> None:
        if self._connection is not None:
            self._paused = False
            self._connection.resume()

    # Receiver, from the engine's connection.

    def received(self, data: bytes) -> None:
        self._fanout.log.reads += 1
        try:
            body = self._body
            if body is None:
                body = self._begin(self._held + data)
                if body is None:
                    return
                data, self._held = self._held, b""
            payload = body.feed(data)
        except FramingError as error:
            self.fail(Refusal(Reason.ENGINE_FAILED, f"the engine's answer is not HTTP: {error}"))
            return
        if body.done:
            self._finish(body, payload)
        elif payload:
            held = self._held + payload
            cut = len(held) if self._events and held.endswith(b"\n\n") else self._cut(held)
            self._held = held[cut:]
            if cut:
                self._fanout.append(held[:cut])

    def lost(self, error: Exception | None) -> None:
        self._connection = None
        body = self._body
        if body is not None and not body.delimits_itself and error is None:
            self._finish(body, b"")
            return
        cause = f": {error}" if error else ""
        self.unanswered = self._fanout.log.reads == self._reads_before
        self.fail(
            Refusal(
                Reason.ENGINE_FAILED,
                f"the engine closed the connection before its answer was complete{cause}",
            )
        )

    def fail(self, refusal: Refusal) -> None:
        """The answer cannot be completed. Clients are told if they have got anything of it."""
        if self.done.done():
            return
        self.stop()
        answered = not self._fanout.untouched
        self.done.set_result(Relayed(refusal, answered))
        if answered:
            self._fanout.fail(refusal)

    def _begin(self, data: bytes) -> Body | None:
        """Takes the head off `data`; what is left is held."""
        head, self._held = final_head(data)
        if head is None:
            return None
        if head.status not in tier.TURNING_AWAY:
            self._turned_away = None
        self._head = head
        self._events = is_event_stream(head) and self._turned_away is None
        self._fanout.log.begin(head, events=self._events)
        self._body = body_of(head, dechunk=True)
        return self._body

    def _cut(self, held: bytes) -> int:
        """How much may go out: whole events, of an answer of another kind nothing before its end.

        If that is longer than what may be retained, it goes out in parts between which no id
        can be: an id has no comma.
        """
        if self._events:
            end, crlf_end = held.rfind(b"\n\n"), held.rfind(b"\r\n\r\n")
            if end >= 0 or crlf_end >= 0:
                return max(end + 2, crlf_end + 4 if crlf_end >= 0 else 0)
        if len(held) <= self._fanout.buffer_bytes:
            return 0
        self._events = False
        self._fanout.log.in_parts()
        return held.rfind(b",") + 1 or len(held)

    def _finish(self, body: Body, payload: bytes) -> None:
        """The answer is complete, with `payload` at its end."""
        head, connection = self._head, self._connection
        assert head is not None
        self._connection = None
        if connection is not None:
            if self._paused:
                connection.resume()
            if head.keep_alive and body.delimits_itself:
                self._pool.give_back(connection)
            else:
                connection.close()
        last, self._held = self._held + payload, b""
        turned_away = self._turned_away if self._fanout.untouched else None
        if turned_away is not None and len(last) <= tier.MOST_BYTES:
            self.retry_after_ms = turned_away(head, last)
        if self.done.done():
            return  # who waited for it is gone
        if self.retry_after_ms is not None:
            self.done.set_result(TURNED_AWAY)
        else:
            self.done.set_result(ANSWERED)
            self._fanout.finish(last)

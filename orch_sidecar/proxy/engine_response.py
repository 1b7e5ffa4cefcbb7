"""Parses an engine's response once and writes it to a sink: one client, or several.

From the engine connection's `data_received` the body goes to the sink as it comes: no task is
woken, and only the framing is parsed; the content is read for token counts and errors. If the
engine fails before the sink has sent anything, the request can still be answered otherwise.

The response of an idle request is held until it is complete, so that the request can be aborted and
run again at any time before; one that becomes too long for the memory is not.

An upstream may reject a request for now: a child sidecar that is full, or an engine about to stop.
What may be such a response is withheld until its end, because a rejection concerns the queue of
this sidecar, not the client.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.api.usage import MAX_PIECE_BYTES, MAX_PIECES, AnswerReader
from orch_sidecar.observability.record import (
    CLIENT_ERROR,
    ENGINE_ERROR,
    OK,
    Outcome,
    RequestRecord,
)
from orch_sidecar.pools.pool import Pool
from orch_sidecar.wire import backpressure
from orch_sidecar.wire.backpressure import RejectionReader
from orch_sidecar.wire.engine_connection import ConnectionPool, EngineConnection
from orch_sidecar.wire.http1 import (
    LAST_CHUNK,
    Body,
    ChunkedBody,
    FramingError,
    Head,
    LengthBody,
    body_of,
    parse_head,
)
from orch_sidecar.wire.turn import Turn

# 4xx that are not the client's mistake: timeouts, overload, cancelled upstream.
_NOT_CLIENT_ERRORS: Final = frozenset({408, 425, 429, 499})


# Of a body that has arrived with its head: nothing is left to parse.
_WHOLE: Final[Body] = LengthBody(0)
_BODILESS: Final = frozenset({204, 304})

# A stream with more events rests between two reads: a read and its write cost as much for one event
# as for several. No engine decodes as fast; some write faster what they have.
FAST_PER_S: Final = 4000.0

# The longest response of an idle request that is held: some ten thousand events.
MAX_HELD_BYTES: Final = 4_194_304


class Sink(Protocol):
    """Receives an engine's response."""

    __slots__ = ()
    dechunk: bool  # it takes the content of a chunked body, not its framing
    started: bool  # a client has part of the response, or will: it cannot be retried
    keep_alive: bool  # the client's connection may serve another request afterwards

    def attach(self, source: EngineResponse, pool: Pool) -> None:
        """Prepares for the response of `source`, which this pool's engine is about to give."""

    def detach(self) -> None:
        """Ends what `attach` began: no more of that response will come."""

    def begin(self, head: Head) -> None:
        """Takes the head of the response; sends nothing yet."""

    def write(self, data: bytes) -> None:
        """Takes a part of the body; from here on the response is `started`."""

    def finish(self, outcome: Outcome) -> None:
        """Ends the response, which is complete."""

    def cut_short(self, refusal: Refusal, *, at_event_boundary: bool) -> None:
        """Ends the response, which is not complete: its source has failed. `at_event_boundary`:
        the last event that was written is whole, so that the error can follow as another one."""


class EngineResponse:
    """One response of an engine: the receiver of its connection.

    `status`: 0 before the head has arrived. `complete`: the engine has finished, so the request's
    lease can be released. `failure`: why it has not. `unanswered`: the connection was lost before
    any byte of a response. `rejected`: how the upstream rejected the request for now; the sink has
    nothing of it. `client_limited`: the sink paused the engine. `reads`: in a stream, about one per
    token.
    """

    __slots__ = (
        "_body",
        "_buffer",
        "_connection",
        "_connections",
        "_content",
        "_folded_at",
        "_head",
        "_holds",
        "_is_fast",
        "_paused",
        "_rejection",
        "_sink",
        "_withheld",
        "answer",
        "client_limited",
        "complete",
        "done",
        "failure",
        "outcome",
        "reads",
        "rejected",
        "status",
        "unanswered",
    )

    def __init__(
        self,
        sink: Sink,
        connections: ConnectionPool,
        events: bool,
        rejection: RejectionReader | None = None,
        holds: bool = False,
    ) -> None:
        """`events`: a stream was requested. `rejection`: reads temporary rejections. `holds`: the
        sink gets nothing before the response is complete."""
        self._sink = sink
        self._connections = connections
        self._rejection = rejection
        self._connection: EngineConnection | None = None
        self._head: Head | None = None
        self._body: Body | None = None
        self._buffer = b""  # the beginning of the head
        self._withheld: bytearray | None = None
        self._holds = holds
        self._paused = self.client_limited = self._is_fast = False
        self._folded_at: float | None = 0.0 if events else None
        self.answer = AnswerReader(events)
        self._content = self.answer.content
        self.complete = False
        self.outcome: Outcome = ENGINE_ERROR
        self.failure: Refusal | None = None
        self.unanswered = False
        self.rejected: backpressure.Rejection | None = None
        self.status = 0
        self.reads = 0
        self.done: asyncio.Future[None] = asyncio.Future()  # faster than the loop makes it

    @property
    def is_unseen(self) -> bool:
        """Whether the engine runs the request, and its client has seen nothing of the response."""
        return self._connection is not None and not (self.done.done() or self._sink.started)

    def generated_tokens(self, record: RequestRecord) -> int | None:
        """Returns how many tokens the request of this record has so far; None: unknown."""
        reported = self.answer.counts[1]
        failed = self.status >= 400  # its answer is no stream, and no token
        if reported is not None or failed or not record.stream:
            return reported
        per_sequence = max(1, self.reads - 1)  # a stream without usage: a read per token
        if record.max_tokens is not None:
            per_sequence = min(per_sequence, record.max_tokens)
        return record.cost * per_sequence

    def start(
        self,
        connection: EngineConnection,
        head: bytes,
        body: bytes | memoryview = b"",
        turn: Turn | None = None,
    ) -> None:
        """Sends the request; from here on the response flows."""
        self._connection = connection
        if self._paused:
            connection.pause()
        connection.send(self, head, body, turn)

    def stop(self) -> None:
        """Closes the engine's connection, unless the response is complete."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def pause(self) -> None:
        """Stops reading from the engine."""
        self._paused = self.client_limited = True
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        """Reads from the engine again."""
        self._paused = False
        if self._connection is not None:
            self._connection.resume()

    def end_rest(self) -> None:
        """Reads from the engine again after a rest, unless the sink has stopped that."""
        if self._connection is not None and not self._paused:
            self._connection.resume()

    def fail(self, refusal: Refusal) -> None:
        """Ends the response with an error, as visibly as the sink's state permits; without one if
        the sink already has the last event of a stream."""
        if self.done.done() or self.finish_early():
            return
        self.failure = refusal
        self.stop()
        self.done.set_result(None)
        if self._sink.started:
            body = self._body
            within = isinstance(body, ChunkedBody) and body.within_chunk
            boundary = not within and self.answer.at_event_boundary
            self._sink.cut_short(refusal, at_event_boundary=boundary)

    def finish_early(self) -> bool:
        """Ends a stream whose last event the sink has, before the engine has ended the body.
        Returns whether it did. The engine has to confirm the end of the request's lease."""
        if self.done.done() or not self._end_early():
            return False
        if isinstance(self._body, ChunkedBody):
            self._sink.write(LAST_CHUNK)
        self.done.set_result(None)
        self._sink.finish(self.outcome)
        return True

    def abandon(self) -> None:
        """Ends it: its handler is gone, as its client is, which may have the last event."""
        if self._connection is not None:  # else it had gone before something was written
            self._end_early()
        self.stop()

    def _end_early(self) -> bool:
        """Stops a stream of which the sink has the last event; returns whether it has."""
        body = self._body
        if self._paused or not self._sink.started or self.status != 200:
            return False
        if isinstance(body, LengthBody) or (isinstance(body, ChunkedBody) and body.within_chunk):
            return False
        if not self.answer.finished:
            return False
        self.stop()
        self.answer.end()
        self.outcome = ENGINE_ERROR if self.answer.failed else OK
        return True

    # Receiver of the engine's connection

    def received(self, data: bytes) -> None:
        self.reads += 1
        content = self._content
        before = len(content)
        try:
            body = self._body
            if body is None:
                begun = self._begin(self._buffer + data if self._buffer else data)
                if begun is None:
                    return
                body, data = begun
            out = data if body is _WHOLE else body.feed(data)
        except FramingError as error:
            del content[before:]  # nothing that came with invalid framing is passed on
            text = f"the engine's response is not valid HTTP: {error}"
            self.fail(Refusal(Reason.ENGINE_FAILED, text))
            return
        if out:
            if self._withheld is not None:
                self._withhold(out)
            else:
                self._sink.write(out)
        if body.done:
            self._finish(body)
        elif self._is_fast or before >= MAX_PIECES or len(data) > MAX_PIECE_BYTES:
            self._go_on(before >= MAX_PIECES or len(data) > MAX_PIECE_BYTES)

    def lost(self, error: Exception | None) -> None:
        self._connection = None
        body = self._body
        if body is not None and not body.delimits_itself and error is None:
            self._finish(body)
            return
        cause = f": {error}" if error else ""
        self.unanswered = not self.reads
        text = f"the engine closed the connection before its response was complete{cause}"
        self.fail(Refusal(Reason.ENGINE_FAILED, text))

    def _go_on(self, folds: bool) -> None:
        """Folds the answer, and rests if its events come faster than anybody looks at them."""
        if folds:
            since = self._folded_at
            if since is not None:
                events, self._folded_at = len(self._content), self._connections.loop.time()
                self._is_fast = events > (self._folded_at - since) * FAST_PER_S
            self.answer.fold()
        if self._is_fast and self._connection is not None:
            self._connections.rest(self._connection, self.end_rest)

    def _begin(self, data: bytes) -> tuple[Body, bytes] | None:
        """Takes the final head off what has arrived. Returns the body, and what is there of it.
        None: the head is not complete yet."""
        while (parsed := parse_head(data)) is not None:
            head, start = parsed
            data = data[start:]
            if head.status < 200:
                if head.status == 101:
                    raise FramingError("the engine switches protocols")
                continue
            self._head, self._buffer = head, b""
            self.status = head.status
            if self._holds or (
                self._rejection is not None and head.status in backpressure.REJECTION_STATUSES
            ):
                self._withheld = bytearray()
            self._sink.begin(head)
            if self._folded_at is not None:
                self._folded_at = self._connections.loop.time()
            body: Body
            if head.length == len(data) and data and head.status not in _BODILESS:
                self._content.append(data)
                body = _WHOLE
            else:
                body = body_of(head, dechunk=self._sink.dechunk, content=self._content)
            self._body = body
            return body, data
        self._buffer = data
        return None

    def _withhold(self, out: bytes) -> None:
        """Withholds a part of what may be a rejection, or may be aborted, until it is too long."""
        withheld = self._withheld
        assert withheld is not None, "it is only called while something is withheld"
        withheld += out
        if len(withheld) > (MAX_HELD_BYTES if self._holds else backpressure.MAX_REJECTION_BYTES):
            self._withheld = None
            self._sink.write(bytes(withheld))

    def _finish(self, body: Body) -> None:
        """Ends the response, which is complete, and reads whether it is a rejection."""
        head, connection = self._head, self._connection
        assert head is not None
        self._connection = None
        self.complete = True
        if connection is not None:
            if self._paused:
                connection.resume()
            if head.keep_alive and body.delimits_itself:
                self._connections.give_back(connection)
            else:
                connection.close()
        if self.done.done():
            return  # it failed, or its handler is gone
        status, withheld = head.status, self._withheld
        rejects = withheld is not None and status in backpressure.REJECTION_STATUSES
        if rejects and self._rejection is not None:
            self.rejected = self._rejection(head, bytes(withheld or b""))
        if self.rejected is None:
            self.answer.end()
            if status < 400:
                self.outcome = ENGINE_ERROR if self.answer.failed else OK
            elif status < 500 and status not in _NOT_CLIENT_ERRORS:
                self.outcome = CLIENT_ERROR
            if withheld:
                self._sink.write(bytes(withheld))
            # First: it completes the record, which subscribers copy when the sink has finished.
            self.done.set_result(None)
            self._sink.finish(self.outcome)
        else:
            self.done.set_result(None)

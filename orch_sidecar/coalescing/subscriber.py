"""Writes a shared response to one client, at the client's own pace.

Reads the broadcast's log, and writes whole events only, so that a failure can become an event of
the stream at any time.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from orch_sidecar.api.refusal import Refusal
from orch_sidecar.observability.record import Outcome, RequestRecord
from orch_sidecar.pools.pool import Pool
from orch_sidecar.proxy.client_writer import ClientWriter, response_fields
from orch_sidecar.wire.http1 import Head

# Written at once to a client that is behind: as much as its transport takes before it is full.
_WRITE_BYTES: Final = 65_536


class ResponseLog:
    """The retained part of a response that is being produced."""

    __slots__ = ("ended", "events", "failure", "first", "head", "pieces", "size", "whole")

    def __init__(self) -> None:
        # The weight of a piece in bytes, and its text around each place of the response id.
        self.pieces: list[tuple[int, list[bytes]]] = []
        self.first = 0  # the number of the first retained piece, counted from the beginning
        self.size = 0  # the sum of the weights
        self.head: Head | None = None
        self.whole = True  # it is sent as one piece with a length, not as a stream
        self.events = False  # every piece ends with a whole event
        self.ended = False  # nothing more will be added
        self.failure: Refusal | None = None  # why it ended early

    @property
    def end(self) -> int:
        """How many pieces there have been."""
        return self.first + len(self.pieces)

    def begin(self, head: Head, *, events: bool) -> None:
        """Sets the engine's head; events are passed on as they come."""
        self.head = head
        self.events = events
        self.whole = not events

    def pass_on_in_parts(self) -> None:
        """Gives up retaining the whole response: pieces may end anywhere."""
        self.events = self.whole = False


class SharedResponse(Protocol):
    """The broadcast that a subscriber belongs to."""

    record: RequestRecord
    log: ResponseLog
    pool: Pool | None
    outcome: Outcome

    @property
    def reads(self) -> int:
        """How often bytes have arrived from the engine."""

    def leave(self, subscriber: Subscriber) -> None:
        """Removes a subscriber."""

    def progressed(self) -> None:
        """A subscriber that was behind has caught up."""

    def finish_early(self) -> bool:
        """Ends the response if its last event is in the log. Returns whether it did."""


class Subscriber:
    """One client of a broadcast: the source of what its writer sends, and paused with that."""

    __slots__ = (
        "_begun",
        "_broadcast",
        "_left",
        "_log",
        "done",
        "failure",
        "own_id",
        "position",
        "writer",
    )

    def __init__(self, broadcast: SharedResponse, writer: ClientWriter) -> None:
        self._broadcast = broadcast
        self._log = broadcast.log
        self._begun = self._left = False
        self.writer = writer
        self.position = 0  # the number of the next piece to be written
        self.own_id = b""  # what stands between the texts of a piece
        self.failure: Refusal | None = None
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def start(self) -> None:
        """Begins to write."""
        self.writer.open(self)
        self.advance()

    def close(self) -> None:
        """Ends the subscription: the client has its response, or is gone."""
        self.writer.detach()
        self.stop()

    @property
    def is_behind(self) -> bool:
        """Whether its client takes nothing now, although it has begun to get the response."""
        writer = self.writer
        return writer.paused and writer.started and self.position < self._log.end

    # Source of the client's response

    @property
    def reads(self) -> int:
        return self._broadcast.reads

    def pause(self) -> None:
        """It looks at whether its writer is paused."""

    def resume(self) -> None:
        self.advance()
        self._broadcast.progressed()

    def stop(self) -> None:
        """Takes nothing more from the log."""
        if not self._left:
            self._left = True
            self._broadcast.leave(self)

    def finish_early(self) -> bool:
        """Ends the response if its client has the last event. Returns whether it did."""
        at_end = not self.writer.paused and self.position == self._log.end
        return at_end and self._broadcast.finish_early()

    def fail(self, refusal: Refusal) -> None:
        if self.done.done() or self.finish_early():
            return
        self.failure = refusal
        self._finish()
        self.writer.cut_short(refusal, at_event_boundary=self._log.events)

    # Writing

    def advance(self) -> None:
        """Writes what is new, until there is no more or the transport is full."""
        log, writer = self._log, self.writer
        while not writer.paused and not self._left:
            pieces, at = log.pieces, self.position - log.first
            behind = len(pieces) - at
            if behind == 0:
                if log.ended:
                    self._end(b"")
                return
            if writer.transport.is_closing():
                self.stop()  # the handler of this request is about to be cancelled
                return
            out = self.own_id.join(pieces[at][1])
            taken = 1
            if behind > 1:
                texts, size = [out], len(out)
                while taken < behind and size < _WRITE_BYTES:
                    texts.append(self.own_id.join(pieces[at + taken][1]))
                    size += len(texts[-1])
                    taken += 1
                out = b"".join(texts)
            self.position += taken
            if not self._begun:
                self._begin(len(out))
            if taken == behind and log.ended and log.failure is None:
                self._end(out)
            else:
                writer.write(out)

    def _begin(self, length: int) -> None:
        """Begins the response. `length`: of the body in bytes, unless it is streamed."""
        head, pool, writer = self._log.head, self._broadcast.pool, self.writer
        assert head is not None
        assert pool is not None
        self._begun = True
        writer.record.copy_generation(self._broadcast.record)
        writer.own_fields = response_fields(writer.record, pool)
        writer.begin_unframed(head, length if self._log.whole else None)

    def _end(self, last: bytes) -> None:
        """Writes the `last` bytes: nothing will be added."""
        if self._log.failure is not None:
            self.fail(self._log.failure)
            return
        if not self._begun:
            self._begin(0)
        self.writer.finish(self._broadcast.outcome, last)
        self._finish()

    def _finish(self) -> None:
        self.stop()
        if not self.done.done():
            self.done.set_result(None)

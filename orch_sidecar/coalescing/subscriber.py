"""One client of a shared response: what there is, written at the client's own pace.

Reads the broadcast's log. What is written ends with a whole event, so that a failure can become
an event of the stream at any time.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import lru_cache
from typing import Final, Protocol

from orch_sidecar.api.headers import CONTENT_LENGTH, field_line, raw
from orch_sidecar.api.refusal import Refusal
from orch_sidecar.observability.record import Outcome, RequestRecord
from orch_sidecar.pools.pool import Pool
from orch_sidecar.proxy.client_writer import ClientWriter, response_fields
from orch_sidecar.wire.client_connections import SilenceLimit, undelivered_bytes
from orch_sidecar.wire.forwarding import filtered_response_head
from orch_sidecar.wire.http1 import LAST_CHUNK, Head

# Written at once to a client that is behind: as much as its transport takes before it is full.
_WRITE_BYTES: Final = 65_536
_CONTENT_LENGTH: Final = raw(CONTENT_LENGTH)
_CONTENT_LENGTH_LINE: Final = field_line(CONTENT_LENGTH, "%d")


class Log:
    """A response as it is produced, as far as it is retained."""

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

    def in_parts(self) -> None:
        """Gives up retaining the whole: pieces will end anywhere."""
        self.events = self.whole = False


class Source(Protocol):
    """The broadcast that a subscriber belongs to."""

    record: RequestRecord
    log: Log
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
    """The response to one client of a broadcast, paused by the client's transport."""

    __slots__ = (
        "_broadcast",
        "_chunked",
        "_left",
        "_log",
        "_relays",
        "_writer",
        "done",
        "failure",
        "own_id",
        "paused",
        "position",
        "record",
        "silence_limit_s",
    )

    def __init__(self, broadcast: Source, writer: ClientWriter) -> None:
        self._broadcast = broadcast
        self._log = broadcast.log
        self._writer = writer
        self._chunked = False
        self._left = self._relays = False
        self.record = writer.record
        self.position = 0  # the number of the next piece to be written
        self.own_id = b""  # what stands between the texts of a piece
        self.paused = True  # until it is started
        self.failure: Refusal | None = None
        self.silence_limit_s: SilenceLimit | None = None  # until the generation has its slots
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def start(self) -> None:
        """Begins to write."""
        client = self._writer.client
        client.response = self
        self.paused = client.writing_paused
        self.advance()

    def close(self) -> None:
        """Ends the subscription: the client has its response, or is gone."""
        self._writer.client.response = None
        self.leave()

    @property
    def behind(self) -> bool:
        """Whether it has begun and still has something to write, should nothing be added."""
        return self._writer.started and self.position < self._log.end

    def leave(self) -> None:
        """Takes nothing more from the log."""
        if not self._left:
            self._left = True
            self._broadcast.leave(self)

    # Active response of the client's connection

    @property
    def keep_alive(self) -> bool:
        return self._writer.keep_alive

    @keep_alive.setter
    def keep_alive(self, value: bool) -> None:
        self._writer.keep_alive = value

    @property
    def progress(self) -> tuple[int, int]:
        unsent = undelivered_bytes(self._writer.transport) if self.paused else 0
        return self._broadcast.reads, unsent

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        self.advance()
        self._broadcast.progressed()

    def abort_client(self) -> None:
        self._writer.abort_client()

    def fail(self, refusal: Refusal) -> None:
        if self.done.done():
            return
        if not self.paused and self.position == self._log.end and self._broadcast.finish_early():
            return
        self.failure = refusal
        self.leave()
        self.done.set_result(None)
        writer = self._writer
        if writer.started and not writer.transport.is_closing():
            if writer.announced:
                writer.fail(refusal, at_event_boundary=self._log.events)
            else:
                writer.end_with(refusal, in_stream=self._log.events, chunked=self._chunked)

    # Writing

    def advance(self) -> None:
        """Writes what is new, until there is no more or the transport is full."""
        log = self._log
        while not self.paused and not self._left:
            pieces, at = log.pieces, self.position - log.first
            behind = len(pieces) - at
            if behind == 0:
                if log.ended:
                    self._end()
                return
            if self._writer.transport.is_closing():
                self.leave()  # the handler of this request is about to be cancelled
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
            self._write(out, last=taken == behind and log.ended and log.failure is None)

    def _write(self, out: bytes, *, last: bool) -> None:
        writer = self._writer
        if writer.announced:
            self._relay(out, last=last)
            return
        head = b"" if writer.started else self._head_bytes(len(out))
        if self._chunked:
            end = LAST_CHUNK if last else b""
            out = b"%b%x\r\n%b\r\n%b" % (head, len(out), out, end)
        elif head:
            out = head + out
        writer.transport.write(out)
        writer.wrote(out)
        if last:
            self._finish()

    def _relay(self, out: bytes, *, last: bool) -> None:
        """Writes to a client whose head went out before: it frames the body itself."""
        writer, head = self._writer, self._log.head
        if not self._relays:
            assert head is not None
            self._relays = True
            self.record.copy_generation(self._broadcast.record)
            writer.begin(head)
        if out:
            writer.write(out)
        if last:
            writer.finish(self._broadcast.outcome)
            self._finish()

    def _end(self) -> None:
        """Everything is written, and nothing will be added."""
        writer = self._writer
        if self._log.failure is not None:
            self.fail(self._log.failure)
            return
        if writer.announced:
            self._relay(b"", last=True)
            return
        if not writer.transport.is_closing():
            if not writer.started:
                writer.transport.write(self._head_bytes(0))
            if self._chunked:
                writer.transport.write(LAST_CHUNK)
        self._finish()

    def _finish(self) -> None:
        self.leave()
        if not self.done.done():
            self.done.set_result(None)

    def _head_bytes(self, length: int) -> bytes:
        """Returns the head. `length`: of the body in bytes, unless it is streamed."""
        head, whole, writer = self._log.head, self._log.whole, self._writer
        pool = self._broadcast.pool
        assert head is not None
        assert pool is not None
        http10 = writer.dechunk
        self._chunked = not whole and not http10
        if not whole and http10:
            self.keep_alive = False  # the end of the connection is the end of the body
        fields, _ = filtered_response_head(_reframed(head, not whole), http10)
        if whole and head.status not in (204, 304):
            fields += _CONTENT_LENGTH_LINE % length
        self.record.copy_generation(self._broadcast.record)
        return writer.head_bytes(fields, head.status, response_fields(self.record, pool))


# `http1` returns one object for equal heads, so this is computed once for them.
@lru_cache(maxsize=256)
def _reframed(head: Head, chunked: bool) -> Head:
    """Returns the head without the engine's framing: ids may differ in length."""
    fields = tuple(field for field in head.fields if field[0] != _CONTENT_LENGTH)
    return replace(head, fields=fields, chunked=chunked, length=None)

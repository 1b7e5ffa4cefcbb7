"""One client of a shared answer: what has been produced, written at the client's own pace.

Reads the log that the fanout writes, and knows neither the engine's connection nor the other
clients. What goes out ends with a whole event, so that a failure can be said in the stream
whenever it comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Final

from orch_sidecar.api.refusal import Refusal
from orch_sidecar.observability.record import RequestRecord
from orch_sidecar.proxy.answering import Relayed, failure_in_stream, head_bytes, reset
from orch_sidecar.wire.forwarding import kept
from orch_sidecar.wire.http1 import LAST_CHUNK, Head

# To a client that is behind, so much at once: as much as its transport takes before it is full.
_WRITE_BYTES: Final = 65_536


class Log:
    """An answer as it is produced, as far as it is retained."""

    __slots__ = ("ended", "events", "failure", "first", "head", "pieces", "reads", "size", "whole")

    def __init__(self) -> None:
        # The weight of a piece in bytes, and its text around each place of the response id.
        self.pieces: list[tuple[int, list[bytes]]] = []
        self.first = 0  # the number of the first retained piece, counted from the beginning
        self.size = 0  # the weights together
        self.head: Head | None = None
        self.whole = True  # it goes out as one piece with a length, not as a stream
        self.events = False  # every piece ends with a whole event
        self.ended = False  # nothing will come any more
        self.failure: Refusal | None = None  # why it ended before its time
        self.reads = 0

    @property
    def end(self) -> int:
        """How many pieces there have been."""
        return self.first + len(self.pieces)

    def begin(self, head: Head, *, events: bool) -> None:
        """This is the engine's head; a stream of events goes out as they come."""
        self.head = head
        self.events = events
        self.whole = not events

    def in_parts(self) -> None:
        """It is too long to be held: pieces will end anywhere."""
        self.events = self.whole = False


class Subscriber:
    """One client's answer: paused by its transport, looked at by the watch.

    `keep_alive`: whether the client's connection may serve another request after it.
    """

    __slots__ = (
        "_chunked",
        "_client",
        "_extra",
        "_head_sent",
        "_http10",
        "_left",
        "_log",
        "_on_left",
        "_on_moved",
        "_place",
        "done",
        "keep_alive",
        "own_id",
        "paused",
        "record",
    )

    def __init__(
        self,
        log: Log,
        client: asyncio.Transport,
        record: RequestRecord,
        extra: Callable[[], bytes],
        *,
        http10: bool,
        keep_alive: bool,
        on_left: Callable[[Subscriber], None],
        on_moved: Callable[[], None],
    ) -> None:
        """`extra`: our fields for its head. `on_left`: it wants no more. `on_moved`: it was behind,
        and got on.
        """
        self._log = log
        self._client = client
        self._extra = extra
        self._http10 = http10
        self.keep_alive = keep_alive
        self._on_left = on_left
        self._on_moved = on_moved
        self._place = 0  # the number of the piece to be written next
        self._head_sent = False
        self._chunked = False
        self._left = False
        self.record = record
        self.own_id = b""  # what stands between the texts of a piece
        self.paused = True  # until it is started
        self.done: asyncio.Future[Relayed] = asyncio.get_running_loop().create_future()

    def start(self, *, paused: bool) -> None:
        """From here on the answer flows. `paused`: the transport is full already."""
        self.paused = paused
        self.advance()

    @property
    def place(self) -> int:
        """How many pieces of the answer it has got."""
        return self._place

    @property
    def progress(self) -> tuple[int, int]:
        """Changes whenever bytes come from the engine, or go to a client that is behind."""
        return self._log.reads, self._client.get_write_buffer_size() if self.paused else 0

    @property
    def draining(self) -> bool:
        """Whether it still has something to get, should nothing more be produced."""
        return self._head_sent and self._place < self._log.end

    def close_after(self) -> None:
        """The client's connection is to serve no other request. Before the head goes out."""
        self.keep_alive = False

    def leave(self) -> None:
        """The client is gone or answered: it wants no more."""
        if not self._left:
            self._left = True
            self._on_left(self)

    def abort_client(self) -> None:
        """Drops the client's connection by a reset."""
        reset(self._client)

    # Back-pressure, from the client's transport.

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        self.advance()
        self._on_moved()

    def advance(self) -> None:
        """Writes what it has not got yet, until it has all or its transport is full."""
        log = self._log
        while not self.paused and not self._left:
            pieces, at = log.pieces, self._place - log.first
            behind = len(pieces) - at
            if behind == 0:
                if log.ended:
                    self._end()
                return
            if self._client.is_closing():
                self.leave()  # its handler is being cancelled and has yet to run
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
            self._place += taken
            self._write(out, last=taken == behind and log.ended and log.failure is None)

    def fail(self, refusal: Refusal) -> None:
        """The answer cannot be completed: says so as well as is still possible."""
        if self.done.done():
            return
        # Set here: aborting the client cancels the handler that would set it.
        self.record.outcome = refusal.reason
        self.leave()
        self.done.set_result(Relayed(refusal, answered=self._head_sent))
        if self._head_sent and not self._client.is_closing():
            if self._log.events:
                form = self.record.endpoint.error_format
                self._client.write(failure_in_stream(form, refusal, chunked=self._chunked))
            else:
                self.keep_alive = False
                self.abort_client()

    def _write(self, out: bytes, *, last: bool) -> None:
        head = b"" if self._head_sent else self._head_bytes(len(out))
        if self._chunked:
            end = LAST_CHUNK if last else b""
            out = b"%b%x\r\n%b\r\n%b" % (head, len(out), out, end)
        elif head:
            out = head + out
        self._client.write(out)
        if last:
            self._finish()

    def _end(self) -> None:
        """It has all there is, and nothing will come any more."""
        if self._log.failure is not None:
            self.fail(self._log.failure)
            return
        if not self._client.is_closing():
            if not self._head_sent:
                self._client.write(self._head_bytes(0))
            if self._chunked:
                self._client.write(LAST_CHUNK)
        self._finish()

    def _finish(self) -> None:
        self.leave()
        if not self.done.done():
            self.done.set_result(Relayed(None, answered=True))

    def _head_bytes(self, length: int) -> bytes:
        """`length`: of the body, in bytes, should it be no stream."""
        head, whole = self._log.head, self._log.whole
        assert head is not None
        self._head_sent = True
        self._chunked = not whole and not self._http10
        if not whole and self._http10:
            self.keep_alive = False  # the end of the connection is the end of the body
        fields = kept(_reframed(head, not whole), self._http10)
        if whole and head.status not in (204, 304):
            fields += b"content-length: %d\r\n" % length
        return head_bytes(fields, head.status, self.record, self._extra(), self.keep_alive)


# As `http1` makes one head of all that have the same bytes, this keeps them one.
@lru_cache(maxsize=256)
def _reframed(head: Head, chunked: bool) -> Head:
    """The head without the engine's framing: ids may differ in length."""
    fields = tuple(field for field in head.fields if field[0] != b"content-length")
    return replace(head, fields=fields, chunked=chunked, length=None)

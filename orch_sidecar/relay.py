"""An engine's answer on its way to the client: bytes in, bytes out.

The head is rewritten once, together with the first bytes of the body; then whole chunks are
passed on as they came, from the engine connection's `data_received` straight to the client's
transport. No task is woken, nothing is parsed but the framing. If the engine fails before the
head went out, the caller can still answer; after that the failure is said in the stream if an
event has just ended, and otherwise the connection is aborted: never a clean end of file.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from dataclasses import dataclass
from typing import Final

from orch_sidecar import errors
from orch_sidecar.exchange import Exchange
from orch_sidecar.heads import framed_for, kept
from orch_sidecar.http1 import (
    LAST_CHUNK,
    Body,
    ChunkedBody,
    FramingError,
    Head,
    LengthBody,
    body_of,
    parse_head,
)
from orch_sidecar.reasons import Reason, Refusal
from orch_sidecar.upstream import EngineConnection, EnginePool

_RESET: Final = struct.pack("ii", 1, 0)  # SO_LINGER: on, for no time
_EVENT_STREAM: Final = b"text/event-stream"


@dataclass(frozen=True, slots=True)
class Relayed:
    """How a relay ended. `failure`: it did not, and whether the client was told yet."""

    failure: Refusal | None
    answered: bool


class Relay:
    """One answer. It is the engine connection's receiver, and paused by the client's side."""

    __slots__ = (
        "_body",
        "_buffer",
        "_client",
        "_connection",
        "_extra",
        "_head",
        "_head_sent",
        "_http10",
        "_keep_alive",
        "_last",
        "_pool",
        "done",
        "exchange",
        "idle_checks",
        "paused",
        "reads",
        "seen",
        "tail",
    )

    def __init__(
        self,
        client: asyncio.Transport,
        pool: EnginePool,
        exchange: Exchange,
        extra: bytes,
        *,
        http10: bool,
        keep_alive: bool,
    ) -> None:
        self._client = client
        self._pool = pool
        self._connection: EngineConnection | None = None
        self._extra = extra
        self._http10 = http10
        self._keep_alive = keep_alive
        self._head: Head | None = None
        self._head_sent = False
        self._body: Body | None = None
        self._buffer = b""
        self._last = b""
        self.exchange = exchange
        self.tail = b""  # what went out before the last write: usage may be in either
        self.paused = False
        self.reads = 0
        self.seen = (0, 0)
        self.idle_checks = 0
        self.done: asyncio.Future[Relayed] = asyncio.get_running_loop().create_future()

    def start(self, connection: EngineConnection, request: bytes) -> None:
        """Sends the request; from here on the answer flows."""
        self._connection = connection
        connection.send(request, self)

    @property
    def keep_alive(self) -> bool:
        """Whether the client's connection may serve another request."""
        return self._keep_alive

    @property
    def progress(self) -> tuple[int, int]:
        """Changes whenever bytes come from the engine, or go to a client that is behind."""
        return self.reads, self._client.get_write_buffer_size() if self.paused else 0

    @property
    def sent(self) -> tuple[bytes, bytes]:
        """The last two writes to the client."""
        return self.tail, self._last

    def stop(self) -> None:
        """The client is gone, or this took too long: closes the engine's connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def abort_client(self) -> None:
        """Drops the client's connection by a reset.

        A plain close would look like the end of an answer that ends with its connection.
        """
        connection = self._client.get_extra_info("socket")
        if connection is not None and not self._client.is_closing():
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._client.abort()

    # Back-pressure, from the client's transport.

    def pause(self) -> None:
        self.paused = True
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        self.paused = False
        if self._connection is not None:
            self._connection.resume()

    # Receiver, from the engine's connection.

    def received(self, data: bytes) -> None:
        self.reads += 1
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
            self.fail(Refusal(Reason.ENGINE_FAILED, f"the engine's answer is not HTTP: {error}"))
            return
        if out:
            self._write(out)
        if body.done:
            self._finish(body)

    def lost(self, error: Exception | None) -> None:
        self._connection = None
        body = self._body
        if body is not None and not body.delimits_itself and error is None:
            self._finish(body)
            return
        cause = f": {error}" if error else ""
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
        self.exchange.outcome = refusal.reason
        self.stop()
        self.done.set_result(Relayed(refusal, answered=self._head_sent))
        if self._head_sent and not self._client.is_closing():
            if self._at_event_boundary():
                # A chunked answer ends as it should: the client's connection stays usable.
                said = errors.in_stream(self.exchange.api, refusal)
                if isinstance(self._body, ChunkedBody) and not self._http10:
                    said = b"%x\r\n%b\r\n" % (len(said), said) + LAST_CHUNK
                self._client.write(said)
            else:
                self._keep_alive = False
                self.abort_client()

    def _begin(self, data: bytes) -> Body | None:
        """Takes the head off `data`, leaves the rest in the buffer."""
        while True:
            parsed = parse_head(data)
            if parsed is None:
                self._buffer = data
                return None
            head, start = parsed
            data = data[start:]
            if head.status >= 200:
                break
            if head.status == 101:
                raise FramingError("the engine switches protocols")
        self._head = head
        self._buffer = data
        self._body = body_of(head, dechunk=self._http10)
        return self._body

    def _write(self, out: bytes) -> None:
        if not self._head_sent:
            # Only a piece of a chunked body may be empty; the first byte is a real one.
            out = self._head_bytes() + out
        self._client.write(out)
        self.tail = self._last
        self._last = out

    def _head_bytes(self) -> bytes:
        head, exchange = self._head, self.exchange
        assert head is not None
        self._head_sent = True
        exchange.first_byte = time.monotonic_ns()
        exchange.status = head.status
        if not framed_for(head, self._http10):
            self._keep_alive = False  # the end of the connection is the end of the body
        closing = b"" if self._keep_alive else b"connection: close\r\n"
        timing = b"server-timing: " + exchange.server_timing().encode()
        return b"%b%b%b\r\n%b\r\n" % (kept(head, self._http10), closing, timing, self._extra)

    def _finish(self, body: Body) -> None:
        if not self._head_sent and not self._client.is_closing():
            self._client.write(self._head_bytes())
        head, connection = self._head, self._connection
        assert head is not None
        self._connection = None
        if connection is not None:
            if self.paused:
                connection.resume()
            if head.keep_alive and body.delimits_itself:
                self._pool.give_back(connection)
            else:
                connection.close()
        self.done.set_result(Relayed(None, answered=True))

    def _at_event_boundary(self) -> bool:
        head = self._head
        assert head is not None
        if isinstance(self._body, LengthBody):
            return False
        content_type = next((v for n, v in head.fields if n == b"content-type"), b"")
        if not content_type.lower().startswith(_EVENT_STREAM):
            return False
        end = self._last if len(self._last) >= 8 else self.tail + self._last
        if isinstance(self._body, ChunkedBody) and not self._http10:
            if self._body.within_chunk:
                return False
            # Not the line break of a chunk's size before a chunk that is one line break itself.
            return end.endswith((b"\n\n\r\n", b"\r\n\r\n\r\n")) and not end.endswith(
                (b"\r\n\n\r\n", b"\n2\r\n\r\n\r\n")
            )
        return end.endswith((b"\n\n", b"\r\n\r\n"))

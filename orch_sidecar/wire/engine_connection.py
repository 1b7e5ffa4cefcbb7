"""Opens connections to an engine, reuses them while that is safe, and closes them.

An engine (uvicorn) closes connections that have been idle for 5 s. Those idle for more than 2 s
are not reused, so that no request is written to a connection that is being closed. No request is
written twice.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from functools import cache
from typing import Final, Protocol, cast
from urllib.parse import urlsplit

from orch_sidecar.api.body_outline import LARGE_BYTES
from orch_sidecar.wire.turn import Turn

REUSE_WITHIN_S: Final = 2.0
# Of very fast streams, between two reads. The event loop's timers count milliseconds.
REST_S: Final = 0.002


class Receiver(Protocol):
    """Receives the bytes that an engine sends."""

    def received(self, data: bytes) -> None:
        """Receives the next bytes."""

    def lost(self, error: Exception | None) -> None:
        """The connection is closed: no more bytes follow. `error`: None if it closed in order."""


class EngineConnection(asyncio.Protocol):
    """A connection to an engine, for one request at a time."""

    __slots__ = ("idle_since", "receiver", "transport", "turn")

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.receiver: Receiver | None = None
        self.turn: Turn | None = None  # in which a request is written
        self.idle_since = 0.0

    @property
    def open(self) -> bool:
        return self.transport is not None and not self.transport.is_closing()

    def send(
        self,
        receiver: Receiver,
        head: bytes,
        body: bytes | memoryview = b"",
        turn: Turn | None = None,
    ) -> None:
        """Writes a complete request, if it is not large with others of this turn; `receiver` gets
        the response."""
        assert self.transport is not None
        self.receiver = receiver
        if len(body) > LARGE_BYTES:  # it is never copied
            self.transport.writelines((head, body))
        elif turn is not None and (turn.starting or turn.unwritten):
            self.turn = turn
            turn.write(self.transport, head + body)
            if not turn.starting:
                turn.flush()  # it is the last one
        else:
            self.transport.write(head + body)

    def pause(self) -> None:
        if self.transport is not None:
            self.transport.pause_reading()

    def resume(self) -> None:
        if self.transport is not None:
            self.transport.resume_reading()

    def close(self) -> None:
        """Closes the connection after everything written has been sent.

        Not an abort: a reset could overtake the request, and the engine would never report the
        end of a lease that it has not seen.
        """
        self.receiver = None
        if self.transport is not None:
            if self.turn is not None:
                self.turn.flush()
            self.transport.close()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass

    def data_received(self, data: bytes) -> None:
        receiver = self.receiver
        if receiver is None:
            self.close()  # unexpected bytes: the framing is not reliable
        else:
            receiver.received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        receiver, self.receiver = self.receiver, None
        if receiver is not None:
            receiver.lost(exc)


@cache
def _tls() -> ssl.SSLContext:
    """Returns the trusted authorities, for all engines: they take a megabyte."""
    return ssl.create_default_context()


class ConnectionPool:
    """The reusable connections to one engine."""

    def __init__(self, url: str, connect_timeout_s: float) -> None:
        parts = urlsplit(url)
        self._secure = parts.scheme == "https"
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if self._secure else 80)
        self._ssl = _tls() if self._secure else None
        self.connect_timeout_s = connect_timeout_s
        self._idle: list[EngineConnection] = []
        self._resting: list[Callable[[], None]] = []
        self.loop = asyncio.get_running_loop()
        self.authority = parts.netloc.rpartition("@")[2].encode("ascii")

    def take(self) -> EngineConnection | None:
        """Returns an idle connection that is safe to reuse, None if there is none."""
        while self._idle:
            connection = self._idle.pop()
            transport = connection.transport
            is_open = transport is not None and not transport.is_closing()
            if is_open and self.loop.time() - connection.idle_since <= REUSE_WITHIN_S:
                return connection
            connection.close()
        return None

    async def acquire(self) -> EngineConnection:
        """Returns an idle connection or a new one. Raises OSError or TimeoutError."""
        if (idle := self.take()) is not None:
            return idle
        async with asyncio.timeout(self.connect_timeout_s):
            _, connection = await self.loop.create_connection(
                EngineConnection, self._host, self._port, ssl=self._ssl
            )
        return connection

    def give_back(self, connection: EngineConnection) -> None:
        """Keeps a connection for reuse. Its response must have ended as framed, with keep-alive."""
        connection.receiver = None
        connection.idle_since = self.loop.time()
        self._idle.append(connection)  # `take` sees whether it has been closed

    def rest(self, connection: EngineConnection, end: Callable[[], None]) -> None:
        """Stops reading from a connection, and calls `end` in REST_S, with those of others."""
        if not self._resting:
            self.loop.call_later(REST_S, self._end_rests)
        self._resting.append(end)
        connection.pause()

    def _end_rests(self) -> None:
        resting, self._resting = self._resting, []
        for end in resting:
            end()

    def prune(self) -> None:
        """Closes connections that have been idle for too long to be reused."""
        now = self.loop.time()
        kept = []
        for connection in self._idle:
            if connection.open and now - connection.idle_since <= REUSE_WITHIN_S:
                kept.append(connection)
            else:
                connection.close()
        self._idle = kept

    def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()

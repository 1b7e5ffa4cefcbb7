"""Connections to an engine: opened, kept for reuse while that is safe, closed.

An engine closes idle connections after 5 s (uvicorn); one that was idle for more than 2 s is
not used again, so that no request is written into a connection that is just being closed. A
request is never written twice.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Final, Protocol, cast
from urllib.parse import urlsplit

REUSE_WITHIN_S: Final = 2.0


class Receiver(Protocol):
    """Receives what an engine sends."""

    def received(self, data: bytes) -> None:
        """Bytes came."""

    def lost(self, error: Exception | None) -> None:
        """The connection is gone; no more bytes will come."""


class EngineConnection(asyncio.Protocol):
    """One connection: it serves one exchange at a time."""

    __slots__ = ("_transport", "idle_since", "receiver")

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self.receiver: Receiver | None = None
        self.idle_since = 0.0

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, receiver: Receiver, *request: bytes) -> None:
        """Writes a whole request, whose parts these are; the answer goes to `receiver`."""
        assert self._transport is not None
        self.receiver = receiver
        for part in request:
            self._transport.write(part)

    def pause(self) -> None:
        if self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    def close(self) -> None:
        """Ends the connection; what was written still goes out before the end does.

        Not an abort: a reset could overtake the request, and then the engine would never know
        of a lease whose end we wait for.
        """
        self.receiver = None
        if self._transport is not None:
            self._transport.close()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass

    def data_received(self, data: bytes) -> None:
        receiver = self.receiver
        if receiver is None:
            self.close()  # unexpected bytes: the framing is in doubt
        else:
            receiver.received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        receiver, self.receiver = self.receiver, None
        if receiver is not None:
            receiver.lost(exc)


class ConnectionPool:
    """The connections to one engine."""

    def __init__(self, url: str, connect_timeout_s: float) -> None:
        parts = urlsplit(url)
        self._secure = parts.scheme == "https"
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if self._secure else 80)
        self._ssl = ssl.create_default_context() if self._secure else None
        self.connect_timeout_s = connect_timeout_s
        self._idle: list[EngineConnection] = []
        self.loop = asyncio.get_running_loop()
        self.authority = parts.netloc.rpartition("@")[2].encode("ascii")

    def take(self) -> EngineConnection | None:
        """A kept connection that is good to write to, if there is one."""
        while self._idle:
            connection = self._idle.pop()
            if connection.open and self.loop.time() - connection.idle_since <= REUSE_WITHIN_S:
                return connection
            connection.close()
        return None

    async def acquire(self) -> EngineConnection:
        """A connection that is good to write to. Raises OSError or TimeoutError."""
        kept = self.take()
        if kept is not None:
            return kept
        async with asyncio.timeout(self.connect_timeout_s):
            _, fresh = await self.loop.create_connection(
                EngineConnection, self._host, self._port, ssl=self._ssl
            )
        return fresh

    def give_back(self, connection: EngineConnection) -> None:
        """Its answer ended as framed, and the engine keeps the connection."""
        connection.receiver = None
        if connection.open:
            connection.idle_since = self.loop.time()
            self._idle.append(connection)

    def prune(self) -> None:
        """Closes what will not be used again."""
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

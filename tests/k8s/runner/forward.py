"""A Service's port on its cluster address: connections go to its pods in turn.

kube-proxy does this in the kernel; here a userspace forwarder does. As there, a connection that is
open stays with its pod whatever becomes of the endpoints, and without any endpoint a connection is
refused: the port listens only while there is one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

_CHUNK = 65536


class Forward:
    """One port. Endpoints are (ip, port) pairs, set from outside whenever they change."""

    def __init__(self, address: str, port: int) -> None:
        self.address, self.port = address, port
        self._endpoints: list[tuple[str, int]] = []
        self._turn = 0
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def point(self, endpoints: Sequence[tuple[str, int]]) -> None:
        """New connections go to these pods from now on, in turn."""
        self._endpoints = list(endpoints)
        if self._endpoints and self._server is None:
            self._server = await asyncio.start_server(self._accept, self.address, self.port)
        elif not self._endpoints and self._server is not None:
            self._server.close()
            self._server = None

    async def close(self) -> None:
        """Stops listening and breaks what is open."""
        self._endpoints = []
        if self._server is not None:
            self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._relay(reader, writer)
        except asyncio.CancelledError:
            writer.transport.abort()
            # asyncio logs a cancelled connection handler as an error; the cluster is closing.
        finally:
            self._connections.discard(task)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._endpoints:
            writer.transport.abort()
            return
        ip, port = self._endpoints[self._turn % len(self._endpoints)]
        self._turn += 1
        try:
            far_reader, far_writer = await asyncio.open_connection(ip, port)
        except OSError:
            # The pod refuses or is gone: the client sees its connection break, as through a NAT.
            writer.transport.abort()
            return
        try:
            await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))
        except OSError:
            # One side broke off: the other one must see a break, not an end.
            writer.transport.abort()
            far_writer.transport.abort()
        finally:
            far_writer.close()
            writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copies one direction until its end, and passes the end on."""
    while chunk := await reader.read(_CHUNK):
        writer.write(chunk)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()

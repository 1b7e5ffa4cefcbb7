"""Connections that are cut anywhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


@asynccontextmanager
async def cutting_relay(
    port: int, *, sent: int | None = None, received: int | None = None, always: bool = False
) -> AsyncIterator[list[int]]:
    """Relays connections to this port, and cuts the first after so many bytes to or from it.

    `always`: every one. Yields its own port and the number of bytes that went to the target.
    """
    counts = [0, 0]
    limits = [sent, received]

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: int) -> None:
        left = limits[way]
        with suppress(ConnectionError):
            while piece := await reader.read(2**16 if left is None else max(1, min(left, 2**16))):
                if left == 0:
                    return
                writer.write(piece)
                await writer.drain()
                if way == 0:
                    counts[1] += len(piece)
                if left is not None:
                    left -= len(piece)
                    if left == 0:
                        return

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        relaying = asyncio.current_task()
        assert relaying is not None
        tasks.add(relaying)
        with suppress(asyncio.CancelledError):
            to_reader, to_writer = await asyncio.open_connection("127.0.0.1", port)
            pumps = {
                asyncio.create_task(pump(reader, to_writer, 0)),
                asyncio.create_task(pump(to_reader, writer, 1)),
            }
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                if not always:
                    limits[:] = [None, None]
                for task in pumps:
                    task.cancel()
                writer.close()
                to_writer.close()

    tasks: set[asyncio.Task[None]] = set()
    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    counts[0] = server.sockets[0].getsockname()[1]
    try:
        yield counts
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks)

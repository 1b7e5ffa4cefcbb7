"""The floor: aiohttp's server and a spliced connection to the engine, and nothing else.

What a request costs here, no relay on aiohttp's server can save: it reads neither the body nor the
headers, admits everything, and records nothing. It recognizes the end of an answer by the scripted
engine's way of framing. Usage: ``floor_proxy.py UPSTREAM PORT``.
"""

from __future__ import annotations

import asyncio
import gc
import re
import sys
from typing import Any, cast
from urllib.parse import urlsplit

import uvloop
from aiohttp import web

LENGTH = re.compile(rb"\r\ncontent-length: (\d+)\r\n", re.IGNORECASE)
LAST_CHUNK = b"\r\n0\r\n\r\n"


class AlreadySent(web.StreamResponse):
    """An answer that the splice has written to the client's transport."""

    @property
    def keep_alive(self) -> bool:
        return True

    async def prepare(self, request: web.BaseRequest) -> None:
        return

    async def write_eof(self, data: bytes = b"") -> None:
        return


SENT = AlreadySent()


class Splice(asyncio.Protocol):
    """A connection to the engine: passes each read on to the client of its request."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.client: Any = None
        self.done: asyncio.Future[None] | None = None
        self.left: int | None = 0
        self.begun = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.client.write(data)
        if not self.begun:
            self.begun = True
            end = data.index(b"\r\n\r\n")
            length = LENGTH.search(data, 0, end + 2)
            self.left = None if length is None else int(length[1]) + end + 4
        if self.left is None:
            ended = data.endswith(LAST_CHUNK)
        else:
            self.left -= len(data)
            ended = self.left <= 0
        if ended and self.done is not None and not self.done.done():
            self.done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.done is not None and not self.done.done():
            self.done.set_exception(exc or ConnectionResetError("the engine closed"))


class Floor:
    """The handler, and the idle connections to the engine."""

    def __init__(self, upstream: str) -> None:
        parts = urlsplit(upstream)
        self.address = parts.hostname or "", parts.port or 80
        self.host = parts.netloc
        self.idle: list[Splice] = []
        self.loop = asyncio.get_running_loop()

    async def handle(self, http: web.BaseRequest) -> web.StreamResponse:
        body = await http.read()
        if self.idle:
            splice = self.idle.pop()
        else:
            _, splice = await self.loop.create_connection(Splice, *self.address)
        splice.begun, splice.client = False, http.transport
        splice.done = self.loop.create_future()
        head = (
            f"{http.method} {http.raw_path} HTTP/1.1\r\nHost: {self.host}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        splice.transport.write(head.encode() + body)
        await splice.done
        self.idle.append(splice)
        return SENT


async def serve() -> None:
    """Serves until SIGTERM."""
    loop = asyncio.get_running_loop()
    floor = Floor(sys.argv[1])
    server = web.Server(cast(Any, floor.handle), handler_cancellation=True, access_log=None)
    gc.collect()
    gc.freeze()
    listener = await loop.create_server(server, "127.0.0.1", int(sys.argv[2]), backlog=4096)
    await listener.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve())

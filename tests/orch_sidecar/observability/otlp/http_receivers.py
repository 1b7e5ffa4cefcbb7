"""Collectors that misbehave over HTTP."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

# What a collector does on a connection with the next request. False: it closes the connection.
Behaviour = Callable[["HttpReceiver", asyncio.StreamReader, asyncio.StreamWriter], Awaitable[bool]]

PROTOBUF = "Content-Type: application/x-protobuf"


@dataclass(slots=True)
class HttpReceiver:
    """Does what its script has for one request after the other, and the last for ever."""

    script: list[Behaviour]
    port: int = 0
    connections: int = 0
    # Those that serve connections.
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    # The request line and fields in lower case, and the body, of requests that were read.
    requests: list[tuple[dict[str, str], bytes]] = field(default_factory=list)

    async def read(self, reader: asyncio.StreamReader) -> None:
        """Reads one request. Raises IncompleteReadError at the end of the connection."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        fields = {"": head[0]}
        for line in head[1:-2]:
            name, _, value = line.partition(":")
            fields[name.lower()] = value.strip()
        body = await reader.readexactly(int(fields["content-length"]))
        self.requests.append((fields, body))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with suppress(asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            try:
                while True:
                    behaviour = self.script[0] if len(self.script) == 1 else self.script.pop(0)
                    if not await behaviour(self, reader, writer):
                        break
            finally:
                writer.close()


@asynccontextmanager
async def http_receiver(
    *script: Behaviour, tls: ssl.SSLContext | None = None
) -> AsyncIterator[HttpReceiver]:
    receiver = HttpReceiver(list(script))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        receiver.tasks.add(task)
        with suppress(asyncio.CancelledError):
            await receiver.serve(reader, writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls, limit=2**24)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()
        for task in receiver.tasks:
            task.cancel()
        await asyncio.gather(*receiver.tasks)


def head(status: str, *fields: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", *fields, "", ""]).encode("latin-1")


def raw(data: bytes, *, close: bool = False) -> Behaviour:
    """Reads the request, and writes these bytes."""

    async def behave(
        receiver: HttpReceiver, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        await receiver.read(reader)
        writer.write(data)
        await writer.drain()
        return not close

    return behave


def answer(
    status: str, *fields: str, body: bytes = b"", content_type: str = PROTOBUF, close: bool = False
) -> Behaviour:
    lines = (content_type, f"Content-Length: {len(body)}", *fields)
    return raw(head(status, *lines) + body, close=close)


def hanging(data: bytes = b"") -> Behaviour:
    """Reads the request, writes these bytes, and no more."""

    async def behave(
        receiver: HttpReceiver, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        await receiver.read(reader)
        writer.write(data)
        await asyncio.Event().wait()
        return False

    return behave


def blurting(data: bytes) -> Behaviour:
    """Writes these bytes before it has read anything, and closes."""

    async def behave(
        receiver: HttpReceiver, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        writer.write(data)
        await writer.drain()
        return False

    return behave


async def deaf(
    receiver: HttpReceiver, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> bool:
    """Reads nothing."""
    await asyncio.Event().wait()
    return False


async def early(
    receiver: HttpReceiver, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> bool:
    """Answers without reading the body, and closes."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(head("413 Content Too Large", "Content-Length: 0", "Connection: close"))
    await writer.drain()
    return False


async def endless(
    receiver: HttpReceiver, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> bool:
    """Answers with a body that does not end."""
    await receiver.read(reader)
    writer.write(head("200 OK", PROTOBUF, "Transfer-Encoding: chunked"))
    while True:
        writer.write(b"10000\r\n" + bytes(0x10000) + b"\r\n")
        await writer.drain()


def closing(*, after_request: bool) -> Behaviour:
    """Closes the connection without an answer."""

    async def behave(
        receiver: HttpReceiver, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        if after_request:
            await receiver.read(reader)
        return False

    return behave

"""Collectors that misbehave: over HTTP, over gRPC, and connections that are cut anywhere."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent import futures
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import grpc

from orch_sidecar.observability.otlp.grpc_transport import METHOD

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
# What a collector does on a connection with the next request. False: it closes the connection.
Behaviour = Callable[["HttpReceiver", asyncio.StreamReader, asyncio.StreamWriter], Awaitable[bool]]

PROTOBUF = "Content-Type: application/x-protobuf"


@dataclass(slots=True)
class HttpReceiver:
    """Does what its script has for one request after the other, and the last for ever."""

    script: list[Behaviour]
    port: int = 0
    connections: int = 0
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
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        with suppress(asyncio.CancelledError):
            await receiver.serve(reader, writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls, limit=2**24)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks)


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


async def slow_reader(
    receiver: HttpReceiver, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> bool:
    """Reads the request in small pieces, with pauses."""
    slow = asyncio.StreamReader()

    async def feed() -> None:
        while piece := await reader.read(50_000):
            slow.feed_data(piece)
            await asyncio.sleep(0.001)
        slow.feed_eof()

    feeding = asyncio.create_task(feed())
    try:
        await receiver.read(slow)
    finally:
        feeding.cancel()
    writer.write(head("200 OK", PROTOBUF, "Content-Length: 0"))
    return True


def closing(*, after_request: bool) -> Behaviour:
    """Closes the connection without an answer."""

    async def behave(
        receiver: HttpReceiver, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        if after_request:
            await receiver.read(reader)
        return False

    return behave


@asynccontextmanager
async def cutting_relay(
    port: int, *, sent: int | None = None, received: int | None = None
) -> AsyncIterator[list[int]]:
    """Relays connections to this port, and cuts the first after so many bytes to or from it.

    Yields its own port and the number of bytes that went to the target.
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
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        with suppress(asyncio.CancelledError):
            to_reader, to_writer = await asyncio.open_connection("127.0.0.1", port)
            pumps = {
                asyncio.create_task(pump(reader, to_writer, 0)),
                asyncio.create_task(pump(to_reader, writer, 1)),
            }
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                limits[:] = [None, None]  # of the first connection only
                for each in (*pumps, writer, to_writer):
                    each.cancel() if isinstance(each, asyncio.Task) else each.close()

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


@dataclass(slots=True)
class GrpcReceiver:
    """Calls its script's functions with each call's context, one after the other."""

    script: list[Callable[[Any], bytes]]
    port: int = 0
    requests: list[tuple[dict[str, Any], bytes]] = field(default_factory=list)

    def export(self, request: bytes, context: Any) -> bytes:
        self.requests.append((dict(context.invocation_metadata()), request))
        behave = self.script[0] if len(self.script) == 1 else self.script.pop(0)
        return behave(context)


@contextmanager
def grpc_receiver(
    *script: Callable[[Any], bytes], credentials: Any = None, method: str = METHOD
) -> Iterator[GrpcReceiver]:
    receiver = GrpcReceiver(list(script))

    class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, details: Any) -> Any:
            if details.method != method:
                return None
            return grpc.unary_unary_rpc_method_handler(receiver.export)

    server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
    server.add_generic_rpc_handlers((Handler(),))
    address = "127.0.0.1:0"
    receiver.port = (
        server.add_insecure_port(address)
        if credentials is None
        else server.add_secure_port(address, credentials)
    )
    server.start()
    try:
        yield receiver
    finally:
        server.stop(None).wait()


def returning(body: bytes = b"") -> Callable[[Any], bytes]:
    return lambda context: body


def failing(code: Any, text: str = "", *trailing: tuple[str, bytes]) -> Callable[[Any], bytes]:
    """Fails with this code and these fields at the end."""

    def behave(context: Any) -> bytes:
        context.set_trailing_metadata(trailing)
        context.set_code(code)
        context.set_details(text)
        return b""

    return behave

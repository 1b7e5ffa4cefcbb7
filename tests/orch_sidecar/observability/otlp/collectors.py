"""Collectors that misbehave over HTTP and gRPC, and transports to them."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent import futures
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceResponse,
)

from orch_sidecar.observability.otlp.delivery import Reply, Transport
from orch_sidecar.observability.otlp.grpc_transport import METHOD, GrpcTransport
from orch_sidecar.observability.otlp.http_transport import HttpTransport
from orch_sidecar.observability.otlp.settings import ExportSettings

HTTP, GRPC = "http/protobuf", "grpc"
LONG_S = 60.0  # for what must not end by time

# What a collector does on a connection with the next request. False: it closes the connection.
Behaviour = Callable[["HttpReceiver", asyncio.StreamReader, asyncio.StreamWriter], Awaitable[bool]]

Reads = Literal["request", "head", "nothing"]
Then = Literal["serve", "close", "hang"]

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


def raw(data: bytes = b"", *, reads: Reads = "request", then: Then = "serve") -> Behaviour:
    """Reads that much, writes these bytes, and serves the next request, closes or hangs."""

    async def behave(
        receiver: HttpReceiver, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        if reads == "request":
            await receiver.read(reader)
        elif reads == "head":
            await reader.readuntil(b"\r\n\r\n")
        writer.write(data)
        await writer.drain()
        if then == "hang":
            await asyncio.Event().wait()
        return then == "serve"

    return behave


def answer(
    status: str, *fields: str, body: bytes = b"", content_type: str = PROTOBUF, then: Then = "serve"
) -> Behaviour:
    lines = (content_type, f"Content-Length: {len(body)}", *fields)
    return raw(head(status, *lines) + body, then=then)


# Answers without reading the body, and closes.
early = raw(
    head("413 Content Too Large", "Content-Length: 0", "Connection: close"),
    reads="head",
    then="close",
)


async def endless(
    receiver: HttpReceiver, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> bool:
    """Answers with a body that does not end."""
    await receiver.read(reader)
    writer.write(head("200 OK", PROTOBUF, "Transfer-Encoding: chunked"))
    while True:
        writer.write(b"10000\r\n" + bytes(0x10000) + b"\r\n")
        await writer.drain()


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
    *script: Callable[[Any], bytes], credentials: Any = None
) -> Iterator[GrpcReceiver]:
    receiver = GrpcReceiver(list(script))

    class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, details: Any) -> Any:
            if details.method != METHOD:
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


def response(rejected: int = 0, message: str = "") -> bytes:
    """Returns the body with which a collector takes all spans but these."""
    partial = ExportTracePartialSuccess(rejected_spans=rejected, error_message=message)
    return bytes(ExportTraceServiceResponse(partial_success=partial).SerializeToString())


def settings_to(port: int, protocol: str, **environ: str) -> ExportSettings:
    """Returns what more of OTEL_EXPORTER_OTLP_* configures for this port of this machine."""
    variables = {"ENDPOINT": f"http://127.0.0.1:{port}", "PROTOCOL": protocol} | environ
    return ExportSettings.from_environ({f"OTEL_EXPORTER_OTLP_{k}": v for k, v in variables.items()})


def transport_of(settings: ExportSettings) -> Transport:
    return HttpTransport(settings) if settings.protocol == HTTP else GrpcTransport(settings)


@asynccontextmanager
async def transport_to(
    port: int = 9, protocol: str = HTTP, **environ: str
) -> AsyncIterator[Transport]:
    """Yields a transport, and closes it. `port`: of no use where `environ` has an ENDPOINT."""
    transport = transport_of(settings_to(port, protocol, **environ))
    try:
        yield transport
    finally:
        await transport.close()


async def sent_to(
    port: int = 9,
    protocol: str = HTTP,
    *,
    body: bytes = b"spans",
    limit_s: float | None = LONG_S,
    **environ: str,
) -> Reply:
    """Sends one request by a transport of its own."""
    async with transport_to(port, protocol, **environ) as transport:
        return await transport.send(body, limit_s)

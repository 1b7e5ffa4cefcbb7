"""Collectors that speak OTLP as Jaeger does, over HTTP and over gRPC, and keep what they got."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent import futures
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from aiohttp import web
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from tests.integration.running import Running

# What a client that traces says of itself.
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT_ID = "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE_ID}-{PARENT_ID}-01"

SERVER, CLIENT = 2, 3  # kinds of a span
ERROR = 2  # its status


@dataclass(slots=True)
class Span:
    """A span as it was exported."""

    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    status: int
    attributes: dict[str, Any]
    resource: dict[str, Any]
    links: list[tuple[str, str]]  # trace and span


@dataclass(slots=True)
class Collector:
    """What has been exported to it."""

    endpoint: str = ""
    requests: list[bytes] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)

    def take(self, body: bytes) -> None:
        self.requests.append(body)
        request = trace_service_pb2.ExportTraceServiceRequest.FromString(body)
        for resource_spans in request.resource_spans:
            resource = {a.key: _value(a.value) for a in resource_spans.resource.attributes}
            for scope_spans in resource_spans.scope_spans:
                for span in scope_spans.spans:
                    self.spans.append(
                        Span(
                            span.name,
                            span.kind,
                            span.trace_id.hex(),
                            span.span_id.hex(),
                            span.parent_span_id.hex(),
                            span.start_time_unix_nano,
                            span.end_time_unix_nano,
                            span.status.code,
                            {a.key: _value(a.value) for a in span.attributes},
                            resource,
                            [(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
                        )
                    )

    def one(self, name: str) -> Span:
        found = [span for span in self.spans if span.name == name]
        assert len(found) == 1, f"{name}: {[span.name for span in self.spans]}"
        return found[0]

    def of_trace(self, trace_id: str) -> dict[str, Span]:
        return {span.name: span for span in self.spans if span.trace_id == trace_id}


Collect = Callable[[Running], Awaitable[Collector]]


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    return None if kind is None else getattr(value, kind)


@asynccontextmanager
async def http_collector() -> AsyncIterator[Collector]:
    """Listens for OTLP over HTTP, on the test's event loop."""
    collector = Collector()

    async def take(request: web.Request) -> web.Response:
        assert request.content_type == "application/x-protobuf"
        collector.take(await request.read())
        return web.Response()

    app = web.Application()
    app.router.add_post("/v1/traces", take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    collector.endpoint = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield collector
    finally:
        await runner.cleanup()


@contextmanager
def grpc_collector() -> Iterator[Collector]:
    """Listens for OTLP over gRPC, on threads of its own."""
    collector = Collector()
    lock = threading.Lock()

    class Service(trace_service_pb2_grpc.TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
            with lock:
                collector.take(request.SerializeToString())
            return trace_service_pb2.ExportTraceServiceResponse()

    server = grpc.server(futures.ThreadPoolExecutor(max_workers=2))
    add_service: Any = trace_service_pb2_grpc.add_TraceServiceServicer_to_server  # untyped
    add_service(Service(), server)
    collector.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield collector
    finally:
        server.stop(None).wait()

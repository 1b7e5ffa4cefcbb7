"""The whole export, from ended traces to a collector that fails first, over both protocols."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import grpc
import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from orch_sidecar.observability.otlp import delivery
from orch_sidecar.observability.otlp.delivery import SpanBatcher, Transport
from orch_sidecar.observability.otlp.grpc_transport import GrpcTransport
from orch_sidecar.observability.otlp.http_transport import HttpTransport
from orch_sidecar.observability.otlp.settings import ExportSettings
from orch_sidecar.observability.otlp.trace_queue import EncodedTrace
from orch_sidecar.observability.tracing import LossReason
from tests.orch_sidecar.observability.otlp.grpc_receivers import failing, grpc_receiver, returning
from tests.orch_sidecar.observability.otlp.http_receivers import (
    answer,
    closing,
    http_receiver,
)


class Traces:
    """Traces of three spans each, and the request that an exporter makes of them."""

    def __init__(self, count: int) -> None:
        exporter = InMemorySpanExporter()
        provider = TracerProvider(resource=Resource({"service.name": "tests"}))
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        tracer = provider.get_tracer("tests")
        self.traces: list[bytes] = []
        for number in range(count):
            with tracer.start_as_current_span("/v1/chat", attributes={"number": number}):
                for name in ("admission.wait", "engine.request"):
                    tracer.start_span(name, attributes={"text": f"{name} {number}" * 20}).end()
            (resource,) = encode_spans(exporter.get_finished_spans()).resource_spans
            exporter.clear()
            (scope,) = resource.scope_spans
            self.traces.append(ScopeSpans(spans=scope.spans).SerializeToString())
        self._resource, self._scope = resource, scope
        self.spans = 3 * count

    def request(self, traces: Sequence[bytes]) -> bytes:
        scope = ScopeSpans(scope=self._scope.scope, schema_url=self._scope.schema_url)
        for trace in traces:
            scope.MergeFromString(trace)
        spans = ResourceSpans(resource=self._resource.resource, scope_spans=[scope])
        return bytes(ExportTraceServiceRequest(resource_spans=[spans]).SerializeToString())


def header_names(request: bytes) -> list[str]:
    """Returns the names of the spans in a request."""
    message = ExportTraceServiceRequest.FromString(request)
    return [
        span.name
        for resource in message.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


NONE = dict.fromkeys(LossReason, 0)
SPANS_OF_A_TRACE = ["admission.wait", "engine.request", "/v1/chat"]
HTTP, GRPC = "http/protobuf", "grpc"

# Yields the port of a collector that fails so many times, and the bodies of its requests.


@pytest.fixture(params=[HTTP, GRPC])
def protocol(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(delivery, "FIRST_BACKOFF_S", 0.01)
    return str(request.param)


@asynccontextmanager
async def collecting(
    protocol: str, failures: int
) -> AsyncIterator[tuple[int, Sequence[tuple[object, bytes]]]]:
    if protocol == HTTP:
        unavailable = [answer("503 Service Unavailable"), closing(after_request=True)] * failures
        async with http_receiver(*unavailable, answer("200 OK")) as http:
            yield http.port, http.requests
    else:
        errors = [failing(grpc.StatusCode.UNAVAILABLE), failing(grpc.StatusCode.ABORTED)]
        with grpc_receiver(*errors * failures, returning()) as receiver:
            yield receiver.port, receiver.requests


def batcher_to(port: int, protocol: str, traces: Traces, **environ: str) -> SpanBatcher:
    settings = ExportSettings.from_environ(
        {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
            "OTEL_EXPORTER_OTLP_TIMEOUT": "60",
        }
        | {f"OTEL_{name}": value for name, value in environ.items()}
    )
    http = protocol == HTTP
    transport: Transport = HttpTransport(settings) if http else GrpcTransport(settings)
    return SpanBatcher(settings, transport, traces.request)


@pytest.mark.parametrize("compression", ["none", "gzip"])
async def test_every_span_arrives_once_whatever_failed_before(
    protocol: str, compression: str
) -> None:
    traces = Traces(40)
    async with collecting(protocol, failures=1) as (port, requests):
        batcher = batcher_to(
            port,
            protocol,
            traces,
            BSP_MAX_EXPORT_BATCH_SIZE="60",
            EXPORTER_OTLP_COMPRESSION=compression,
        )
        for trace in traces.traces:
            batcher.queue.offer(EncodedTrace(trace), 3)
        while batcher.counts.exported < traces.spans:
            assert batcher.counts.dropped == NONE
            await asyncio.sleep(0.01)
        await batcher.close(60)
        bodies = [body for _, body in requests]
    if compression == "gzip" and protocol == HTTP:  # gRPC unpacks by itself
        bodies = [gzip.decompress(body) for body in bodies]
    first, *repeated, second = bodies
    assert repeated == [first, first]  # it failed twice
    assert first != second
    for body in (first, second):
        assert header_names(body) == SPANS_OF_A_TRACE * 20
    expected = (traces.request(traces.traces[:20]), traces.request(traces.traces[20:]))
    assert (first, second) == expected

"""Traces as bytes, made by the SDK and its own encoder."""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


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

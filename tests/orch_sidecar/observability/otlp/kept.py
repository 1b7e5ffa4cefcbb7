"""A batcher that keeps what it is given, and what a decoder of OTLP reads from its bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, cast

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator
from opentelemetry.sdk.trace.sampling import DEFAULT_ON, Sampler

from orch_sidecar.observability.otlp.attributes import Attributes, Limits
from orch_sidecar.observability.otlp.delivery import SpanBatcher
from orch_sidecar.observability.otlp.encoder import (
    SPAN_ID,
    START,
    ChildIds,
    SpanEncoder,
    request_encoder,
)
from orch_sidecar.observability.otlp.ids import request_ids
from orch_sidecar.observability.otlp.spans import RequestTrace, SpanTracing
from orch_sidecar.observability.tracing import SpanCounts


class Kept:
    """Stands in for SpanBatcher and its queue."""

    def __init__(self) -> None:
        self.queue = self
        self.traces: list[tuple[bytes, int]] = []
        self.invalid: list[int] = []  # spans of traces that could not be encoded

    def offer(self, trace: RequestTrace, spans: int) -> None:
        try:
            self.traces.append((trace.encode(), spans))
        except (ValueError, OverflowError, struct.error):
            self.invalid.append(spans)

    async def close(self, timeout_s: float) -> None:
        return

    def spans(self) -> list[Span]:
        """All spans, in the order in which they came."""
        found = spans_in(request_encoder({}, "", "")([trace for trace, _ in self.traces]))
        assert len(found) == sum(count for _, count in self.traces)
        return found


def tracing_to(
    kept: Kept,
    unplaced: Attributes,
    limits: Limits = Limits(),  # noqa: B008 - immutable
    sampler: Sampler = DEFAULT_ON,
    ids: IdGenerator | None = None,
    span_ids: Iterator[bytes] | None = None,
) -> SpanTracing:
    encoder = SpanEncoder(unplaced, limits)
    batcher = cast(SpanBatcher, kept)
    ids = ids or RandomIdGenerator()
    tracing = SpanTracing(encoder, batcher, SpanCounts(), sampler, ids)
    if span_ids is not None:
        traces = iter(lambda: ids.generate_trace_id().to_bytes(16), b"")
        tracing.ids, tracing.span_ids = map(request_ids, traces, span_ids), span_ids
        tracing.child_ids = map(child_ids, span_ids, span_ids)
    return tracing


def child_ids(wait_id: bytes, engine_id: bytes) -> ChildIds:
    return SPAN_ID + wait_id + START, SPAN_ID + engine_id + START, engine_id


def spans_in(request: bytes) -> list[Span]:
    """Those of all resources and scopes of an encoded ExportTraceServiceRequest."""
    return [
        span
        for resource in ExportTraceServiceRequest.FromString(request).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def attributes_of(span: Span) -> dict[str, Any]:
    """Its attributes, none of which is there twice."""
    found = {each.key: value_of(each.value) for each in span.attributes}
    assert len(found) == len(span.attributes), span
    return found


def value_of(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    return None if kind is None else getattr(value, kind)

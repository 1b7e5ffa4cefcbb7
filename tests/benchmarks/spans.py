"""CPU time per request of its three spans, in three ways: `python -m tests.benchmarks.spans`.

a. the SDK's tracer and its protobuf encoder,
b. the classes of protobuf, filled directly, without span objects,
c. the sidecar's encoder.

From the beginning of a trace to the bytes of an export of 512 spans. The ways take turns within
each round; `begin` to `ended` of a and b is everything that is not their encoding.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from typing import Any, Final, cast

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import DEFAULT_ON

from orch_sidecar.observability.otlp import attributes as of_spans
from orch_sidecar.observability.otlp.attributes import Attributes
from orch_sidecar.observability.otlp.delivery import SpanBatcher
from orch_sidecar.observability.otlp.encoder import (
    ENGINE_SPAN,
    WAIT_SPAN,
    SpanEncoder,
    request_encoder,
)
from orch_sidecar.observability.otlp.protobuf import sized
from orch_sidecar.observability.otlp.spans import RequestTrace, SpanTracing
from orch_sidecar.observability.record import Outcome, RequestRecord
from orch_sidecar.observability.tracing import SpanCounts, Tracing
from tests.orch_sidecar.observability.otlp.sdk_spans import SdkTracing
from tests.orch_sidecar.records import record_of
from vllm_plugin.contracts.lease_protocol import short_lease

BATCH_SPANS: Final = 512
COMMON: Final[dict[str, Any]] = {
    "measurement_type": "batched_online",
    "orch.profile": "cloud",
    "orch.batching": True,
    "orch.pool": "cloud",
}
LABELS: Final = COMMON | {"orch.class": "interactive"}
RESOURCE: Final = Resource.create({"service.name": "orch-sidecar", **COMMON})


class Requests:
    """Requests as the frontend has them, each with ids of its own."""

    def __init__(self) -> None:
        self._number = 0

    def run(self, tracing: Tracing) -> None:
        self._number += 1
        own_id = f"{self._number:032x}"
        record = record_of(id=own_id, request_id=own_id, correlation_id=own_id)
        trace = tracing.begin(record, {})
        assert trace is not None
        arrived = record.arrived
        record.model, record.cost, record.stream = "Qwen/Qwen3-0.6B", 1, True
        record.max_tokens = 128
        record.labels, record.placement = LABELS, "earliest"
        record.admitted = arrived + 40_000
        record.lease = f"0123456789abcdef.{own_id}.1"
        trace.dispatched()
        record.first_byte, record.last_token = arrived + 20_000_000, arrived + 900_000_000
        record.input_tokens, record.output_tokens = 1024, 128
        record.end(Outcome.OK, 200)
        trace.ended()


class SdkWay(SpanProcessor):
    """Collects what the SDK's spans are, and encodes batches of them."""

    def __init__(self) -> None:
        self._spans: list[ReadableSpan] = []
        self.bytes = 0
        provider = TracerProvider(resource=RESOURCE, shutdown_on_exit=False)
        provider.add_span_processor(self)
        self.tracing: Tracing = SdkTracing(provider, COMMON)

    def on_end(self, span: ReadableSpan) -> None:
        self._spans.append(span)
        if len(self._spans) >= BATCH_SPANS:
            self.flush()

    def flush(self) -> None:
        spans, self._spans = self._spans, []
        self.bytes += len(encode_spans(spans).SerializeToString())


class MessageEncoder(SpanEncoder):
    """Fills the messages of protobuf. What is equal for many requests is copied as a message."""

    def __init__(self, unplaced: Attributes) -> None:
        super().__init__(unplaced)
        self._templates: dict[tuple[object, ...], Span] = {}

    def usual(self, record: Any, *rest: Any) -> bytes:
        (trace_id, of_server), (of_wait, _, engine_id), ended_ns, _ = rest
        server_id, wait_id = of_server[:8], of_wait[2:10]
        labels, lease = record.labels, record.lease
        arrived_ns, admitted_ns = record.arrived_ns, record.at_ns(record.admitted)
        wait = self._template((WAIT_SPAN, id(labels)), 1, {**labels, "orch.cost": record.cost})
        engine = _filled(
            self._of_record(ENGINE_SPAN, 3, record),
            (trace_id, engine_id, server_id, admitted_ns, ended_ns),
        )
        engine.attributes.add(key="orch.lease").value.string_value = short_lease(lease)
        server = _filled(
            self._of_record(record.endpoint.path, 2, record),
            (trace_id, server_id, None, arrived_ns, ended_ns),
        )
        server.attributes.add(key="orch.placement").value.string_value = record.placement
        last_token_s = record.seconds_to(record.last_token) or 0.0
        server.attributes.add(key="orch.last_token_s").value.double_value = last_token_s
        first_chunk_s = record.seconds_to(record.first_byte) or 0.0
        server.attributes.add(key=of_spans.FIRST_CHUNK).value.double_value = first_chunk_s
        spans = (
            _filled(wait, (trace_id, wait_id, server_id, arrived_ns, admitted_ns)),
            _own(engine, record),
            _own(server, record),
        )
        return b"".join(map(_bytes, spans))

    def _of_record(self, name: str, kind: int, record: RequestRecord) -> Span:
        labels = self.labels_of(record)
        key = (
            name, id(labels), record.endpoint, record.method, record.outcome, record.status,
            record.cost, record.stream, record.model,
        )  # fmt: skip
        if key in self._templates:
            return self._templates[key]
        own = {each.key for each in _own(Span(), record).attributes}
        fixed = of_spans.of_record(record, labels) | of_spans.of_error(record)
        return self._template(key, kind, {k: v for k, v in fixed.items() if k not in own})

    def _template(self, key: tuple[object, ...], kind: int, values: Attributes) -> Span:
        if (found := self._templates.get(key)) is None:
            found = Span(name=str(key[0]), kind=kind, status=Status())  # type: ignore[arg-type]
            found.attributes.extend(_pair(name, value) for name, value in values.items())
            self._templates[key] = found
        return found


def _pair(name: str, value: Any) -> KeyValue:
    kind = {bool: "bool_value", int: "int_value", float: "double_value"}.get(
        type(value), "string_value"
    )
    return KeyValue(key=name, value=AnyValue(**{kind: value}))


def _filled(template: Span, head: Any) -> Span:
    trace_id, span_id, parent_id, start_ns, end_ns, *_ = head
    span = Span()
    span.CopyFrom(template)
    span.trace_id, span.span_id, span.flags = trace_id, span_id, 0x100
    if parent_id is not None:
        span.parent_span_id = parent_id
    span.start_time_unix_nano, span.end_time_unix_nano = start_ns, end_ns
    return span


def _own(span: Span, record: RequestRecord) -> Span:
    add = span.attributes.add
    add(key="orch.request_id").value.string_value = record.request_id
    add(key="orch.correlation_id").value.string_value = record.correlation_id
    add(key="gen_ai.request.max_tokens").value.int_value = record.max_tokens or 0
    add(key="gen_ai.usage.input_tokens").value.int_value = record.input_tokens or 0
    add(key="gen_ai.usage.output_tokens").value.int_value = record.output_tokens or 0
    add(key="orch.first_byte_s").value.double_value = record.seconds_to(record.first_byte) or 0.0
    return span


def _bytes(span: Span) -> bytes:
    return sized(b"\x12", span.SerializeToString())


class OwnWay:
    """A batcher, and its queue, that encodes requests and throws them away."""

    def __init__(self, encoder: SpanEncoder) -> None:
        self.queue = self
        self._traces: list[RequestTrace] = []
        self._waiting = 0
        self.bytes = 0
        self._request = request_encoder(RESOURCE.attributes, RESOURCE.schema_url, "orch_sidecar")
        self.tracing: Tracing = SpanTracing(
            encoder, cast(SpanBatcher, self), SpanCounts(), DEFAULT_ON, RandomIdGenerator()
        )

    def offer(self, trace: RequestTrace, spans: int) -> None:
        self._traces.append(trace)
        self._waiting += spans
        if self._waiting >= BATCH_SPANS:
            self.flush()

    def flush(self) -> None:
        traces, self._traces, self._waiting = self._traces, [], 0
        self.bytes += len(self._request([trace.encode() for trace in traces]))

    async def close(self, timeout_s: float) -> None:
        return


def measured(way: SdkWay | OwnWay, requests: int) -> float:
    """Returns the CPU time per request, in microseconds."""
    run, tracing = Requests().run, way.tracing
    begin = time.process_time_ns()
    for _ in range(requests):
        run(tracing)
    way.flush()
    return (time.process_time_ns() - begin) / 1e3 / requests


class Nothing:
    """Traces that cost nothing: what the benchmark itself takes."""

    spans = None

    def begin(self, record: RequestRecord, headers: Any) -> Any:
        return self

    def dispatched(self) -> None:
        return

    ended = dispatched


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--requests", type=int, default=3000, help="of each way, per round")
    options = parser.parse_args(arguments)
    own, none = OwnWay(SpanEncoder(COMMON)), OwnWay(SpanEncoder(COMMON))
    none.tracing = Nothing()  # type: ignore[assignment]
    ways: dict[str, SdkWay | OwnWay] = {
        "nothing": none,
        "a. SDK": SdkWay(),
        "b. protobuf's classes": OwnWay(MessageEncoder(COMMON)),
        "c. own encoder": own,
    }
    figures: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(options.rounds + 1):
        for name, way in ways.items():
            figure = measured(way, options.requests)
            if number:  # the first one warms up
                figures[name].append(figure)
    base = statistics.median(figures["nothing"])
    print(f"{'CPU us per request':24} {'median':>8} {'least':>8} {'most':>8} {'bytes':>8}")
    for name, way in ways.items():
        less = 0.0 if way is none else base
        least, middle, most = (f(figures[name]) - less for f in (min, statistics.median, max))
        size = way.bytes / options.requests / (options.rounds + 1)
        print(f"{name:24} {middle:8.1f} {least:8.1f} {most:8.1f} {size:8.0f}")
    ratios = [
        (b - base) / (c - base)
        for b, c in zip(figures["b. protobuf's classes"], figures["c. own encoder"], strict=True)
    ]
    print(f"b / c: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()

"""Request spans as bytes: what OpenTelemetry's own encoder makes of spans with all labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.grpc import trace_exporter as grpc
from opentelemetry.exporter.otlp.proto.http import trace_exporter as http
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AnyValue

from vllm_plugin.adapters.span_encoder import RequestSpanEncoder

LABELS: dict[str, AnyValue] = {"orch.pool": "cloud", "orch.batching": True, "orch.slots_total": 8}
OWN: dict[str, AnyValue] = {
    "gen_ai.request.id": "cmpl-1",
    "gen_ai.usage.prompt_tokens": 5,
    "e2e": 0.25,
    "flag": False,
}
PARENT = f"00-{0xA:032x}-{0xB:016x}-01"


class Spans:
    """Spans of one provider, as its exporter gets them."""

    def __init__(self) -> None:
        self._exporter, self._provider = InMemorySpanExporter(), TracerProvider()
        self._provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def add(
        self, name: str, attributes: Mapping[str, Any], scope: str = "vllm", **headers: str
    ) -> Any:
        context = TraceContextTextMapPropagator().extract(headers)
        tracer = self._provider.get_tracer(scope)
        span = tracer.start_span(name, context, kind=SpanKind.SERVER, start_time=1_000)
        span.set_attributes(dict(attributes))
        return span

    def ended(self, *open_spans: Any) -> tuple[ReadableSpan, ...]:
        for span in open_spans:
            span.end(2_000)
        return self._exporter.get_finished_spans()


def by_name_and_attribute(request: Any) -> Any:
    """Sorts what has no order: spans by their ids, attributes by their keys."""
    for resource in request.resource_spans:
        for scope in resource.scope_spans:
            scope.spans.sort(key=lambda span: span.span_id)
            for span in scope.spans:
                span.attributes.sort(key=lambda attribute: attribute.key)
        resource.scope_spans.sort(key=lambda scope: scope.scope.name)
    return request


def with_labels(spans: Sequence[ReadableSpan]) -> list[ReadableSpan]:
    """Returns the same spans as if the SDK had been given all labels of request spans."""
    return [
        ReadableSpan(
            span.name,
            span.context,
            span.parent,
            span.resource,
            {**(span.attributes or {}), **(LABELS if span.name == "llm_request" else {})},
            span.events,
            span.links,
            span.kind,
            status=span.status,
            start_time=span.start_time,
            end_time=span.end_time,
            instrumentation_scope=span.instrumentation_scope,
        )
        for span in spans
    ]


def assert_encoded_as_by_the_sdk(spans: Sequence[ReadableSpan]) -> None:
    encode = RequestSpanEncoder(lambda: LABELS)
    expected = by_name_and_attribute(encode_spans(with_labels(spans)))
    for _ in range(2):  # the second time from prepared forms only
        assert by_name_and_attribute(encode(spans)) == expected


def test_batch_is_what_the_sdk_encodes_with_all_labels_on_every_span() -> None:
    spans = Spans()
    some = [
        spans.add("startup", {"a": 1}, "another scope"),
        spans.add("llm_request", OWN, traceparent=PARENT),
        spans.add("in the same scope", {}),
        spans.add("llm_request", OWN | {"e2e": 0.5, "flag": True}, traceparent=PARENT),
        spans.add("llm_request", OWN | {"e2e": 1}, traceparent=PARENT),  # another type
        spans.add("llm_request", {}),
        spans.add("llm_request", OWN),  # without a parent
        spans.add("llm_request", OWN, traceparent=PARENT, tracestate="a=b,c=d"),
        spans.add("llm_request", OWN, traceparent=PARENT),  # without a state again
    ]
    assert_encoded_as_by_the_sdk(spans.ended(*some))


def test_batch_without_request_spans_is_as_it_was() -> None:
    spans = Spans()
    assert_encoded_as_by_the_sdk(spans.ended(spans.add("startup", {"a": 1})))


def test_span_with_what_vllm_does_not_set_is_encoded_with_it_and_leaves_no_trace() -> None:
    spans = Spans()
    unusual = [spans.add("llm_request", OWN) for _ in range(3)]
    unusual[0].add_event("half")
    unusual[1].set_status(StatusCode.ERROR, "broken")
    unusual[2].set_attribute("e2e", (1, 2))
    plain = spans.add("llm_request", OWN)
    assert_encoded_as_by_the_sdk(spans.ended(*unusual, plain))


@pytest.mark.parametrize("value", [2**63, "\ud800"])
def test_attribute_that_otlp_cannot_have_is_left_out_and_costs_no_other_span(value: Any) -> None:
    spans = Spans()
    some = [
        spans.add("llm_request", OWN | {"more": each}) for each in (value, type(value)(), value)
    ]
    assert_encoded_as_by_the_sdk(spans.ended(*some))


def test_labels_are_cut_where_the_sdk_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "3")
    spans = Spans()
    request = RequestSpanEncoder(lambda: LABELS)(spans.ended(spans.add("llm_request", OWN)))
    attributes = request.resource_spans[0].scope_spans[0].spans[0].attributes
    assert [each.value.string_value for each in attributes if each.key == "orch.pool"] == ["clo"]


def test_both_exporters_of_vllm_encode_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (grpc, http):
        monkeypatch.setattr(module, "encode_spans", encode_spans)
    encoder = RequestSpanEncoder(dict)
    encoder.install()
    assert vars(grpc)["encode_spans"] is encoder
    assert vars(http)["encode_spans"] is encoder

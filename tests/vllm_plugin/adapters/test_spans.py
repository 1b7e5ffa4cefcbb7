"""Labels on vLLM's spans, by the SDK's tracer provider and an in-memory exporter, and as bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.grpc import trace_exporter as grpc
from opentelemetry.exporter.otlp.proto.http import trace_exporter as http
from opentelemetry.proto.common.v1.common_pb2 import AnyValue as ValueMessage
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import ProxyTracerProvider, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AnyValue

from tests.vllm_plugin.examples import FACTS, SETTINGS
from vllm_plugin.adapters.spans import (
    RequestSpanEncoder,
    RequestSpanLabeller,
    SpanLabeller,
    engine_labels,
    label_process,
)
from vllm_plugin.contracts.profile import load
from vllm_plugin.state.engine_state import EngineState

PROFILES = {name: load(name) for name in ("home", "cloud")}
VLLM_ATTRIBUTES: dict[str, Any] = {
    "gen_ai.request.id": "cmpl-1-0",
    "gen_ai.usage.prompt_tokens": 5,
    "gen_ai.usage.completion_tokens": 7,
    "gen_ai.latency.time_to_first_token": 0.25,
}


NOW_S = 1000.0
ARRIVED_S = NOW_S - 1.25  # the first token came a second ago


class Tracer:
    """Creates spans as vLLM does: starts them, sets attributes, ends them."""

    def __init__(self, engine_state: EngineState) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        # vLLM's exporting processor is added before the plugin's.
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.provider.add_span_processor(SpanLabeller(PROFILES[engine_state.facts.profile]))
        self.provider.add_span_processor(RequestSpanLabeller(engine_state))
        self.encode = RequestSpanEncoder(lambda: engine_labels(engine_state))

    def span(
        self,
        name: str,
        attributes: Mapping[str, Any],
        traceparent: str | None = None,
        start_s: float = ARRIVED_S,
    ) -> dict[str, Any]:
        """Returns the attributes that are exported."""
        headers = {} if traceparent is None else {"traceparent": traceparent}
        context = TraceContextTextMapPropagator().extract(headers)
        tracer = self.provider.get_tracer("vllm")
        span = tracer.start_span(name, context, start_time=int(start_s * 1e9))
        span.set_attributes(dict(attributes))
        span.end()
        exported: tuple[ReadableSpan, ...] = self.exporter.get_finished_spans()
        (scope,) = self.encode(exported[-1:]).resource_spans[0].scope_spans
        return {each.key: _value(each.value) for each in scope.spans[0].attributes}


def _value(value: ValueMessage) -> Any:
    field = value.WhichOneof("value")
    assert field is not None
    return getattr(value, field)


def state_with_steps(*batches: int, facts: Any = FACTS) -> EngineState:
    """Returns a state with steps of 10 ms each, the last of which has just ended."""
    engine_state = EngineState(facts)
    for index, batch in enumerate(batches):
        end_s = NOW_S - (len(batches) - 1 - index) * 0.01
        engine_state.speed.steps.record(end_s, 0.01, batch, decode_only=True)
    return engine_state


def test_request_span_is_labelled_with_the_batch_statistics() -> None:
    engine_state = state_with_steps(1, 2, 6)
    tracer = Tracer(engine_state)
    # As at the start of the endpoint: after the labeller, before the first request.
    engine_state.conditions = replace(FACTS.conditions, attention_backend="FLASH_ATTN")
    labels = tracer.span("llm_request", VLLM_ATTRIBUTES)
    assert labels == VLLM_ATTRIBUTES | {
        "measurement_type": "batched_online",
        "orch.profile": "cloud",
        "orch.batching": True,
        "orch.slots_total": 8,
        "orch.pool": "cloud",
        "orch.steps": 3,
        "orch.batch_size.max": 6,
        "orch.batch_size.mean": 3.0,
        "orch.engine_version": "0.32.0",
        "orch.epoch": "e1",
        "orch.gpu": "NVIDIA H100 80GB HBM3",
        "orch.gpu_count": 2,
        "orch.precision": "BF16",
        "orch.weights": "/models/tiny",
        "orch.speculative": "ngram:3",
        "orch.quantization": "none",
        "orch.kv_cache_dtype": "bfloat16",
        "orch.prefix_caching": "on",
        "orch.attention_backend": "FLASH_ATTN",
        "orch.tensor_parallel": 2,
        "orch.pipeline_parallel": 1,
        **{f"orch.{name}": value for name, value in SETTINGS.items()},
        "orch.loaded": "unknown",
        "orch.tokens_per_step": 4,
        "orch.engine_steps": 3,
        "orch.requests_total": 0,
        "orch.decode_steps_total": 3,
        "orch.decode_sequences_total": 9,
        "orch.prefix_cache.queries_total": 0,
        "orch.prefix_cache.hits_total": 0,
        "orch.prefix_cache.queries_before": 0,
        "orch.prefix_cache.hits_before": 0,
        "gen_ai.provider.name": "vllm",
        "gen_ai.operation.name": "text_completion",
        "gen_ai.request.model": "tiny",
        "gen_ai.usage.input_tokens": 5,
        "gen_ai.usage.output_tokens": 7,
    }


def test_home_engine_is_labelled_single_stream() -> None:
    facts = replace(
        FACTS, profile="home", measurement_type="single_stream", batching=False, slots_total=1
    )
    labels = Tracer(state_with_steps(1, 1, facts=facts)).span("llm_request", VLLM_ATTRIBUTES)
    assert labels["measurement_type"] == "single_stream"
    assert labels["orch.batching"] is False
    assert (labels["orch.batch_size.max"], labels["orch.batch_size.mean"]) == (1, 1.0)


def test_only_steps_during_the_request_are_counted() -> None:
    """Those before its first token computed its prompt, or waited for it."""
    attributes = VLLM_ATTRIBUTES | {"gen_ai.latency.time_to_first_token": 1.235}
    labels = Tracer(state_with_steps(9, 9, 9, 2, 4)).span("llm_request", attributes)
    assert labels["orch.batch_size.max"] == 4
    assert (labels["orch.steps"], labels["orch.engine_steps"]) == (2, 5)


def test_request_without_a_known_step_has_no_batch_sizes() -> None:
    labels = Tracer(state_with_steps()).span("llm_request", VLLM_ATTRIBUTES)
    assert (labels["orch.steps"], labels["orch.engine_steps"]) == (0, 0)
    assert not [name for name in labels if name.startswith("orch.batch_size")]


@pytest.mark.parametrize("first_token_s", [None, "soon"])
def test_request_without_the_time_of_a_first_token_has_no_steps(first_token_s: str | None) -> None:
    attributes = dict(VLLM_ATTRIBUTES)
    del attributes["gen_ai.latency.time_to_first_token"]
    if first_token_s is not None:
        attributes["gen_ai.latency.time_to_first_token"] = first_token_s
    labels = Tracer(state_with_steps(3)).span("llm_request", attributes)
    assert "orch.steps" not in labels
    assert labels["measurement_type"] == "batched_online"
    assert labels["gen_ai.usage.input_tokens"] == 5


@pytest.mark.parametrize(
    ("request_id", "operation"),
    [
        ("cmpl-1-0", "text_completion"),
        ("chatcmpl-1", "chat"),
        ("resp_1", "chat"),
        (None, "chat"),
    ],
)
def test_operation_follows_from_the_request_id(request_id: str | None, operation: str) -> None:
    attributes = {k: v for k, v in VLLM_ATTRIBUTES.items() if k != "gen_ai.request.id"}
    if request_id is not None:
        attributes["gen_ai.request.id"] = request_id
    labels = Tracer(state_with_steps(1)).span("llm_request", attributes)
    assert labels["gen_ai.operation.name"] == operation


def test_token_counts_that_are_missing_stay_missing() -> None:
    labels = Tracer(state_with_steps(1)).span("llm_request", {})
    assert "gen_ai.usage.input_tokens" not in labels
    assert "gen_ai.usage.output_tokens" not in labels


def test_other_spans_are_labelled_with_the_profile_only() -> None:
    labels = Tracer(state_with_steps(1)).span("startup", {"a": 1})
    assert labels == {"a": 1, "measurement_type": "batched_online", "orch.profile": "cloud"}


def test_open_spans_are_labelled_with_their_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in a worker of vLLM, which opens spans before it loads plugins."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr("opentelemetry.trace.get_tracer_provider", lambda: provider)
    tracer = provider.get_tracer("vllm")
    tracer.start_span("ended before").end()
    with tracer.start_as_current_span("outer"), tracer.start_as_current_span("inner"):
        assert label_process(PROFILES["home"])
        tracer.start_span("later").end()
    labels = {span.name: dict(span.attributes or {}) for span in exporter.get_finished_spans()}
    expected = {"measurement_type": "single_stream", "orch.profile": "home"}
    assert labels == {"ended before": {}} | dict.fromkeys(("outer", "inner", "later"), expected)


def test_process_without_a_provider_is_not_labelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opentelemetry.trace.get_tracer_provider", ProxyTracerProvider)
    assert not label_process(PROFILES["home"])


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

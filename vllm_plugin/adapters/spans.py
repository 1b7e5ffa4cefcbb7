"""Labels vLLM's spans with how the engine was batching while it served a request.

Every span has `measurement_type`, those of the engine's start included. vLLM creates a tracer
provider in each of its processes, and opens spans around the start of a worker before it loads
plugins there; the SDK keeps no list of open spans, so they are found among all objects, once.

vLLM creates an `llm_request` span for each finished request in the output processor, just before
it records the statistics of the same step: the steps known when the span ends lack the last one,
and so do the counters of steps.
The batch statistics need the times that vLLM sets on the span after its start. The SDK's hook for
that, `_on_ending`, receives a span that is already read-only (SDK 1.45), so the span's own `end`
is wrapped at its start: that is the last moment at which the span can be modified.

Most labels are the same for all request spans of an engine. As attributes of each span, the SDK
would clean, copy and encode every one of them for every request. So they are encoded once for all
spans with the same attributes, and what differs is filled in. vLLM's exporters for HTTP and for
gRPC encode with OpenTelemetry's `encode_spans`, which each of their modules imports by name:
`RequestSpanEncoder` puts itself there. OpenTelemetry has no hook between the end of a span and its
bytes.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Final, NamedTuple

from opentelemetry import trace
from opentelemetry.attributes import BoundedAttributes
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.util.types import AttributeValue

from vllm_plugin.contracts.profile import Profile
from vllm_plugin.state.engine_state import EngineState

REQUEST_SPAN: Final = "llm_request"

# vLLM's names (vllm/tracing/utils.py). Those of token counts are deprecated in OpenTelemetry.
_PROMPT_TOKENS: Final = "gen_ai.usage.prompt_tokens"
_COMPLETION_TOKENS: Final = "gen_ai.usage.completion_tokens"
_TTFT_S: Final = "gen_ai.latency.time_to_first_token"
_REQUEST_ID: Final = "gen_ai.request.id"

_FIELDS: Final[Mapping[type, str]] = {
    str: "string_value",
    bool: "bool_value",
    int: "int_value",
    float: "double_value",
}
_OTHER: Final = "a list or a mapping"


class SpanLabeller(SpanProcessor):
    """Adds `measurement_type` to every span."""

    def __init__(self, profile: Profile) -> None:
        self.labels: Mapping[str, str] = {
            "measurement_type": profile.measurement_type.value,
            "orch.profile": profile.name,
        }

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        span.set_attributes(self.labels)


def label_process(profile: Profile) -> bool:
    """Labels the open spans of this process, and all spans from now on.

    Returns False if the process has no tracer provider of the SDK yet.
    """
    provider = trace.get_tracer_provider()
    if not isinstance(provider, TracerProvider):
        return False
    processor = SpanLabeller(profile)
    provider.add_span_processor(processor)
    for each in gc.get_objects():
        # Not isinstance: that reads the object's __class__, and a lazy module would load.
        if issubclass(type(each), Span) and each.is_recording():
            each.set_attributes(processor.labels)
    return True


class RequestSpanLabeller(SpanProcessor):
    """Adds the engine's counters, and what differs from request to request, to request spans.

    The counters are cumulative, so that the spans of a window show whether it has others' requests
    or sequences: their own numbers and steps must account for all between the first and the last.
    """

    def __init__(self, engine_state: EngineState) -> None:
        self._engine_state = engine_state

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        if span.name != REQUEST_SPAN:
            return
        end = span.end

        def label_and_end(end_time: int | None = None) -> None:
            del span.end  # restores the method of the class
            self._label(span)
            end(end_time)

        span.end = label_and_end  # type: ignore[method-assign]

    def _label(self, span: Span) -> None:
        given = span.attributes or {}
        request_id = str(given.get(_REQUEST_ID, ""))
        labels: dict[str, AttributeValue] = {
            # vLLM prefixes ids by endpoint; what is not a plain completion is a chat.
            "gen_ai.operation.name": (
                "text_completion" if request_id.startswith("cmpl-") else "chat"
            ),
        }
        for vllm_name, name in (
            (_PROMPT_TOKENS, "gen_ai.usage.input_tokens"),
            (_COMPLETION_TOKENS, "gen_ai.usage.output_tokens"),
        ):
            if (count := given.get(vllm_name)) is not None:
                labels[name] = count
        self._count(span, labels)
        self._describe_steps(span.start_time, given.get(_TTFT_S), labels)
        span.set_attributes(labels)

    def _count(self, span: Span, labels: dict[str, AttributeValue]) -> None:
        """Adds the engine's counters: as they are now, and as they were when the request came."""
        engine_state = self._engine_state
        parent = span.parent
        if parent is not None:
            number = engine_state.request_numbers.of((parent.trace_id, parent.span_id))
            if number is not None:
                labels["orch.request_number"] = number
        labels["orch.requests_total"] = engine_state.leases.entered
        labels["orch.decode_steps_total"] = engine_state.speed.steps.decode_count
        labels["orch.decode_sequences_total"] = engine_state.speed.steps.decode_sequences
        prefix_cache = engine_state.prefix_cache
        labels["orch.prefix_cache.queries_total"] = prefix_cache.now.queries
        labels["orch.prefix_cache.hits_total"] = prefix_cache.now.hits
        # vLLM starts the span at the arrival of the request.
        before = None if span.start_time is None else prefix_cache.before(span.start_time / 1e9)
        if before is not None:
            labels["orch.prefix_cache.queries_before"] = before.queries
            labels["orch.prefix_cache.hits_before"] = before.hits

    def _describe_steps(
        self, arrived_ns: int | None, first_token_s: object, labels: dict[str, AttributeValue]
    ) -> None:
        """Adds the decode steps since the first token, and all steps since the arrival.

        vLLM takes both times by the clock by which steps are reported here, as it processes the
        output of the engine core: a busy API server delays all of them alike.
        """
        if arrived_ns is None or not isinstance(first_token_s, int | float):
            return
        ring = self._engine_state.speed.steps
        steps = ring.since(arrived_ns / 1e9 + first_token_s)
        labels["orch.steps"] = steps.steps
        labels["orch.engine_steps"] = ring.count_since(arrived_ns / 1e9)
        if steps.steps:
            labels["orch.batch_size.max"] = steps.largest
            labels["orch.batch_size.mean"] = steps.mean


def engine_labels(engine_state: EngineState) -> Mapping[str, str | int | bool]:
    """Returns the labels that all request spans of an engine have.

    The conditions are complete when the first request has finished.
    """
    facts, conditions = engine_state.facts, asdict(engine_state.conditions)
    return {
        "orch.batching": facts.batching,
        "orch.slots_total": facts.slots_total,
        "orch.pool": facts.pool,
        "orch.engine_version": facts.engine_version,
        "orch.epoch": facts.epoch,
        "orch.gpu": facts.hardware.gpu,
        "orch.gpu_count": facts.hardware.gpu_count,
        "orch.precision": facts.hardware.precision,
        "orch.weights": facts.weights,
        **{f"orch.{name}": value for name, value in conditions.items()},
        "orch.tokens_per_step": facts.tokens_per_step,
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.model": facts.models[0],
    }


class _Form(NamedTuple):
    """A span to be filled in: its message, and the values of its own attributes in order."""

    message: SpanMessage
    values: list[AnyValue]


class RequestSpanEncoder:
    """Encodes batches of spans, as `encode_spans` does."""

    def __init__(self, constant: Callable[[], Mapping[str, AttributeValue]]) -> None:
        """`constant`: the labels of all request spans, asked for when the first has ended."""
        self._constant = constant
        # By names and types of the attributes, of which vLLM leaves out some, and by the parent.
        self._forms: dict[tuple[object, ...], _Form] = {}
        self._lock = threading.Lock()  # a form is filled in by one thread at a time

    def install(self) -> None:
        """Encodes for vLLM's exporters from now on.

        Raises RuntimeError if they encode in another way: the labels would be missing.
        """
        from opentelemetry.exporter.otlp.proto.grpc import trace_exporter as grpc
        from opentelemetry.exporter.otlp.proto.http import trace_exporter as http

        for module in (grpc, http):
            if "encode_spans" not in vars(module):
                raise RuntimeError(
                    f"{module.__name__} has no encode_spans, by which request spans get their "
                    "labels: install another OpenTelemetry, or remove --otlp-traces-endpoint"
                )
            vars(module)["encode_spans"] = self

    def __call__(self, spans: Sequence[ReadableSpan]) -> ExportTraceServiceRequest:
        """Encodes spans. All request spans have one resource and one scope: vLLM's tracer's."""
        ours = [span for span in spans if span.name == REQUEST_SPAN]
        request = encode_spans([span for span in spans if span.name != REQUEST_SPAN] + ours[:1])
        if ours:
            scope = _scope_of_last(request, REQUEST_SPAN)
            del scope.spans[-1]
            with self._lock:
                for span in ours:
                    scope.spans.append(self._encode(span))
        return request

    def _encode(self, span: ReadableSpan) -> SpanMessage:
        attributes = span.attributes or {}
        fields = [_FIELDS.get(type(value), _OTHER) for value in attributes.values()]
        parent = span.parent
        key = (*attributes, *fields, parent is None, parent is not None and parent.is_remote)
        form = self._forms.get(key)
        # vLLM adds none of these; a span that has them is encoded as it is.
        unusual = span.events or span.links or span.dropped_attributes or _OTHER in fields
        unusual = unusual or not span.status.is_unset
        if form is None or unusual or not _filled_in(form, fields, attributes.values()):
            form = self._new_form(span)
            if not unusual and len(form.values) == len(fields):
                self._forms[key] = form
            return form.message
        message, context = form.message, span.context
        assert context is not None  # it has ended
        message.trace_id = context.trace_id.to_bytes(16)
        message.span_id = context.span_id.to_bytes(8)
        message.trace_state = context.trace_state.to_header()
        if parent is not None:
            message.parent_span_id = parent.span_id.to_bytes(8)
        message.start_time_unix_nano = span.start_time or 0
        message.end_time_unix_nano = span.end_time or 0
        return message

    def _new_form(self, span: ReadableSpan) -> _Form:
        """Encodes a span by the SDK's encoder, with the constant labels within its limits."""
        whole = _scope_of_last(encode_spans([span]), REQUEST_SPAN).spans[0]
        own = len(whole.attributes)
        constant = BoundedAttributes(
            attributes=self._constant(), max_value_len=SpanLimits().max_span_attribute_length
        )
        labels = ReadableSpan(REQUEST_SPAN, span.context, attributes=constant)
        encoded = _scope_of_last(encode_spans([labels]), REQUEST_SPAN).spans[0]
        whole.attributes.extend(encoded.attributes)
        return _Form(whole, [attribute.value for attribute in whole.attributes[:own]])


def _filled_in(form: _Form, fields: Sequence[str], attributes: Iterable[AttributeValue]) -> bool:
    """Fills in the attributes. False: one has a value that OTLP cannot have (an integer of more
    than 64 bits, half a surrogate pair), which OpenTelemetry leaves out."""
    try:
        for value, field, given in zip(form.values, fields, attributes, strict=True):
            setattr(value, field, given)
    except ValueError:
        return False
    return True


def _scope_of_last(request: ExportTraceServiceRequest, name: str) -> ScopeSpans:
    """Returns the spans of the scope whose last span has this name."""
    scope: ScopeSpans
    for resource in request.resource_spans:
        for scope in resource.scope_spans:
            if scope.spans[-1].name == name:
                return scope
    raise ValueError(f"no scope ends with a span {name}")

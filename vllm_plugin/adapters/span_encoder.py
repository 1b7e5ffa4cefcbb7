"""Encodes vLLM's request spans for OTLP, and adds what is the same for all of an engine.

That is most of the labels. As attributes of each span, the SDK would clean, copy and encode every
one of them for every request; here they are encoded once for all spans with the same attributes,
and what differs is filled in.

vLLM's exporters for HTTP and for gRPC encode with OpenTelemetry's `encode_spans`, which each of
their modules imports by name: `install` puts itself there. OpenTelemetry has no hook between the
end of a span and its bytes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from opentelemetry.attributes import BoundedAttributes
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits
from opentelemetry.util.types import AttributeValue

from vllm_plugin.adapters.spans import REQUEST_SPAN

_FIELDS: Final[Mapping[type, str]] = {
    str: "string_value",
    bool: "bool_value",
    int: "int_value",
    float: "double_value",
}
_OTHER: Final = "a list or a mapping"


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
        """Encodes a span slowly, with the constant labels, cut as the SDK is told to cut."""
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

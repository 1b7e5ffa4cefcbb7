"""Parses OTLP/JSON, which the collector writes to files and Jaeger's newer API returns.

Pure. The encoding is proto3's of `ExportTraceServiceRequest` with two differences: ids are
hexadecimal, enumerations are numbers (opentelemetry.io/docs/specs/otlp, "JSON Protobuf
Encoding"). Names of enumerations are accepted, too, since some writers use them. Unknown fields
are ignored, as the specification demands.
"""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Final

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    ValidationError,
    model_validator,
)
from pydantic.alias_generators import to_camel

from orch_sidecar.tools.facts.traces.span import Kind, Link, Span, Value

# Indexed by the numbers of `Span.SpanKind` (opentelemetry-proto, trace.proto).
_KINDS: Final = tuple(Kind)
_ERROR: Final = 2  # Status.StatusCode

_TRACES: Final = "resourceSpans"


class Malformed(ValueError):
    """Input that violates its format; the message names the place, the value and the rule."""


def _id(digits: int, text: str) -> str:
    if len(text) != digits or not set(text.lower()) <= set("0123456789abcdef"):
        raise ValueError(f"must be {digits} hexadecimal digits")
    return text.lower()


def _trace_id(text: str) -> str:
    return _id(32, text)


def _span_id(text: str) -> str:
    return _id(16, text)


def _parent_id(text: str | None) -> str | None:
    return _id(16, text) if text else None


def _kind(value: object) -> Kind:
    if isinstance(value, str) and value.startswith("SPAN_KIND_"):
        value = value.removeprefix("SPAN_KIND_").lower()
        if value in _KINDS:
            return Kind(value)
    if isinstance(value, int) and 0 <= value < len(_KINDS):
        return _KINDS[value]
    raise ValueError(f"must be a span kind, as a number up to {len(_KINDS) - 1} or by name")


def _code(value: object) -> int:
    names = ("STATUS_CODE_UNSET", "STATUS_CODE_OK", "STATUS_CODE_ERROR")
    if isinstance(value, str) and value in names:
        return names.index(value)
    if isinstance(value, int) and 0 <= value < len(names):
        return value
    raise ValueError("must be a status code: 0, 1, 2, or its name")


def _bytes(value: object) -> bytes | None:
    try:
        return None if value is None else base64.b64decode(str(value), validate=True)
    except binascii.Error:
        raise ValueError("must be base64") from None


class _Message(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, extra="ignore", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, document: object) -> object:
        """Drops nulls: in proto3's JSON a null is a missing field."""
        if not isinstance(document, dict):
            return document
        return {name: value for name, value in document.items() if value is not None}


class _AnyValue(_Message):
    """At most one field is set. 64-bit integers are encoded as text."""

    string_value: str | None = None
    bool_value: bool | None = None
    int_value: int | None = None
    double_value: float | None = None
    bytes_value: Annotated[bytes | None, BeforeValidator(_bytes)] = None
    array_value: _Array | None = None
    kvlist_value: _Map | None = None

    @property
    def value(self) -> Value:
        if self.array_value is not None:
            return tuple(each.value for each in self.array_value.values)
        if self.kvlist_value is not None:
            return tuple(_attributes(self.kvlist_value.values).items())
        scalars = (
            self.string_value,
            self.bool_value,
            self.int_value,
            self.double_value,
            self.bytes_value,
        )
        return next((value for value in scalars if value is not None), None)


class _KeyValue(_Message):
    key: str
    value: _AnyValue | None = None


class _Array(_Message):
    values: tuple[_AnyValue, ...] = ()


class _Map(_Message):
    values: tuple[_KeyValue, ...] = ()


class _Link(_Message):
    trace_id: Annotated[str, AfterValidator(_trace_id)]
    span_id: Annotated[str, AfterValidator(_span_id)]


class _Status(_Message):
    code: Annotated[int, BeforeValidator(_code)] = 0


class _Span(_Message):
    trace_id: Annotated[str, AfterValidator(_trace_id)]
    span_id: Annotated[str, AfterValidator(_span_id)]
    parent_span_id: Annotated[str | None, AfterValidator(_parent_id)] = None
    name: str = ""
    kind: Annotated[Kind, BeforeValidator(_kind)] = Kind.UNSPECIFIED
    start_time_unix_nano: int = 0
    end_time_unix_nano: int = 0
    attributes: tuple[_KeyValue, ...] = ()
    links: tuple[_Link, ...] = ()
    status: _Status = _Status()


class _ScopeSpans(_Message):
    spans: tuple[_Span, ...] = ()


class _Resource(_Message):
    attributes: tuple[_KeyValue, ...] = ()


class _ResourceSpans(_Message):
    resource: _Resource = _Resource()
    scope_spans: tuple[_ScopeSpans, ...] = ()


class _Request(_Message):
    resource_spans: tuple[_ResourceSpans, ...]


def spans_of(document: object) -> list[Span]:
    """Parses one `ExportTraceServiceRequest` (or a `TracesData`, which has the same form).

    Raises Malformed.
    """
    if not isinstance(document, dict) or _TRACES not in document:
        fields = ", ".join(document) if isinstance(document, dict) else ""
        actual = f"an object with {fields}" if fields else f"{document!r:.60}"
        raise Malformed(f"no traces: must be an object with {_TRACES}, not {actual}")
    try:
        request = _Request.model_validate(document)
    except ValidationError as error:
        raise Malformed(describe_error(error)) from None
    found = []
    for of_resource in request.resource_spans:
        resource = _attributes(of_resource.resource.attributes)
        for scope in of_resource.scope_spans:
            found += [_span(span, resource) for span in scope.spans]
    return found


def describe_error(error: ValidationError) -> str:
    """Formats the first error of a document: its place, the value, and the rule."""
    first = error.errors(include_url=False)[0]
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
    value = "" if first["type"] == "missing" else f" is {str(first['input'])[:60]!r}"
    rule = first["msg"].removeprefix("Value error, ")
    return f"{place.removeprefix('.')}{value}: {rule}"


def _attributes(pairs: tuple[_KeyValue, ...]) -> dict[str, Value]:
    return {pair.key: None if pair.value is None else pair.value.value for pair in pairs}


def _span(span: _Span, resource: dict[str, Value]) -> Span:
    return Span(
        trace_id=span.trace_id,
        span_id=span.span_id,
        parent_id=span.parent_span_id,
        name=span.name,
        kind=span.kind,
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        attributes=_attributes(span.attributes),
        resource=resource,
        links=tuple(Link(link.trace_id, link.span_id) for link in span.links),
        error=span.status.code == _ERROR,
    )

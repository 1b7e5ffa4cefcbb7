"""Parses spans from the two forms of JSON in which tracing backends give them.

Pure. Unknown fields are ignored, and a null is a missing field, in both.

OTLP/JSON, which the OpenTelemetry collector writes to files and Jaeger's newer API returns, is
proto3's encoding of `ExportTraceServiceRequest` with two differences: ids are hexadecimal,
enumerations are numbers (opentelemetry.io/docs/specs/otlp, "JSON Protobuf Encoding"). Names of
enumerations are accepted, too, since some writers use them.

The form of Jaeger's own UI is `uimodel.Trace` (jaeger, internal/uimodel/model.go; the same in 1.x
and 2.x): times in microseconds, typed tags, and the tags of each process apart, in `processes`.
Parent and links are both `references`.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic.alias_generators import to_camel

from orch_sidecar.tools.facts.labels.documents import documents_in, first_problem
from orch_sidecar.tools.facts.tables.table import UnreadableFile
from orch_sidecar.tools.facts.traces.span import SERVICE, Kind, Link, Span, Value

# By their numbers and names (opentelemetry-proto, trace.proto).
_KINDS: Final[Mapping[object, Kind]] = {
    **dict(enumerate(Kind)),
    **{f"SPAN_KIND_{kind.upper()}": kind for kind in Kind},
}
_CODES: Final = ("UNSET", "OK", "ERROR")
_IS_ERROR: Final[Mapping[object, bool]] = {
    **{number: name == "ERROR" for number, name in enumerate(_CODES)},
    **{f"STATUS_CODE_{name}": name == "ERROR" for name in _CODES},
}
# The types of Jaeger's tags, and the fields of OTLP's values.
_FIELDS: Final = {
    "string": "stringValue",
    "bool": "boolValue",
    "int64": "intValue",
    "float64": "doubleValue",
    "binary": "bytesValue",
}


class Malformed(UnreadableFile):
    """Input that violates its format; the message names the place, the value and the rule."""


def _hexadecimal(digits: int) -> AfterValidator:
    """Validates an id. Leading zeros may be missing: Jaeger omits those of older, shorter ids."""

    def padded(text: str) -> str:
        if re.fullmatch(f"[0-9a-fA-F]{{1,{digits}}}", text) is None:
            raise ValueError(f"must be up to {digits} hexadecimal digits")
        return text.lower().rjust(digits, "0")

    return AfterValidator(padded)


def _member(of: Mapping[object, Any], what: str) -> BeforeValidator:
    def found(value: object) -> object:
        if isinstance(value, int | str) and value in of:
            return of[value]
        raise ValueError(f"must be {what}, as a number or by name")

    return BeforeValidator(found)


def _decoded(value: object) -> bytes:
    try:
        return base64.b64decode(str(value), validate=True)
    except binascii.Error:
        raise ValueError("must be base64") from None


_TraceId = Annotated[str, _hexadecimal(32)]
_SpanId = Annotated[str, _hexadecimal(16)]
# Of 64 bits, and half as far where one is added to another.
_Nanoseconds = Annotated[int, Field(gt=-(2**63), lt=2**63)]
_Microseconds = Annotated[int, Field(gt=-(2**52), lt=2**52)]


class _Message(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, extra="ignore", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, document: object) -> object:
        if not isinstance(document, dict):
            return document
        return {name: value for name, value in document.items() if value is not None}


class _AnyValue(_Message):
    """At most one field is set. 64-bit integers are encoded as text."""

    string_value: str | None = None
    bool_value: bool | None = None
    int_value: int | None = None
    double_value: float | None = None
    bytes_value: Annotated[bytes | None, BeforeValidator(_decoded)] = None
    array_value: _Array | None = None
    kvlist_value: _Map | None = None

    @property
    def value(self) -> Value:
        if self.array_value is not None:
            return tuple(each.value for each in self.array_value.values)
        if self.kvlist_value is not None:
            return tuple(_attributes(self.kvlist_value.values).items())
        values = (getattr(self, name) for name in type(self).model_fields)
        return next((value for value in values if value is not None), None)


class _KeyValue(_Message):
    key: str
    value: _AnyValue | None = None


class _Array(_Message):
    values: tuple[_AnyValue, ...] = ()


class _Map(_Message):
    values: tuple[_KeyValue, ...] = ()


class _Link(_Message):
    trace_id: _TraceId
    span_id: _SpanId


class _Status(_Message):
    code: Annotated[bool, _member(_IS_ERROR, "a status code")] = False


class _OtlpSpan(_Message):
    trace_id: _TraceId
    span_id: _SpanId
    parent_span_id: Annotated[_SpanId | None, BeforeValidator(lambda text: text or None)] = None
    name: str = ""
    kind: Annotated[Kind, _member(_KINDS, "a span kind")] = Kind.UNSPECIFIED
    start_time_unix_nano: _Nanoseconds = 0
    end_time_unix_nano: _Nanoseconds = 0
    attributes: tuple[_KeyValue, ...] = ()
    links: tuple[_Link, ...] = ()
    status: _Status = _Status()

    def span(self, resource: Mapping[str, Value]) -> Span:
        return Span(
            trace_id=self.trace_id,
            span_id=self.span_id,
            parent_id=self.parent_span_id,
            name=self.name,
            kind=self.kind,
            start_ns=self.start_time_unix_nano,
            end_ns=self.end_time_unix_nano,
            attributes=_attributes(self.attributes),
            resource=resource,
            links=tuple(Link(link.trace_id, link.span_id) for link in self.links),
            error=self.status.code,
        )


class _ScopeSpans(_Message):
    spans: tuple[_OtlpSpan, ...] = ()


class _Resource(_Message):
    attributes: tuple[_KeyValue, ...] = ()


class _ResourceSpans(_Message):
    resource: _Resource = _Resource()
    scope_spans: tuple[_ScopeSpans, ...] = ()


class _Export(_Message):
    resource_spans: tuple[_ResourceSpans, ...]

    def spans(self) -> Iterator[Span]:
        for each in self.resource_spans:
            resource = _attributes(each.resource.attributes)
            for scope in each.scope_spans:
                yield from (span.span(resource) for span in scope.spans)


class _JaegerMessage(_Message):
    model_config = ConfigDict(alias_generator=lambda name: to_camel(name).replace("Id", "ID"))


class _Tag(_KeyValue):
    """A tag names the type of its value, and is read as OTLP's."""

    @model_validator(mode="before")
    @classmethod
    def _as_otlp(cls, tag: object) -> object:
        if not isinstance(tag, dict):
            return tag
        kind = tag.get("type", "string")
        if kind not in _FIELDS:
            raise ValueError(f"its type {kind!r} must be one of {', '.join(_FIELDS)}")
        return {**tag, "value": {_FIELDS[kind]: tag.get("value")}}


class _Reference(_JaegerMessage):
    ref_type: str
    trace_id: _TraceId
    span_id: _SpanId


class _Process(_JaegerMessage):
    service_name: str
    tags: tuple[_Tag, ...] = ()


class _JaegerSpan(_JaegerMessage):
    """`start_time`, `duration`: microseconds."""

    trace_id: _TraceId
    span_id: _SpanId
    operation_name: str
    references: tuple[_Reference, ...] = ()
    start_time: _Microseconds
    duration: _Microseconds
    tags: tuple[_Tag, ...] = ()
    process_id: str

    def span(self, resources: Mapping[str, Mapping[str, Value]]) -> Span:
        if self.process_id not in resources:
            raise Malformed(f"span {self.span_id}: its process {self.process_id!r} is missing")
        tags = _attributes(self.tags)
        kind, error = tags.pop("span.kind", None), tags.pop("error", False)
        parents = [
            each
            for each in self.references
            if each.ref_type == "CHILD_OF" and each.trace_id == self.trace_id
        ][:1]
        others = [each for each in self.references if each not in parents]
        return Span(
            trace_id=self.trace_id,
            span_id=self.span_id,
            parent_id=parents[0].span_id if parents else None,
            name=self.operation_name,
            kind=Kind(kind) if kind in tuple(Kind) else Kind.UNSPECIFIED,
            start_ns=self.start_time * 1000,
            end_ns=(self.start_time + self.duration) * 1000,
            attributes=tags,
            resource=resources[self.process_id],
            links=tuple(Link(each.trace_id, each.span_id) for each in others),
            error=error in (True, "true"),
        )


class _Trace(_JaegerMessage):
    spans: tuple[_JaegerSpan, ...]
    processes: dict[str, _Process]


class _Error(_JaegerMessage):
    msg: str = ""


class _Reply(_JaegerMessage):
    data: tuple[_Trace, ...] = ()
    errors: tuple[_Error, ...] = ()

    def spans(self) -> Iterator[Span]:
        if self.errors:
            raise Malformed(f"the response has errors: {self.errors[0].msg}")
        for trace in self.data:
            resources = {
                name: {SERVICE: process.service_name, **_attributes(process.tags)}
                for name, process in trace.processes.items()
            }
            yield from (span.span(resources) for span in trace.spans)


def spans_of(document: object) -> list[Span]:
    """Parses what OTLP exports, or what either API of Jaeger returns. Raises Malformed."""
    if isinstance(document, dict):
        document = document.get("result", document)
    found = document if isinstance(document, dict) else {}
    model: type[_Export | _Reply] = _Reply if "data" in found else _Export
    if not {"data", "resourceSpans"} & set(found):
        actual = f"an object with {', '.join(found)}" if found else f"{document!r:.60}"
        raise Malformed(f"no traces: must be an object with resourceSpans or data, not {actual}")
    try:
        return list(model.model_validate(document).spans())
    except ValidationError as error:
        raise Malformed(str(first_problem(error))) from None


def read_file(name: str, content: bytes) -> list[Span]:
    """Returns the spans of a file of the OpenTelemetry collector's file exporter, or of Jaeger.

    Such a file has one export per line, in the order of their arrival: sidecar and engine export
    separately, so the spans of one request are in several lines. A file that is one document, or a
    list of exports, is accepted, too. Raises UnreadableFile with file and line.
    """
    found: list[Span] = []
    for line, document in documents_in(name, content):
        try:
            for export in document if isinstance(document, list) else [document]:
                found += spans_of(export)
        except Malformed as error:
            raise Malformed(f"{name}:{line}: {error}") from None
    return found


def _attributes(pairs: tuple[_KeyValue, ...]) -> dict[str, Value]:
    return {pair.key: None if pair.value is None else pair.value.value for pair in pairs}

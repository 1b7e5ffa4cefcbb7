"""Parses traces in the JSON that Jaeger's query service returns to its own UI.

Pure. The form is that of `uimodel.Trace` (jaeger, internal/uimodel/model.go; the same in 1.x and
2.x): times in microseconds, typed tags, and the tags of each process apart, in `processes`. Parent
and links are both `references`.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from orch_sidecar.tools.facts.traces.readers.otlp import Malformed, describe_error
from orch_sidecar.tools.facts.traces.span import SERVICE, Kind, Link, Span, Value

# Tags for what OpenTelemetry has separate fields for.
_KIND_TAG: Final = "span.kind"
_ERROR_TAG: Final = "error"
_CHILD_OF: Final = "CHILD_OF"


class _Part(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, extra="ignore", frozen=True)


class _Tag(_Part):
    key: str
    type: str = "string"
    value: Any = None


class _Reference(BaseModel):
    refType: str  # noqa: N815 (Jaeger's names, here and below)
    traceID: str  # noqa: N815
    spanID: str  # noqa: N815


class _Process(_Part):
    service_name: str
    tags: tuple[_Tag, ...] | None = None


class _Span(BaseModel):
    traceID: str  # noqa: N815
    spanID: str  # noqa: N815
    operationName: str  # noqa: N815
    references: tuple[_Reference, ...] | None = None
    startTime: int  # noqa: N815 (microseconds)
    duration: int  # microseconds
    tags: tuple[_Tag, ...] | None = None
    processID: str  # noqa: N815


class _Trace(_Part):
    spans: tuple[_Span, ...]
    processes: dict[str, _Process]


class _Error(_Part):
    code: int | None = None
    msg: str = ""


class _Reply(_Part):
    data: tuple[_Trace, ...] | None
    errors: tuple[_Error, ...] | None = None


def spans_of(document: object) -> list[Span]:
    """Parses the response to a search. Raises Malformed, also for a response with errors."""
    try:
        reply = _Reply.model_validate(document)
    except ValidationError as error:
        raise Malformed(describe_error(error)) from None
    if reply.errors:
        raise Malformed(f"the response has errors: {reply.errors[0].msg}")
    found = []
    for trace in reply.data or ():
        resources = {
            name: {SERVICE: process.service_name, **_values(process.tags)}
            for name, process in trace.processes.items()
        }
        for span in trace.spans:
            if span.processID not in resources:
                raise Malformed(f"span {span.spanID}: its process {span.processID!r} is missing")
            found.append(_span(span, resources[span.processID]))
    return found


def _span(span: _Span, resource: dict[str, Value]) -> Span:
    trace_id, tags = _id(span.traceID, 32), _values(span.tags)
    parent_id, links = None, []
    for reference in span.references or ():
        link = Link(_id(reference.traceID, 32), _id(reference.spanID, 16))
        if parent_id is None and reference.refType == _CHILD_OF and link.trace_id == trace_id:
            parent_id = link.span_id
        else:
            links.append(link)
    kind = tags.pop(_KIND_TAG, Kind.UNSPECIFIED)
    error = tags.pop(_ERROR_TAG, False)
    return Span(
        trace_id=trace_id,
        span_id=_id(span.spanID, 16),
        parent_id=parent_id,
        name=span.operationName,
        kind=Kind(kind) if kind in tuple(Kind) else Kind.UNSPECIFIED,
        start_ns=span.startTime * 1000,
        end_ns=(span.startTime + span.duration) * 1000,
        attributes=tags,
        resource=resource,
        links=tuple(links),
        error=error in (True, "true"),
    )


def _id(text: str, digits: int) -> str:
    """Pads an id: Jaeger omits leading zeros of the older, shorter ones."""
    if not text or len(text) > digits or not set(text.lower()) <= set("0123456789abcdef"):
        raise Malformed(f"the id {text!r} must be up to {digits} hexadecimal digits")
    return text.lower().rjust(digits, "0")


def _values(tags: tuple[_Tag, ...] | None) -> dict[str, Value]:
    return {tag.key: _value(tag) for tag in tags or ()}


def _value(tag: _Tag) -> Value:
    value = tag.value
    if value is None:
        return None
    try:
        match tag.type:
            case "int64":
                return int(value)  # text where JavaScript would lose precision
            case "float64":
                return float(value)
            case "binary":
                return base64.b64decode(value, validate=True)
            case "bool" if isinstance(value, bool):
                return value
            case "string":
                return str(value)
    except (TypeError, ValueError, binascii.Error):
        pass
    raise Malformed(f"the tag {tag.key} is {value!r}, must have the type {tag.type!r}")

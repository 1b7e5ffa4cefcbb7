"""Spans: what every tracing backend reports of each, and how they are read, in its two forms.

Pure. Knows nothing about the meaning of this project's spans. Unknown fields are ignored, and a
null is a missing field. Of attributes the texts, numbers and flags are read that are not empty:
this project's spans mean nothing by others. Times are nanoseconds since 1970, as in OTLP: a float
of seconds would round them to a quarter of a microsecond.

OTLP/JSON, which the OpenTelemetry collector writes to files and Jaeger's newer API returns, is
proto3's encoding of `ExportTraceServiceRequest` with two differences: ids are hexadecimal,
enumerations are numbers (opentelemetry.io/docs/specs/otlp, "JSON Protobuf Encoding"). The name of
a kind is accepted, too, since some writers use it.

The form of Jaeger's own UI (jaeger, internal/uimodel/model.go; the same in 1.x and 2.x) has times
in microseconds, typed tags, and parent and links in one list: it is converted to OTLP. The API of
that UI, `/api/traces`, is in every version, and other backends imitate it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, TypeAlias, TypeVar
from urllib.parse import urlencode

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetPydanticSchema,
    TypeAdapter,
)

from orch_sidecar.tools.facts.labels.documents import at, documents_in, named, parsed_as

Value: TypeAlias = "str | bool | int | float"

# The kind of a server's span (opentelemetry-proto, trace.proto).
_SERVER: Final = (2, "SPAN_KIND_SERVER")
# The types of Jaeger's tags, and the fields of OTLP's values. 64-bit integers are encoded as text.
_FIELDS: Final = {
    "string": "stringValue",
    "bool": "boolValue",
    "int64": "intValue",
    "float64": "doubleValue",
}


class Attributes(BaseModel):
    """Attributes of a span by their names. Some storage backends keep every one as text."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False, coerce_numbers_to_str=True)


Parsed = TypeVar("Parsed", bound=Attributes)


def _padded(digits: int) -> AfterValidator:
    """Leading zeros may be missing: Jaeger omits those of older, shorter ids."""
    return AfterValidator(lambda text: text.lower().rjust(digits, "0"))


_TraceId = Annotated[str, Field(pattern="^[0-9a-fA-F]{1,32}$"), _padded(32)]
_SpanId = Annotated[str, Field(pattern="^[0-9a-fA-F]{1,16}$"), _padded(16)]
_Nanoseconds = Annotated[int, Field(gt=-(2**63), lt=2**63)]


class _KeyValue(BaseModel):
    """At most one value is set; an empty text is none."""

    key: str
    text: str | None = at("value.stringValue", default=None)
    flag: bool | None = at("value.boolValue", default=None)
    count: int | None = at("value.intValue", default=None)
    number: float | None = at("value.doubleValue", default=None)


def _with_values(pairs: Iterable[_KeyValue]) -> dict[str, Value]:
    stated = ((each.key, (each.text or None, each.flag, each.count, each.number)) for each in pairs)
    return {key: value for key, values in stated for value in values if value is not None}


_Pairs = Annotated[tuple[_KeyValue, ...], AfterValidator(_with_values)]
_Attributes = Annotated[Mapping[str, Value], GetPydanticSchema(lambda _, handler: handler(_Pairs))]


@dataclass(frozen=True, slots=True)
class Link:
    """The ids of a trace and of a span in it."""

    trace_id: Annotated[_TraceId, Field(alias="traceId")]
    span_id: Annotated[_SpanId, Field(alias="spanId")]


@dataclass(frozen=True, slots=True)
class Span:
    """A span that has ended, and the names of its fields in OTLP.

    Ids are lower case hexadecimal, 32 and 16 digits. `parent_id`: None for a root span; the parent
    may be missing from the trace. `links`: what it refers to.
    """

    trace_id: Annotated[_TraceId, Field(alias="traceId")]
    span_id: Annotated[_SpanId, Field(alias="spanId")]
    parent_id: Annotated[
        _SpanId | None, Field(alias="parentSpanId"), BeforeValidator(lambda text: text or None)
    ] = None
    name: str = ""
    is_server: Annotated[
        bool, Field(alias="kind"), BeforeValidator(lambda kind: kind in _SERVER)
    ] = False
    start_ns: Annotated[_Nanoseconds, Field(alias="startTimeUnixNano")] = 0
    end_ns: Annotated[_Nanoseconds, Field(alias="endTimeUnixNano")] = 0
    attributes: _Attributes = field(default_factory=dict)
    links: tuple[Link, ...] = ()

    @property
    def link(self) -> Link:
        """What a link to it has."""
        return Link(self.trace_id, self.span_id)

    @property
    def parent(self) -> Link:
        """What a link to its parent has; to none where it has no parent."""
        return Link(self.trace_id, self.parent_id or "")

    def parsed(self, model: type[Parsed], **more: object) -> Parsed:
        """Returns its attributes, link and times, and what is given, as far as a model names them.
        Raises ValueError for an attribute that is not what the model says."""
        own = {"link": self.link, "start_ns": self.start_ns, "end_ns": self.end_ns}
        place = f"span {self.span_id} ({self.name}) of trace {self.trace_id}: "
        return parsed_as(model, {**self.attributes, **own, **more}, place)


_SPANS: Final = TypeAdapter(list[Span])


def spans_of(document: object) -> list[Span]:
    """Parses what OTLP exports, or what either API of Jaeger returns. Raises ValueError."""
    if isinstance(document, dict):
        document = document.get("result", document)
    found = document if isinstance(document, dict) else {}
    if not {"data", "resourceSpans"} & set(found):
        actual = f"an object with {', '.join(found)}" if found else f"{document!r:.60}"
        raise ValueError(f"no traces: must be an object with resourceSpans or data, not {actual}")
    if found.get("errors"):
        raise ValueError(f"the response has errors: {found['errors']!r:.200}")
    try:
        if "data" in found:
            spans = [_converted(span) for trace in found["data"] or () for span in trace["spans"]]
        else:
            scopes = [of for each in found["resourceSpans"] for of in each.get("scopeSpans") or ()]
            spans = [span for scope in scopes for span in scope.get("spans") or ()]
        stated = [{name: value for name, value in span.items() if value is not None}
                  for span in spans]  # fmt: skip
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"no traces in one of the two forms: {error!r:.200}") from None
    with named("spans."):
        return _SPANS.validate_python(stated)


def _converted(span: Mapping[str, Any]) -> dict[str, Any]:
    """Converts a span in the form of Jaeger's UI."""
    start_us, trace_id = int(span["startTime"]), span["traceID"]
    tags, references = span.get("tags") or (), span.get("references") or ()
    above = (each for each in references if each["refType"] == "CHILD_OF")
    parent = next((each for each in above if each["traceID"] == trace_id), None)
    server = any((tag["key"], tag.get("value")) == ("span.kind", "server") for tag in tags)
    return {
        "traceId": trace_id,
        "spanId": span["spanID"],
        "parentSpanId": parent and parent["spanID"],
        "name": span["operationName"],
        "kind": _SERVER[0] if server else 0,
        "startTimeUnixNano": 1000 * start_us,
        "endTimeUnixNano": 1000 * (start_us + int(span["duration"])),
        "attributes": [
            {"key": tag["key"], "value": {_FIELDS.get(tag.get("type", "string")): tag.get("value")}}
            for tag in tags
        ],
        "links": [
            {"traceId": each["traceID"], "spanId": each["spanID"]}
            for each in references
            if each is not parent
        ],
    }


def read_file(name: str, content: bytes) -> list[Span]:
    """Returns the spans of a file of the OpenTelemetry collector's file exporter, or of Jaeger.

    Such a file has one export per line, in the order of their arrival: sidecar and engine export
    separately, so the spans of one request are in several lines. A file that is one document, or a
    list of exports, is accepted, too. Raises ValueError with file and line.
    """
    found: list[Span] = []
    for line, document in documents_in(name, content):
        with named(f"{name}:{line}: "):
            for export in document if isinstance(document, list) else [document]:
                found += spans_of(export)
    return found


def all_spans(
    get: Callable[[str], bytes], url: str, service: str, first_us: int, last_us: int, limit: int
) -> list[Span]:
    """Returns the spans of all traces with a span of the service that starts in the interval.

    The interval, in microseconds since 1970, includes both ends. Each span is returned once. `get`:
    returns the answer from a URL. `url`: of the server, with the base path if there is one.
    `limit`: the largest number of traces that a search returns. Raises ValueError, also where more
    traces start at one moment than a search may return.

    A search that returns as much as it may can be incomplete, so its interval is searched again in
    halves, until no search is full. Whether a search includes the ends of its interval depends on
    the storage behind the server: some include both, others neither (Cassandra's `start_time > ?
    AND start_time < ?`). So each search extends a microsecond further on either side, and spans
    that are found twice count once.
    """
    place = f"{url}/api/traces"
    found: dict[Link, Span] = {}
    intervals = [(first_us, last_us)]
    while intervals:
        first, last = intervals.pop()
        start, end = first - 1, last + 1
        # raw: without the clock skew correction of 2.x (1.x ignores it).
        query = {"service": service, "start": start, "end": end, "limit": limit, "raw": "true"}
        spans = read_file(place, get(f"{place}?{urlencode(query)}"))
        found.update({span.link: span for span in spans})
        if len({span.trace_id for span in spans}) < limit:
            continue
        if first == last:
            raise ValueError(
                f"the search from {start} to {end} us since 1970 returned its limit of {limit} "
                "traces, and cannot be split further"
            )
        middle = (first + last) // 2
        intervals += [(middle + 1, last), (first, middle)]
    return list(found.values())

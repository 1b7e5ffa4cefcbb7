"""Reads spans: from files and the answers of servers, in the two forms that backends give them.

Pure. Unknown fields are ignored, and a null is a missing field. Of attributes the texts, numbers
and flags are read: this project's spans mean nothing by others.

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
from typing import Annotated, Any, Final
from urllib.parse import urlencode

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

from orch_sidecar.tools.facts.labels.documents import documents_in, first_problem, parse_all
from orch_sidecar.tools.facts.tables.table import UnreadableFile
from orch_sidecar.tools.facts.traces.span import SERVICE, Span, Value

# The kind of a server's span (opentelemetry-proto, trace.proto).
_SERVER: Final = (2, "SPAN_KIND_SERVER")
# The types of Jaeger's tags, and the fields of OTLP's values.
_FIELDS: Final = {
    "string": "stringValue",
    "bool": "boolValue",
    "int64": "intValue",
    "float64": "doubleValue",
}


# Leading zeros may be missing: Jaeger omits those of older, shorter ids.
_TraceId = Annotated[
    str,
    Field(pattern="^[0-9a-fA-F]{1,32}$"),
    AfterValidator(lambda text: text.lower().rjust(32, "0")),
]
_SpanId = Annotated[
    str,
    Field(pattern="^[0-9a-fA-F]{1,16}$"),
    AfterValidator(lambda text: text.lower().rjust(16, "0")),
]
_Nanoseconds = Annotated[int, Field(gt=-(2**63), lt=2**63)]


class _Message(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, document: object) -> object:
        if not isinstance(document, dict):
            return document
        return {name: value for name, value in document.items() if value is not None}


class _Value(_Message):
    """At most one field is set. 64-bit integers are encoded as text."""

    string_value: str | None = None
    bool_value: bool | None = None
    int_value: int | None = None
    double_value: float | None = None


class _KeyValue(_Message):
    key: str
    value: _Value = _Value()


class _Attributes(_Message):
    attributes: tuple[_KeyValue, ...] = ()

    @property
    def by_key(self) -> dict[str, Value]:
        return {
            pair.key: next((value for _, value in pair.value if value is not None), None)
            for pair in self.attributes
        }


class _Link(_Message):
    trace_id: _TraceId
    span_id: _SpanId


class _Span(_Attributes, _Link):
    parent_span_id: Annotated[_SpanId | None, BeforeValidator(lambda text: text or None)] = None
    name: str = ""
    kind: int | str = 0
    start_time_unix_nano: _Nanoseconds = 0
    end_time_unix_nano: _Nanoseconds = 0
    links: tuple[_Link, ...] = ()

    def of(self, resource: Mapping[str, Value]) -> Span:
        """Returns it as of a process with these attributes."""
        return Span(
            trace_id=self.trace_id,
            span_id=self.span_id,
            parent_id=self.parent_span_id,
            name=self.name,
            is_server=self.kind in _SERVER,
            start_ns=self.start_time_unix_nano,
            end_ns=self.end_time_unix_nano,
            attributes=self.by_key,
            resource=resource,
            links=tuple((link.trace_id, link.span_id) for link in self.links),
        )


class _ScopeSpans(_Message):
    spans: tuple[_Span, ...] = ()


class _ResourceSpans(_Message):
    resource: _Attributes = _Attributes()
    scope_spans: tuple[_ScopeSpans, ...] = ()


class _Export(_Message):
    resource_spans: tuple[_ResourceSpans, ...]


def spans_of(document: object) -> list[Span]:
    """Parses what OTLP exports, or what either API of Jaeger returns. Raises UnreadableFile."""
    if isinstance(document, dict):
        document = document.get("result", document)
    found = document if isinstance(document, dict) else {}
    if not {"data", "resourceSpans"} & set(found):
        actual = f"an object with {', '.join(found)}" if found else f"{document!r:.60}"
        raise UnreadableFile(
            f"no traces: must be an object with resourceSpans or data, not {actual}"
        )
    try:
        export = _Export.model_validate(_as_otlp(found) if "data" in found else found)
    except ValidationError as error:
        raise UnreadableFile(str(first_problem(error))) from None
    return [
        span.of(resource)
        for each in export.resource_spans
        for resource in (each.resource.by_key,)
        for scope in each.scope_spans
        for span in scope.spans
    ]


def _as_otlp(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Converts traces in the form of Jaeger's UI. Raises UnreadableFile."""
    if answer.get("errors"):
        raise UnreadableFile(f"the response has errors: {answer['errors']!r:.200}")
    try:
        return {
            "resourceSpans": [
                {
                    "resource": {"attributes": _process(trace["processes"][span["processID"]])},
                    "scopeSpans": [{"spans": [_span(span)]}],
                }
                for trace in answer["data"] or ()
                for span in trace["spans"]
            ]
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UnreadableFile(f"data is not traces as Jaeger gives them: {error!r:.200}") from None


def _process(process: Mapping[str, Any]) -> list[dict[str, Any]]:
    service = {"key": SERVICE, "value": process["serviceName"]}
    return [_attribute(tag) for tag in (service, *(process.get("tags") or ()))]


def _attribute(tag: Mapping[str, Any]) -> dict[str, Any]:
    field = _FIELDS.get(tag.get("type", "string"))
    return {"key": tag["key"], "value": {field: tag.get("value")} if field else {}}


def _span(span: Mapping[str, Any]) -> dict[str, Any]:
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
        "attributes": [_attribute(tag) for tag in tags],
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
    list of exports, is accepted, too. Raises UnreadableFile with file and line.
    """
    found: list[Span] = []
    for line, document in documents_in(name, content):
        try:
            for export in document if isinstance(document, list) else [document]:
                found += spans_of(export)
        except UnreadableFile as error:
            raise UnreadableFile(f"{name}:{line}: {error}") from None
    return found


# (start, end) of an interval, microseconds since 1970 -> the spans of the traces that have a span
# of the service that starts within it.
Search = Callable[[int, int], Iterable[Span]]


def search(
    get: Callable[[str], bytes], url: str, service: str, limit: int, start_us: int, end_us: int
) -> list[Span]:
    """Searches a server for a service, in an interval. Raises UnreadableFile.

    `get`: returns the answer from a URL. `url`: of the server, with the base path if there is one.
    """
    # raw: without the clock skew correction of 2.x (1.x ignores it).
    query = {"service": service, "start": start_us, "end": end_us, "limit": limit, "raw": "true"}
    place = f"{url}/api/traces"
    answer = parse_all(place, get(f"{place}?{urlencode(query)}"))
    try:
        return [span for _, each in answer for span in spans_of(each)]
    except UnreadableFile as error:
        raise UnreadableFile(f"{place}: {error}") from None


def all_spans(search: Search, first_us: int, last_us: int, limit: int) -> list[Span]:
    """Returns the spans of all traces with a span of the service that starts in the interval.

    The interval includes both ends. `limit`: the largest number of traces that a search returns.
    Each span is returned once. Raises UnreadableFile where more traces start at one moment than a
    search may return.

    A search that returns as much as it may can be incomplete, so its interval is searched again in
    halves, until no search is full. Whether a search includes the ends of its interval depends on
    the storage behind the server: some include both, others neither (Cassandra's `start_time > ?
    AND start_time < ?`). So each search extends a microsecond further on either side, and spans
    that are found twice count once.
    """
    found: dict[tuple[str, str], Span] = {}
    intervals = [(first_us, last_us)]
    while intervals:
        first, last = intervals.pop()
        start, end = first - 1, last + 1
        spans = list(search(start, end))
        found.update({(span.trace_id, span.span_id): span for span in spans})
        if len({span.trace_id for span in spans}) < limit:
            continue
        if first == last:
            raise UnreadableFile(
                f"the search from {start} to {end} us since 1970 returned its limit of {limit} "
                "traces, and cannot be split further"
            )
        middle = (first + last) // 2
        intervals += [(middle + 1, last), (first, middle)]
    return list(found.values())

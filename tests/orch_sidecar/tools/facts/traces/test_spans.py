"""The forms of JSON in which backends give spans: what they allow, and the errors of others."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from orch_sidecar.tools.facts.traces.spans import Attributes, Link, Span, Value, read_file, spans_of
from tests.orch_sidecar.tools.facts.spans import TRACES

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def otlp(**changes: Any) -> dict[str, Any]:
    """Returns an export of one span."""
    span = {"traceId": TRACE_ID, "spanId": SPAN_ID, **changes}
    return {"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}


def jaeger(**changes: Any) -> dict[str, Any]:
    """Returns a response with one span in the form of Jaeger's UI."""
    span = {
        "traceID": "1b",
        "spanID": "2",
        "operationName": "n",
        "references": [],
        "startTime": 1_000,
        "duration": 5,
        "tags": None,
        "processID": "p1",
        **changes,
    }
    processes = {"p1": {"serviceName": "s", "tags": [{"key": "host", "value": "h"}]}}
    return {"data": [{"spans": [span], "processes": processes}], "errors": None}


def span_of(**changes: Any) -> Span:
    [span] = spans_of(otlp(**changes))
    return span


def test_reads_every_field_of_otlp() -> None:
    document = otlp(
        traceId=TRACE_ID.upper(),
        parentSpanId="00F067AA0BA902B7",
        name="n",
        kind=2,
        startTimeUnixNano="1795295486395731926",  # more digits than a float has
        endTimeUnixNano=1795295486396633711,
        links=[{"traceId": TRACE_ID, "spanId": SPAN_ID}],
        somethingNew={},
    )
    [span] = spans_of(document)
    assert span == Span(
        trace_id=TRACE_ID,
        span_id=SPAN_ID,
        parent_id="00f067aa0ba902b7",
        name="n",
        is_server=True,
        start_ns=1795295486395731926,
        end_ns=1795295486396633711,
        attributes={},
        links=(Link(TRACE_ID, SPAN_ID),),
    )


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"stringValue": "x"}, "x"),
        ({"stringValue": ""}, None),
        ({"boolValue": False}, False),
        ({"intValue": "9007199254740993"}, 9007199254740993),
        ({"intValue": 7}, 7),
        ({"doubleValue": 0.5}, 0.5),
        ({"arrayValue": {"values": [{"intValue": "1"}, {"stringValue": "b"}]}}, None),
        ({}, None),
        (None, None),
    ],
)
def test_reads_every_form_of_a_value(value: object, expected: object) -> None:
    found = span_of(attributes=[{"key": "a", "value": value}]).attributes.get("a")
    assert (found, type(found)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"kind": 2}, (True, None)),
        ({"kind": "SPAN_KIND_SERVER"}, (True, None)),
        ({"kind": 3, "parentSpanId": ""}, (False, None)),
        ({"parentSpanId": "1"}, (False, "1".rjust(16, "0"))),
        (dict.fromkeys(("links", "attributes", "parentSpanId", "kind")), (False, None)),
    ],
)
def test_kinds_and_missing_fields_have_several_forms(
    changes: dict[str, Any], expected: tuple[bool, str | None]
) -> None:
    span = span_of(**changes)
    assert (span.is_server, span.parent_id) == expected


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (otlp(traceId="CvdlGRbNQ92ESOshHIAxnA=="),
         "spans.0.traceId is 'CvdlGRbNQ92ESOshHIAxnA==': String should match pattern"),
        (otlp(traceId=None), "spans.0.traceId is missing"),
        (otlp(spanId=""), "spans.0.spanId is '': String should match pattern"),
        (otlp(parentSpanId="xyz"), "parentSpanId is 'xyz': String should match pattern"),
        (otlp(startTimeUnixNano="now"), "startTimeUnixNano is 'now'"),
        (otlp(endTimeUnixNano=str(10**20)), "should be less than 9223372036854775808"),
        (otlp(attributes=[{"value": {}}]), "attributes.0.key is missing"),
        (otlp(attributes=[{"key": "a", "value": {"intValue": "x"}}]),
         "spans.0.attributes.0.value.intValue is 'x'"),
        (jaeger(traceID="xyz"), "spans.0.traceId is 'xyz': String should match pattern"),
        ({"data": [{}]}, "no traces in one of the two forms: KeyError('spans')"),
        (jaeger(startTime="soon"), "no traces in one of the two forms: ValueError(\"invalid"),
        (jaeger(tags=[{"key": "a", "type": "int64", "value": "x"}]),
         "spans.0.attributes.0.value.intValue is 'x'"),
        ({"data": 3}, "no traces in one of the two forms: TypeError("),
        ({"data": [], "errors": [{"code": 1, "msg": "half"}]},
         "the response has errors: [{'code': 1, 'msg': 'half'}]"),
        ({"resourceSpans": 3}, "no traces in one of the two forms: TypeError("),
        ({"resourceMetrics": []}, "no traces: must be an object with resourceSpans or data, not an "
         "object with resourceMetrics"),
        ({}, "not {}"),
        ([], "not []"),
    ],
)  # fmt: skip
def test_invalid_document_is_reported_with_place_value_and_rule(
    document: object, expected: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(expected)):
        spans_of(document)


def test_one_document_over_several_lines_and_a_list_of_exports_are_read() -> None:
    content = (TRACES / "cloud.jsonl").read_bytes()
    exports = [json.loads(line) for line in content.splitlines()]
    laid_out = json.dumps(exports[0], indent=2).encode()
    assert read_file("f", laid_out) == spans_of(exports[0])
    assert read_file("f", json.dumps(exports).encode()) == read_file("f", content)
    answer = json.dumps({"result": exports[0]}).encode()  # of Jaeger's /api/v3/traces
    assert read_file("f", answer) == spans_of(exports[0])
    assert read_file("f", b"\xef\xbb\xbf" + content + b"\n\n") == read_file("f", content)
    line = json.dumps(otlp(name="a\u2028b"), ensure_ascii=False)  # no end of a line
    assert [span.name for span in read_file("f", f"{line}\n{line}".encode())] == ["a\u2028b"] * 2


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"\n \n", "f:3: invalid JSON: it ends too early"),
        (b'{"resourceSpans":[]}\n{"resourceSp', "f:2: invalid JSON"),
        (b'{"resourceSpans":[]}\n\n{"resourceLogs":[]}', "f:3: no traces"),
        (b'{"resourceSpans":[\n]\n', "f:3: invalid JSON"),
        (b'[{"resourceSpans":[]},{"a":1}]', "f:1: no traces"),
        (b'{\n"resourceSpans": 3}', "f:1: no traces in one of the two forms: TypeError"),
        (b'{"resourceSpans":[]}\n' + b"[" * 100_000, "f:2: invalid JSON: it is nested too deeply"),
        (b"ok\n\x28\xb5\x2f\xfd", "f:2: .*not UTF-8.* compressed: "),
    ],
)
def test_malformed_file_is_reported_with_its_line(content: bytes, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        read_file("f", content)


# Attributes, whatever type a storage backend gives them.
class Some(Attributes):
    number: int | None = None
    flag: bool = False
    text: str | None = None


def parsed(name: str, value: Value) -> Some:
    return Span("0" * 32, "1" * 16, None, "n", True, 0, 1, {name: value}).parsed(Some)


def test_numbers_flags_and_texts_can_be_of_another_type() -> None:
    assert [parsed("number", value).number for value in (3, "3", 3.0)] == [3, 3, 3]
    assert [parsed("flag", value).flag for value in (True, "true", False)] == [True, True, False]
    assert parsed("text", 5).text == "5"


@pytest.mark.parametrize("value", ["x", 1.5, "1.5", float("nan")])
def test_attribute_that_is_not_an_integer_is_reported_with_its_span(value: Value) -> None:
    with pytest.raises(ValueError, match=rf"span {'1' * 16} \(n\) of trace 0+: number is .*"):
        parsed("number", value)

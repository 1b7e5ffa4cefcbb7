"""OTLP/JSON: every form that the specification allows, and the errors of others."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orch_sidecar.tools.facts.traces.readers import otlp_file
from orch_sidecar.tools.facts.traces.readers.otlp import Malformed, spans_of
from orch_sidecar.tools.facts.traces.span import Kind, Link, Span
from tests.orch_sidecar.tools.facts.spans import TRACES, real

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def document(**changes: Any) -> dict[str, Any]:
    """Returns an export of one span."""
    span = {"traceId": TRACE_ID, "spanId": SPAN_ID, **changes}
    return {"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}


def span_of(**changes: Any) -> Span:
    [span] = spans_of(document(**changes))
    return span


def value_of(value: dict[str, Any]) -> Any:
    return span_of(attributes=[{"key": "a", "value": value}]).attributes["a"]


def test_reads_every_field_of_a_span() -> None:
    [span] = spans_of(
        {
            "resourceSpans": [
                {
                    "resource": {
                        "attributes": [{"key": "service.name", "value": {"stringValue": "s"}}]
                    },
                    "scopeSpans": [
                        {
                            "scope": {"name": "unused"},
                            "spans": [
                                {
                                    "traceId": TRACE_ID.upper(),
                                    "spanId": SPAN_ID,
                                    "parentSpanId": "00F067AA0BA902B7",
                                    "name": "n",
                                    "kind": 3,
                                    "startTimeUnixNano": "1795295486395731926",
                                    "endTimeUnixNano": 1795295486396633711,
                                    "links": [{"traceId": TRACE_ID, "spanId": SPAN_ID}],
                                    "status": {"code": 2, "message": "unused"},
                                    "somethingNew": {},
                                }
                            ],
                        }
                    ],
                }
            ]
        }
    )
    assert span == Span(
        trace_id=TRACE_ID,
        span_id=SPAN_ID,
        parent_id="00f067aa0ba902b7",
        name="n",
        kind=Kind.CLIENT,
        start_ns=1795295486395731926,  # more digits than a float has
        end_ns=1795295486396633711,
        attributes={},
        resource={"service.name": "s"},
        links=(Link(TRACE_ID, SPAN_ID),),
        error=True,
    )
    assert span.service == "s"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"stringValue": "x"}, "x"),
        ({"boolValue": False}, False),
        ({"intValue": "9007199254740993"}, 9007199254740993),
        ({"intValue": 7}, 7),
        ({"doubleValue": 0.5}, 0.5),
        ({"doubleValue": "Infinity"}, float("inf")),
        ({"bytesValue": "AAE="}, b"\x00\x01"),
        ({"arrayValue": {"values": [{"intValue": "1"}, {"stringValue": "b"}]}}, (1, "b")),
        ({"arrayValue": {}}, ()),
        (
            {"kvlistValue": {"values": [{"key": "k", "value": {"boolValue": True}}]}},
            (("k", True),),
        ),
        ({}, None),
    ],
)
def test_reads_every_form_of_a_value(value: dict[str, Any], expected: object) -> None:
    assert value_of(value) == expected
    assert type(value_of(value)) is type(expected)


def test_enumerations_are_numbers_or_names() -> None:
    assert span_of(kind=2).kind is span_of(kind="SPAN_KIND_SERVER").kind is Kind.SERVER
    assert span_of().kind is Kind.UNSPECIFIED
    assert span_of(status={"code": "STATUS_CODE_ERROR"}).error
    assert not span_of(status={"code": "STATUS_CODE_OK"}).error
    assert not span_of(status={}).error


def test_root_span_has_no_parent_in_either_form() -> None:
    assert span_of().parent_id is span_of(parentSpanId="").parent_id is None


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"traceId": "CvdlGRbNQ92ESOshHIAxnA=="},
            "traceId is 'CvdlGRbNQ92ESOshHIAxnA==': must be 32",
        ),
        ({"spanId": ""}, "spanId is '': must be 16 hexadecimal digits"),
        ({"parentSpanId": "xyz"}, "parentSpanId is 'xyz': must be 16"),
        ({"kind": 6}, "kind is '6': must be a span kind"),
        ({"kind": "SPAN_KIND_BLUE"}, "kind is 'SPAN_KIND_BLUE'"),
        ({"status": {"code": 9}}, "status.code is '9': must be a status code"),
        ({"startTimeUnixNano": "now"}, "startTimeUnixNano is 'now'"),
        ({"attributes": [{"value": {}}]}, "attributes[0].key: Field required"),
        (
            {"attributes": [{"key": "a", "value": {"intValue": "x"}}]},
            "attributes[0].value.intValue is 'x'",
        ),
        (
            {"attributes": [{"key": "a", "value": {"bytesValue": "?"}}]},
            "attributes[0].value.bytesValue is '?': must be base64",
        ),
    ],
)
def test_invalid_field_is_reported_with_place_value_and_rule(
    changes: dict[str, Any], expected: str
) -> None:
    with pytest.raises(Malformed) as raised:
        spans_of(document(**changes))
    assert f"resourceSpans[0].scopeSpans[0].spans[0].{expected}" in str(raised.value)


@pytest.mark.parametrize(
    ("no_traces", "expected"),
    [
        ({"resourceMetrics": []}, "not an object with resourceMetrics"),
        ({}, "not {}"),
        ([], r"not \[\]"),
        ({"resourceSpans": 3}, "resourceSpans is '3'"),
    ],
)
def test_document_without_traces_is_rejected(no_traces: object, expected: str) -> None:
    with pytest.raises(Malformed, match=expected):
        spans_of(no_traces)


@pytest.mark.parametrize(
    ("name", "requests", "sequences"),
    [("home", 6, 6), ("cloud", 6, 6), ("mixed", 8, 5), ("offline", 6, 6)],
)
def test_every_export_of_a_file_is_read(name: str, requests: int, sequences: int) -> None:
    spans = real(name)
    assert sum(span.name.startswith("/v1/") for span in spans) == requests
    assert sum(span.service == "vllm" for span in spans) == sequences
    assert {span.service for span in spans} == {"vllm", "orch-sidecar"}


def test_one_document_over_several_lines_and_a_list_of_exports_are_read() -> None:
    content = (TRACES / "cloud.jsonl").read_bytes()
    exports = [json.loads(line) for line in content.splitlines()]
    laid_out = json.dumps(exports[0], indent=2).encode()
    assert otlp_file.read("f", laid_out) == spans_of(exports[0])
    assert otlp_file.read("f", json.dumps(exports).encode()) == otlp_file.read("f", content)
    assert otlp_file.read("f", b"\xef\xbb\xbf" + content + b"\n\n") == otlp_file.read("f", content)


def test_line_separator_in_a_string_does_not_end_a_line() -> None:
    line = json.dumps(document(name="a\u2028b"), ensure_ascii=False)
    assert [span.name for span in otlp_file.read("f", f"{line}\n{line}".encode())] == [
        "a\u2028b"
    ] * 2


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "f: the file is empty"),
        (b"\n \n", "f: the file is empty"),
        (b'{"resourceSpans":[]}\n{"resourceSp', "f:2: invalid JSON"),
        (b'{"resourceSpans":[]}\n\n{"resourceLogs":[]}', "f:3: no traces"),
        (b'{"resourceSpans":[\n]\n', "f:3: invalid JSON"),
        (b'[{"resourceSpans":[]},{"a":1}]', r"f:1: \[1\]: no traces"),
        (b'{\n"resourceSpans": 3}', "f: resourceSpans is '3'"),
        (b"ok\n\x28\xb5\x2f\xfd", "f:2: .*not UTF-8 .*without compression"),
    ],
)
def test_malformed_file_is_reported_with_its_line(content: bytes, expected: str) -> None:
    with pytest.raises(Malformed, match=expected):
        otlp_file.read("f", content)


def test_null_is_a_missing_field() -> None:
    absent = ("links", "status", "attributes", "parentSpanId", "kind")
    assert span_of(**dict.fromkeys(absent)).links == ()
    with pytest.raises(Malformed, match="traceId"):
        span_of(traceId=None)


@pytest.mark.parametrize(
    ("line", "expected"),
    [("[" * 100_000, "nested too deeply"), ('{"x":' + "1" * 5000 + "}", "Exceeds the limit")],
)
def test_invalid_line_is_reported_with_its_number(line: str, expected: str) -> None:
    content = json.dumps(document()).encode() + b"\n" + line.encode()
    with pytest.raises(Malformed, match=f"^f:2: invalid JSON: .*{expected}"):
        otlp_file.read("f", content)

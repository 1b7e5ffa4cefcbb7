"""Answers of collectors, against the classes that protobuf generates."""

from __future__ import annotations

import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import BadRequest, RetryInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceResponse,
)

from orch_sidecar.observability.otlp.responses import (
    partial_success,
    retry_delay_s,
    status_message,
    status_retry_delay_s,
)

INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@given(rejected=INT64, message=TEXT)
def test_partial_success_is_read(rejected: int, message: str) -> None:
    partial = ExportTracePartialSuccess(rejected_spans=rejected, error_message=message)
    body = ExportTraceServiceResponse(partial_success=partial).SerializeToString()
    assert partial_success(body) == (rejected, message)


def test_full_success_is_empty() -> None:
    assert partial_success(b"") == (0, "")


@given(st.binary(max_size=40))
def test_garbage_is_read_as_protobuf_reads_it_or_not_at_all(body: bytes) -> None:
    """What protobuf reads differently: groups, and fields of another type, which it skips."""
    try:
        found = partial_success(body)
    except ValueError:
        return
    try:
        partial = ExportTraceServiceResponse.FromString(body).partial_success
    except DecodeError:
        return  # a field that is not looked at is not checked, either
    assert found == (partial.rejected_spans, partial.error_message)


def test_fields_of_later_versions_are_skipped() -> None:
    known = ExportTracePartialSuccess(rejected_spans=7).SerializeToString()
    unknown = b"\x79" + bytes(8) + b"\x7d" + bytes(4) + b"\x7a\x03abc" + b"\x78\x05"
    inner = unknown + known + unknown
    assert partial_success(unknown + b"\x0a" + bytes([len(inner)]) + inner) == (7, "")


@pytest.mark.parametrize(
    "body",
    [
        b"<!DOCTYPE html><html><body>It works!</body></html>",
        b'{"partialSuccess": {}}',
        b"\x0a",  # no length
        b"\x0a\x7f",  # longer than the message
        b"\x08\x01",  # a number
        b"\x0a\x02\x0a\x00",  # bytes where a number is
        b"\x0a\x02\x10\x01",  # a number where a text is
        b"\x0a\x03\x12\x01\xff",  # no UTF-8
        b"\x00\x01",  # the number 0
        b"\x0b",  # a group
        b"\xff" * 11,  # a number without an end
    ],
)
def test_what_is_no_answer_is_an_error(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"a field|a number|decode"):
        partial_success(body)


def test_message_and_retry_delay_of_a_status_are_read() -> None:
    other, retry = AnyMessage(), AnyMessage()
    other.Pack(BadRequest())
    retry.Pack(RetryInfo(retry_delay=Duration(seconds=3, nanos=500_000_000)))
    status = Status(code=14, message="come back läter", details=[other, retry])
    body = status.SerializeToString()
    assert status_message(body) == "come back läter"
    assert status_retry_delay_s(body) == 3.5
    assert status_retry_delay_s(Status(details=[other]).SerializeToString()) is None
    assert status_retry_delay_s(b"") is None


@pytest.mark.parametrize(
    ("delay", "seconds"),
    [
        (Duration(seconds=30), 30.0),
        (Duration(nanos=20_000_000), 0.02),
        (Duration(seconds=-5, nanos=-1), 0.0),
        (Duration(), 0.0),
    ],
)
def test_retry_delay_is_read(delay: Duration, seconds: float) -> None:
    assert retry_delay_s(RetryInfo(retry_delay=delay).SerializeToString()) == seconds

"""The wire format, read by protobuf's own classes."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common._internal import _encode_value
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from orch_sidecar.observability.otlp.encoder import request_encoder
from orch_sidecar.observability.otlp.protobuf import (
    Integers,
    any_value,
    before_float,
    before_text,
    double,
    integer,
    varint,
)

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
SCALARS = st.none() | st.booleans() | INT64 | st.floats() | st.text() | st.binary()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=10
)
EDGES = [
    0, 1, 127, 128, 16383, 16384, (1 << 35) - 1, (1 << 56), (1 << 63) - 1, -1, -(1 << 63),
]  # fmt: skip


def test_request_names_the_schema_of_its_resource() -> None:
    body = request_encoder({"service.name": "mine"}, "https://schemas/1", "scope")([])
    [resource] = ExportTraceServiceRequest.FromString(body).resource_spans
    assert resource.schema_url == "https://schemas/1"


@given(VALUES)
def test_values_are_encoded_as_the_sdk_encodes_them(value: Any) -> None:
    decoded = AnyValue.FromString(any_value(value))
    # As bytes: no NaN equals itself.
    assert decoded.SerializeToString() == _encode_value(value).SerializeToString()


@pytest.mark.parametrize("value", EDGES)
def test_integers_of_every_length_are_read_back(value: int) -> None:
    span = Span.FromString(Integers("key")[value])
    assert (span.attributes[0].key, span.attributes[0].value.int_value) == ("key", value)
    assert AnyValue.FromString(any_value(value)).int_value == value


@given(INT64, st.floats(), st.text())
def test_prepared_attributes_are_read_back(number: int, ratio: float, text: str) -> None:
    encoded = Integers("i")[number] + before_float("f") + double(ratio)
    encoded += before_text("t", len(text.encode())) + text.encode()
    found = {each.key: each.value for each in Span.FromString(encoded).attributes}
    assert (found["i"].int_value, found["t"].string_value) == (number, text)
    read = found["f"].double_value
    assert read == ratio or (math.isnan(read) and math.isnan(ratio))


@pytest.mark.parametrize("length", [0, 1, 62, 63, 64, 65, 100, 127, 128, 16383, 16384])
@pytest.mark.parametrize("key", ["k", "k" * 63, "k" * 130])
def test_texts_of_every_length_are_read_back(length: int, key: str) -> None:
    span = Span.FromString(before_text(key, length) + b"x" * length)
    assert (span.attributes[0].key, span.attributes[0].value.string_value) == (key, "x" * length)


@pytest.mark.parametrize("number", [1 << 63, -(1 << 63) - 1, 1 << 9999])
def test_integer_beyond_64_bits_is_refused_by_its_length(number: int) -> None:
    with pytest.raises(OverflowError, match=rf"^an integer has {number.bit_length()} bits"):
        integer(number)


def test_value_of_another_type_is_refused() -> None:
    with pytest.raises(TypeError, match="must be a text, number, list or mapping"):
        any_value(object())


def test_varint_of_64_bits_has_ten_octets() -> None:
    assert varint((1 << 64) - 1) == b"\xff" * 9 + b"\x01"

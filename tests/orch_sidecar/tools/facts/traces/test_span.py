"""Attributes of spans, whatever type a storage backend gives them."""

from __future__ import annotations

import pytest

from orch_sidecar.tools.facts.traces.span import Kind, Span, Value


def having(value: Value) -> Span:
    return Span("0" * 32, "1" * 16, None, "n", Kind.SERVER, 0, 1, {"a": value}, {})


def test_numbers_and_flags_can_be_text() -> None:
    assert having(3).whole("a") == having("3").whole("a") == having(3.0).whole("a") == 3
    assert having("0.5").number("a") == 0.5
    assert having(True).flag("a") is having("true").flag("a") is True
    assert having(False).flag("a") is having("false").flag("a") is False


def test_missing_attribute_is_none_or_false() -> None:
    span = having(None)
    assert (span.whole("a"), span.number("b"), span.text("b")) == (None, None, None)
    assert having("").text("a") is None
    assert span.flag("b") is False


@pytest.mark.parametrize("value", ["x", True, 1.5, "1.5", float("nan"), ("1",), b"1"])
def test_attribute_that_is_not_an_integer_is_reported_with_its_span(value: Value) -> None:
    with pytest.raises(ValueError, match=rf"span {'1' * 16} \(n\) of trace 0+: a is .*number"):
        having(value).whole("a")


@pytest.mark.parametrize("value", ["yes", 1, None])
def test_attribute_that_is_not_a_flag_is_rejected(value: Value) -> None:
    with pytest.raises(ValueError, match="must be true or false"):
        having(value).flag("a")

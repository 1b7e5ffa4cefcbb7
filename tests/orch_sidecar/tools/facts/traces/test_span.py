"""Attributes of spans, whatever type a storage backend gives them."""

from __future__ import annotations

import pytest

from orch_sidecar.tools.facts.traces.span import Attributes, Span, Value


class Some(Attributes):
    number: int | None = None
    flag: bool = False
    text: str | None = None


def parsed(name: str, value: Value) -> Some:
    return Span("0" * 32, "1" * 16, None, "n", True, 0, 1, {name: value}, {}).parsed(Some)


def test_numbers_flags_and_texts_can_be_of_another_type() -> None:
    assert [parsed("number", value).number for value in (3, "3", 3.0)] == [3, 3, 3]
    assert [parsed("flag", value).flag for value in (True, "true", False)] == [True, True, False]
    assert parsed("text", 5).text == "5"


@pytest.mark.parametrize("value", [None, ""])
def test_empty_attribute_is_missing(value: Value) -> None:
    for name in ("number", "flag", "text"):
        assert parsed(name, value) == Some()


@pytest.mark.parametrize("value", ["x", 1.5, "1.5", float("nan")])
def test_attribute_that_is_not_an_integer_is_reported_with_its_span(value: Value) -> None:
    with pytest.raises(ValueError, match=rf"span {'1' * 16} \(n\) of trace 0+: number is .*"):
        parsed("number", value)

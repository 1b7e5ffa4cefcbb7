"""Parsing JSON that other programs wrote."""

from __future__ import annotations

import pytest

from orch_sidecar.tools.facts.tables.json_documents import InvalidJson, decode, parse, parse_all


@pytest.mark.parametrize(
    ("text", "line", "rule"),
    [
        ("", 1, "Expecting value"),
        ("\n{,", 2, "Expecting property name"),
        ("\n" + "[" * 100_000, 2, "nested too deeply"),
        ("\n\n" + "1" * 5000, 3, "Exceeds the limit"),
        ("{}\n\n{}", 3, "Extra data"),
    ],
)
def test_invalid_json_is_reported_with_its_line(text: str, line: int, rule: str) -> None:
    with pytest.raises(InvalidJson, match=rule) as caught:
        parse(text)
    assert caught.value.line == line
    assert str(caught.value).startswith(f"{line}: invalid JSON: ")


def test_one_or_several_documents_are_parsed() -> None:
    assert parse_all(' {"a": 1} [2]\n') == [{"a": 1}, [2]]
    assert parse(' {"a": 1}\n') == {"a": 1}
    with pytest.raises(InvalidJson, match="Expecting value"):
        parse_all(" ")


def test_text_is_utf_8_with_or_without_a_byte_order_mark() -> None:
    assert decode(b"\xef\xbb\xbf{}") == decode(b"{}") == "{}"
    with pytest.raises(InvalidJson, match="2: invalid JSON: the text is not UTF-8"):
        decode(b"\n\xff")

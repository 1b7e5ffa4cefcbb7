"""Parsing JSON that other programs wrote."""

from __future__ import annotations

import pytest

from orch_sidecar.tools.facts.tables.json_documents import InvalidJson, parse_all


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        (b"", "1: invalid JSON: Expecting value"),
        (b"\n{,", "2: invalid JSON: Expecting property name"),
        (b"{}\n" + b"[" * 100_000, "2: invalid JSON: it is nested too deeply"),
        (b"\n\n" + b"1" * 5000, "3: invalid JSON: Exceeds the limit"),
        (b"\n\xff", "2: invalid JSON: the text is not UTF-8"),
    ],
)
def test_invalid_json_is_reported_with_its_line(content: bytes, rule: str) -> None:
    with pytest.raises(InvalidJson) as raised:
        parse_all("f", content)
    assert str(raised.value).startswith(f"f:{rule}")


def test_documents_have_the_line_in_which_they_begin() -> None:
    assert parse_all("f", b'\xef\xbb\xbf {"a": 1} [2]\n\n{\n"b": 3}\n') == [
        (1, {"a": 1}),
        (1, [2]),
        (3, {"b": 3}),
    ]

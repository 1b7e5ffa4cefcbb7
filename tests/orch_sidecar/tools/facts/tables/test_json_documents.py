"""JSON that somebody else has written."""

from __future__ import annotations

import pytest

from orch_sidecar.tools.facts.tables.json_documents import InvalidJson, part, whole


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
def test_what_cannot_be_read_is_told_with_its_line(text: str, line: int, rule: str) -> None:
    with pytest.raises(InvalidJson, match=rule) as caught:
        whole(text)
    assert caught.value.line == line
    assert str(caught.value).startswith(f"{line}: no JSON: ")


def test_one_document_is_read_after_the_other() -> None:
    text = '{"a": 1} [2]'
    first, at = part(text, 0)
    assert (first, part(text, at + 1)) == ({"a": 1}, ([2], len(text)))
    assert whole(' {"a": 1}\n') == {"a": 1}

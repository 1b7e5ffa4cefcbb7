"""What a signed content may have: anybody can sign something with a key of their own."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from orch_sidecar.tools.facts.labels.documents import documents_in, parse_json
from orch_sidecar.tools.facts.signing.proof import prove
from tests.orch_sidecar.tools.facts.signing.signed import SigningEngine, resigned


def test_object_is_returned() -> None:
    assert parse_json(b'{"n":123456789012345678}', "")["n"] == 123456789012345678


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"[" * 100_000, "nested too deeply"),
        (b'{"n":1,"n":2}', "'n' is there twice"),
        (b'{"in":{"a":1,"a":1}}', "'a' is there twice"),
        (b"\xff", "can't decode"),
        (b'{"n":NaN}', "NaN is not JSON"),
        (b'{"n":-Infinity}', "-Infinity is not JSON"),
        (b'{"n":123456789012345678901}', "has more than 20 digits"),
    ],
)
def test_other_content_is_refused(payload: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=f"^the file: .*{reason}"):
        parse_json(payload, "the file: ")


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content.update(type="another"),
        lambda content: content.update(sequence=1e999),
        lambda content: content.update(wall_s=int("9" * 400)),
        lambda content: content.update(digests={"weights": None}),
        lambda content: content.update(digests=5),
        lambda content: content["finished"].update(count=float("inf")),
        lambda content: content["state"].update(generated_tokens_total=None),
        lambda content: content["state"].update(steps_by_batch={"1" * 30: [int("9" * 400), 1.0]}),
    ],
)
def test_statement_that_nothing_can_be_computed_of_is_unsound(
    change: Callable[[dict[str, Any]], object],
) -> None:
    engine = SigningEngine()
    signed = engine.measure()
    after = resigned(signed.after, change, engine.private)
    with pytest.raises(ValueError, match="the statement after"):
        prove(signed.model_copy(update={"after": after}), {})


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        (b"", "1: invalid JSON: it ends too early"),
        (b"[1,2", "1: invalid JSON: it ends too early"),
        (b"\n{,", "2: invalid JSON: Expecting property name"),
        (b"{}\n" + b"[" * 100_000, "2: invalid JSON: it is nested too deeply"),
        (
            b"\n\n" + b"1" * 5000,
            "3: invalid JSON: 1111111111111111111111111111111111111111 has more than 20 digits",
        ),
        (b"\n\xff", "2: the text is not UTF-8"),
        (b'{}{"n": 1, "n": 2}', "1: invalid JSON: 'n' is there twice in one object"),
    ],
)
def test_invalid_file_is_reported_with_its_line(content: bytes, rule: str) -> None:
    with pytest.raises(ValueError, match=f"^f:{re.escape(rule)}"):
        list(documents_in("f", content))


def test_documents_of_a_file_are_parsed_one_after_the_other() -> None:
    assert next(documents_in("f", b'{"a": 1}\n{')) == (1, {"a": 1})


def test_documents_of_a_file_have_the_line_in_which_they_begin() -> None:
    assert list(documents_in("f", b'\xef\xbb\xbf {"a": 1} [2]\n\n\xef\xbb\xbf{\n"b": 3}\n')) == [
        (1, {"a": 1}),
        (1, [2]),
        (3, {"b": 3}),
    ]

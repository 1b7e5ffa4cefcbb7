"""The fast parser of bodies against the strict one: the same documents, the same refusals."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orch_sidecar.api import json_body
from orch_sidecar.api.json_body import InvalidBody, parse
from tests.fuzz import examples

DEPTH = 8
NUMBERS = st.integers() | st.floats() | st.sampled_from([2**63, -(2**64), 10**40, 1e308, 5e-324])
TEXTS = st.text(max_size=8) | st.sampled_from(["\ud800", '":', '\\":', "a", "b", "\x7f", "\u2028"])
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


def outcome(body: bytes) -> str:
    """The document with the types of its values, or the refusal."""
    try:
        return repr(parse(body, DEPTH))
    except InvalidBody as invalid:
        return f"refused: {invalid}"


def strict(body: bytes) -> str:
    with patch.object(json_body, "_parsed_fast", lambda body: None):
        return outcome(body)


@settings(max_examples=examples(2000), deadline=None)
@given(
    st.dictionaries(TEXTS, VALUES, max_size=4),
    st.sampled_from([(",", ":"), (", ", ": "), (",", ":\t")]),
    st.booleans(),
    st.data(),
)
def test_any_body_is_read_as_by_the_strict_parser(
    document: dict[str, Any], separators: tuple[str, str], ascii_only: bool, data: st.DataObject
) -> None:
    text = json.dumps(document, separators=separators, ensure_ascii=ascii_only)
    body = text.encode("utf-8", "surrogatepass")
    assert outcome(body) == strict(body)
    # The same with a few bytes of another document in it: duplicates, and what is not JSON.
    at = data.draw(st.integers(0, len(body)))
    damaged = (
        body[:at]
        + data.draw(st.sampled_from([b'"a":1,', b",", b"}", b"1", b" ", b"\n\t"]))
        + body[at:]
    )
    assert outcome(damaged) == strict(damaged)


@pytest.mark.parametrize(
    "body",
    [
        b'{"n":1,"n":2}',
        b'{"\\u006e":1,"n":2}',
        b'{"a":"\\":1,\\"","a":""}',
        b'{"n":1e400}',
        b'{"n":NaN}',
        b'{"n":1}x',
        b'{"n":"\xff"}',
        b"[1]",
        b"",
        b'\xef\xbb\xbf{"n":1}',
        '{"n":1}'.encode("utf-16"),
        b'{"a":' + b"[" * DEPTH + b"]" * DEPTH + b"}",
        b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}",
    ],
)
def test_bodies_that_are_no_plain_objects_are_left_to_the_strict_parser(body: bytes) -> None:
    assert json_body._parsed_fast(body) is None or body.count(b"[") == DEPTH
    assert outcome(body) == strict(body)


def test_below_the_top_level_the_last_of_duplicates_counts() -> None:
    body = b'{"a":{"b":1,"b":2}}'
    assert json_body._parsed_fast(body) == {"a": {"b": 2}}
    assert outcome(body) == strict(body)


@pytest.mark.parametrize(
    "document",
    [
        {"model": "m", "messages": [{"role": "user", "content": 'ü: "x"\n'}], "n": 2, "top_p": 0.9},
        {"prompt": [1, 2**53, -1], "stream": True, "seed": None, "temperature": 0.001},
    ],
)
def test_bodies_of_the_usual_clients_take_the_fast_parser(document: dict[str, Any]) -> None:
    body = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
    assert json_body._parsed_fast(body) == document
    assert json_body._parsed_fast(json.dumps(document, ensure_ascii=False).encode()) == document


def test_integer_of_thousands_of_digits_is_refused_without_a_word_about_python() -> None:
    with pytest.raises(InvalidBody) as caught:
        parse(b'{"n": %b}' % (b"1" * 5000), 64)
    assert "5000 digits" in caught.value.refusal.message
    assert "sys." not in caught.value.refusal.message

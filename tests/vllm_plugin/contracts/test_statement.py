"""The lines of finished sequences, and the heads of chains."""

from __future__ import annotations

from typing import Any

import pytest

from vllm_plugin.contracts.statement import (
    STATEMENT_TYPE,
    InvalidEnvelope,
    Leaf,
    Signed,
    envelope,
    first_head,
    key_id,
    next_head,
    pae,
    parse_envelope,
    parse_leaf,
    sequence_of,
)

LEAF = Leaf(7, "0123456789abcdef", 1.5, 2.25, 0.0, -0.5, 0.75, 20, 6, 16, "length")
LINE = "7,0123456789abcdef,1.500000,2.250000,0.000000,-0.500000,0.750000,20,6,16,length"


def test_line_of_a_sequence_is_read_as_it_is_written() -> None:
    assert LEAF.line == LINE
    assert parse_leaf(LINE) == LEAF


@pytest.mark.parametrize(
    "line",
    ["", LINE + "\n", LINE + ",", LINE.replace("7,", "0,", 1), LINE.replace("1.5", "nan"),
     LINE.replace(",20,", ",-20,"), LINE.replace("length", "Länge"), "07" + LINE[1:]],
)  # fmt: skip
def test_other_lines_are_refused(line: str) -> None:
    with pytest.raises(ValueError, match="is not a finished sequence"):
        parse_leaf(line)


def test_chains_of_different_engines_and_kinds_begin_differently() -> None:
    heads = {first_head(chain, epoch) for chain in ("leaves", "statements") for epoch in ("a", "b")}
    assert len(heads) == 4
    assert next_head(next_head(b"h", b"a"), b"b") != next_head(next_head(b"h", b"b"), b"a")
    assert key_id(b"") == (
        "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    )


@pytest.mark.parametrize("payload", [b"[]", b"{}", b'{"sequence": "1"}', b"{", b"5"])
def test_statement_without_a_sequence_number_is_refused(payload: bytes) -> None:
    assert sequence_of(Signed(STATEMENT_TYPE, b'{"sequence": 3}', "", b"")) == 3
    with pytest.raises(ValueError, match=r"sequence is|Expecting"):
        sequence_of(Signed(STATEMENT_TYPE, payload, "", b""))


SIGNED = Signed("application/x", b"hello", "key", b"sig")


def test_signed_bytes_are_those_of_the_specification() -> None:
    """The example of DSSE's protocol.md."""
    assert pae("http://example.com/HelloWorld", b"hello world") == (
        b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    )
    assert SIGNED.pae == b"DSSEv1 13 application/x 5 hello"


def test_envelope_is_parsed_as_it_was_made() -> None:
    assert parse_envelope(envelope(SIGNED), "application/x") == SIGNED


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"payloadType": "application/y"}, "payloadType is 'application/y'"),
        ({"payload": "aGVsbG8"}, "payload: it must be standard base64"),
        ({"payload": "aGVsbG9="}, "payload: it must be standard base64"),  # other unused bits
        ({"payload": "aGVs bG8="}, "payload: it must be standard base64"),
        ({"payload": "aGV-bG8="}, "payload: it must be standard base64"),
        ({"payload": 5}, "payload: it must be standard base64"),
        ({"signatures": []}, "must have exactly one"),
        ({"signatures": [{}, {}]}, "must have exactly one"),
        ({"signatures": [{"keyid": "k"}]}, "the signature must be an object with keyid, sig"),
        ({"signatures": [{"keyid": 5, "sig": ""}]}, "keyid is 5"),
        ({"more": 1}, "and nothing else"),
    ],
)
def test_other_envelopes_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidEnvelope, match=message):
        parse_envelope(envelope(SIGNED) | change, "application/x")
    others: tuple[object, ...] = (None, [], "x", {})
    for other in others:
        with pytest.raises(InvalidEnvelope, match="the envelope must be an object"):
            parse_envelope(other, "application/x")

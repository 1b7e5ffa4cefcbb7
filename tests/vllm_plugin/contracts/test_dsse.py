"""Envelopes: the bytes that are signed, and that each envelope can be written in one way only."""

from __future__ import annotations

from typing import Any

import pytest

from vllm_plugin.contracts.dsse import InvalidEnvelope, Signed, envelope, pae, parse_envelope

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

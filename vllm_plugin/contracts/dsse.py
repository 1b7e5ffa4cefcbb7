"""Signing envelopes (DSSE v1): a signature over bytes that are stored as they were signed.

Pure, without vLLM: the plugin writes them, and `orch facts verify` reads them. The signature is
over PAE(type, payload), so that no payload can be taken for one of another type. An envelope has
one way to be written: what could be changed without a fault would not be protected.
https://github.com/secure-systems-lab/dsse/blob/v1.0.2/protocol.md
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Envelope = dict[str, Any]


class InvalidEnvelope(ValueError):
    """Not an envelope of the expected type; the message names the field, its value and the rule."""


@dataclass(frozen=True, slots=True)
class Signed:
    """The content of an envelope whose signature has not been checked."""

    payload_type: str
    payload: bytes
    key_id: str
    signature: bytes

    @property
    def pae(self) -> bytes:
        return pae(self.payload_type, self.payload)


def pae(payload_type: str, payload: bytes) -> bytes:
    """Returns the pre-authentication encoding: the bytes that are signed."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def envelope(signed: Signed) -> Envelope:
    """Returns the JSON object of an envelope."""
    return {
        "payloadType": signed.payload_type,
        "payload": to_base64(signed.payload),
        "signatures": [{"keyid": signed.key_id, "sig": to_base64(signed.signature)}],
    }


def parse_envelope(document: object, payload_type: str) -> Signed:
    """Parses an envelope with one signature. Raises InvalidEnvelope."""
    outer = _object(document, "the envelope", ("payloadType", "payload", "signatures"))
    if outer["payloadType"] != payload_type:
        raise InvalidEnvelope(f"payloadType is {outer['payloadType']!r}: it must be {payload_type}")
    signatures = outer["signatures"]
    if not isinstance(signatures, list) or len(signatures) != 1:
        raise InvalidEnvelope("signatures: the envelope must have exactly one")
    signature = _object(signatures[0], "the signature", ("keyid", "sig"))
    if not isinstance(signature["keyid"], str):
        raise InvalidEnvelope(f"keyid is {signature['keyid']!r}: it must be a text")
    return Signed(
        payload_type,
        from_base64("payload", outer["payload"]),
        signature["keyid"],
        from_base64("sig", signature["sig"]),
    )


def to_base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


def from_base64(name: str, text: object) -> bytes:
    """Decodes standard base64. Raises InvalidEnvelope for any other way to write the bytes."""
    try:
        content = base64.b64decode(text, validate=True) if isinstance(text, str) else None
    except (binascii.Error, ValueError):
        content = None
    if content is None or to_base64(content) != text:
        raise InvalidEnvelope(f"{name}: it must be standard base64 with padding")
    return content


def _object(document: object, what: str, names: tuple[str, ...]) -> Mapping[str, Any]:
    if not isinstance(document, dict) or sorted(document) != sorted(names):
        raise InvalidEnvelope(f"{what} must be an object with {', '.join(names)}, and nothing else")
    return document

"""What an engine signs of itself: the form of its statements, and of the requests that it finished.

    POST /v1/evidence/statements {"run": NAME, "nonce": HEX, "since": SEQUENCE}

returns a statement, signed with a key that lives as long as the engine (its epoch), and the
certificate of that key by an operator's key, if the engine was given one. `nonce` and `since` may
be missing. With `since`, the sequence number of an earlier statement, the answer also has what lies
between the two: the digests of other statements, and a line for each finished sequence (a leaf).

Two hash chains make it impossible to leave something out later: each statement contains the head
of the chain of all statements before it, and the head of the chain of all leaves.

Statement and certificate are signed in envelopes (DSSE v1), which keep the bytes as they were
signed. The signature is over PAE(type, payload), so that no payload can be taken for one of another
type. An envelope has one way to be written: what could be changed without a fault would not be
protected. https://github.com/secure-systems-lab/dsse/blob/v1.0.2/protocol.md

Pure, without vLLM: the plugin writes it, and `orch facts verify` and `orch bench` read it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

STATEMENTS_PATH: Final = "/v1/evidence/statements"

STATEMENT_TYPE: Final = "application/vnd.orch.statement.v1+json"
CERTIFICATE_TYPE: Final = "application/vnd.orch.certificate.v1+json"

Envelope = dict[str, Any]

RUN: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
NONCE: Final = re.compile(r"[0-9a-f]{32,128}")
HASH: Final = re.compile(r"[0-9a-f]{64}")

_LEAF: Final = re.compile(
    r"([1-9][0-9]{0,15}),([0-9a-f]{16}),([0-9]{1,12}\.[0-9]{6}),([0-9]{1,12}\.[0-9]{6}),"
    r"(-?[0-9]{1,12}\.[0-9]{6}),(-?[0-9]{1,12}\.[0-9]{6}),(-?[0-9]{1,12}\.[0-9]{6}),"
    r"([0-9]{1,12}),([0-9]{1,12}),([0-9]{1,12}),([a-z_]{1,32})"
)


class Leaf(NamedTuple):
    """A finished sequence. Times are seconds: arrival and end by the wall clock.

    `request`: equal for the sequences of one request, and nothing that its client could recognise.
    A sequence that was aborted has no leaf.
    """

    number: int
    request: str
    arrived_s: float
    ended_s: float
    queued_s: float
    prefill_s: float
    decode_s: float
    prompt_tokens: int
    generated_tokens: int
    cached_tokens: int
    finish_reason: str

    @property
    def line(self) -> str:
        """The leaf as it is hashed and stored."""
        return (
            f"{self.number},{self.request},{self.arrived_s:.6f},{self.ended_s:.6f},"
            f"{self.queued_s:.6f},{self.prefill_s:.6f},{self.decode_s:.6f},{self.prompt_tokens},"
            f"{self.generated_tokens},{self.cached_tokens},{self.finish_reason}"
        )


def parse_leaf(line: str) -> Leaf:
    """Parses a stored leaf. Raises ValueError."""
    found = _LEAF.fullmatch(line)
    if found is None:
        raise ValueError(f"{line[:80]!r} is not a finished sequence")
    number, request, *times, prompt, generated, cached, reason = found.groups()
    arrived_s, ended_s, queued_s, prefill_s, decode_s = map(float, times)
    return Leaf(
        int(number), request, arrived_s, ended_s, queued_s, prefill_s, decode_s,
        int(prompt), int(generated), int(cached), reason,
    )  # fmt: skip


def key_id(public: bytes) -> str:
    """Returns the id of an Ed25519 public key (32 bytes)."""
    return f"sha256:{hashlib.sha256(public).hexdigest()}"


def first_head(chain: str, epoch: str) -> bytes:
    """Returns the head of an empty chain (`statements` or `leaves`) of an engine."""
    return hashlib.sha256(f"orch {chain} {epoch}".encode()).digest()


def next_head(head: bytes, content: bytes) -> bytes:
    """Returns the head of a chain to which this content was added."""
    return hashlib.sha256(head + content).digest()


def sequence_of(signed: Signed) -> int:
    """Returns the sequence number of a statement. Raises ValueError if it has none."""
    content = json.loads(signed.payload)
    sequence = content.get("sequence") if isinstance(content, dict) else None
    if type(sequence) is not int:
        raise ValueError(f"sequence is {sequence!r:.80}: it must be an integer")
    return sequence


def statement_digest(payload: bytes) -> bytes:
    """Returns what the chain of statements contains of a statement."""
    return hashlib.sha256(payload).digest()


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

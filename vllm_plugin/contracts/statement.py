"""What an engine signs of itself: the form of its statements, and of the requests that it finished.

    POST /v1/evidence/statements {"run": NAME, "nonce": HEX, "since": SEQUENCE}

returns a statement, signed with a key that lives as long as the engine (its epoch), and the
certificate of that key by an operator's key, if the engine was given one. `nonce` and `since` may
be missing. With `since`, the sequence number of an earlier statement, the answer also has what lies
between the two: the digests of other statements, and a line for each finished sequence (a leaf).

Two hash chains make it impossible to leave something out later: each statement contains the head
of the chain of all statements before it, and the head of the chain of all leaves.

Pure, without vLLM: the plugin writes it, and `orch facts verify` and `orch bench` read it.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Final, NamedTuple

from vllm_plugin.contracts.dsse import Signed

STATEMENTS_PATH: Final = "/v1/evidence/statements"

STATEMENT_TYPE: Final = "application/vnd.orch.statement.v1+json"
CERTIFICATE_TYPE: Final = "application/vnd.orch.certificate.v1+json"

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

"""Verifies what an engine signed: signatures, the certificate, both hash chains, clocks.

Pure. What it returns is what the engine stated; whether a row follows from it, `recompute` decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict

from orch_sidecar.tools.facts.labels.documents import at, parse_json, parsed_as
from orch_sidecar.tools.facts.labels.figures import CompletedRequest, Totals, figures
from orch_sidecar.tools.facts.labels.intervals import Interval
from orch_sidecar.tools.facts.labels.observation import States
from orch_sidecar.tools.facts.labels.snapshot import Snapshot
from orch_sidecar.tools.facts.labels.thresholds import CLOCKS_AGREE_S, LAST_STEP_TOKENS
from orch_sidecar.tools.facts.signing.files import Hash, Signed, TrustedKeys
from vllm_plugin.contracts.statement import (
    CERTIFICATE_TYPE,
    STATEMENT_TYPE,
    Envelope,
    Leaf,
    from_base64,
    key_id,
    next_head,
    parse_envelope,
    parse_leaf,
    statement_digest,
    to_base64,
)


class _Content(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False)


_Signed = TypeVar("_Signed", bound=_Content)


class Certificate(_Content):
    """What an operator states about an engine's key, from one Unix time to another."""

    public_key: str
    epoch: str
    not_before_s: int
    not_after_s: int


class Statement(_Content):
    """What an engine states about itself. Times are seconds."""

    run: str
    nonce: str | None
    sequence: int
    previous: Hash
    epoch: str
    key_id: str
    wall_s: float
    monotonic_s: float
    finished: int = at("finished.count")
    finished_head: Hash = at("finished.head")
    digests: dict[str, dict[str, Any]]
    snapshot: Snapshot = at("state")
    # Its snapshot may lack them: not every document of an engine has them.
    generated_tokens: int = at("state.generated_tokens_total")


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """A finished request in the engine: its sequences, which share its prompt. Times are seconds of
    the engine's wall clock."""

    leaves: Sequence[Leaf]

    @property
    def in_flight(self) -> Interval:
        """In the engine, with as many sequences as it had."""
        arrived_s = min(leaf.arrived_s for leaf in self.leaves)
        return Interval(arrived_s, max(leaf.ended_s for leaf in self.leaves), len(self.leaves))

    @property
    def running(self) -> Interval:
        """From its first slot to its end."""
        slot_s = min(leaf.ended_s - leaf.decode_s - leaf.prefill_s for leaf in self.leaves)
        return Interval(slot_s, self.in_flight.end)

    @property
    def earliest(self) -> CompletedRequest:
        """As a client can have seen it at the earliest, who need not see the last step."""
        arrived_s = self.in_flight.start
        read_s = [leaf.queued_s + leaf.prefill_s for leaf in self.leaves]
        # Tokens without text make no event: all may be seen before the last of them.
        decoded_s = [
            leaf.decode_s * max(0.0, 1 - LAST_STEP_TOKENS / max(1, leaf.generated_tokens - 1))
            for leaf in self.leaves
        ]
        return CompletedRequest(
            arrived_s=arrived_s,
            first_token_s=arrived_s + min(read_s),
            ended_s=arrived_s + max(map(sum, zip(read_s, decoded_s, strict=True))),
            input_tokens=self.leaves[-1].prompt_tokens,
            output_tokens=sum(leaf.generated_tokens for leaf in self.leaves),
        )


@dataclass(frozen=True)
class Proof:
    """What an engine stated about a run. `signer`: the name of the trusted key, None if unknown."""

    before: Statement
    after: Statement
    leaves: Sequence[Leaf]
    signer: str | None

    @cached_property
    def requests(self) -> Sequence[SignedRequest]:
        """The finished HTTP requests, by their arrival."""
        leaves: dict[str, list[Leaf]] = {}
        for leaf in self.leaves:
            leaves.setdefault(leaf.request, []).append(leaf)
        return sorted(map(SignedRequest, leaves.values()), key=lambda each: each.in_flight.start)

    @property
    def states(self) -> States:
        return States(self.before.snapshot, self.after.snapshot)

    @cached_property
    def totals(self) -> Totals:
        """The figures by the engine's wall clock. Raises ValueError if they took no time."""
        ended = (replace(each.earliest, ended_s=each.in_flight.end) for each in self.requests)
        return figures(list(ended))

    @property
    def between_s(self) -> float:
        """Between the two statements, by the engine's monotonic clock."""
        return self.after.monotonic_s - self.before.monotonic_s

    @property
    def adjusted_s(self) -> float:
        """By how much its wall clock was adjusted between the statements."""
        return abs(self.after.wall_s - self.before.wall_s - self.between_s)


def prove(signed: Signed, trusted: TrustedKeys) -> Proof:
    """Returns what the engine stated. Raises ValueError where that does not hold."""
    public = from_base64("public_key", signed.public_key)
    before, after = (
        _verified(f"the statement {when}", envelope, STATEMENT_TYPE, public, Statement)
        for when, envelope in (("before", signed.before), ("after", signed.after))
    )
    signer = _signer(signed, public, (before, after), trusted)
    for when, each in (("before", before), ("after", after)):
        if (each.key_id, each.snapshot.epoch) != (key_id(public), each.epoch):
            raise ValueError(f"the statement {when} names another key or epoch than its own")
        if (each.run, each.nonce) != (signed.run, signed.nonce):
            raise ValueError(f"the statement {when} is of another run, or has another nonce")
    _check_chains(before, after, signed)
    for name, digest in after.digests.items():
        if before.digests.get(name, {}).get("sha256") not in (None, digest.get("sha256")):
            raise ValueError(f"the digest of the {name} changed between the statements")
    proof = Proof(before, after, tuple(map(parse_leaf, signed.leaves)), signer)
    if proof.between_s <= 0 or proof.adjusted_s > CLOCKS_AGREE_S:
        raise ValueError(
            f"between the statements lie {proof.between_s:.3f} s by the monotonic clock, and the "
            f"wall clock differs by {proof.adjusted_s:.3f} s: the clock was set"
        )
    first_s, last_s = before.wall_s - CLOCKS_AGREE_S, after.wall_s + CLOCKS_AGREE_S
    for leaf in proof.leaves:
        if not first_s <= leaf.arrived_s <= leaf.ended_s <= last_s:
            raise ValueError(f"the finished sequence {leaf.number} lies outside of the statements")
    return proof


def _verified(
    what: str, envelope: Envelope, kind: str, public: bytes, content: type[_Signed]
) -> _Signed:
    """Returns what is in an envelope that this key signed."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    parsed, own = parse_envelope(envelope, kind), key_id(public)
    if parsed.key_id != own:
        raise ValueError(f"{what} is signed by the key {parsed.key_id}, not by {own}")
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(parsed.signature, parsed.pae)
    except InvalidSignature:
        raise ValueError(f"{what}: the signature does not match its bytes") from None
    stated = parse_json(parsed.payload, f"{what}: ")
    if not isinstance(stated, dict) or stated.get("type") != kind:
        raise ValueError(f"{what}: its type must be {kind}")
    return parsed_as(content, stated, f"{what} lacks what evidence needs: ")


def _signer(
    signed: Signed, public: bytes, statements: tuple[Statement, ...], trusted: TrustedKeys
) -> str | None:
    """Returns the name of the trusted key that certified the engine's; None if there is none."""
    if signed.certificate is None:
        return None
    issuer = trusted.get(parse_envelope(signed.certificate, CERTIFICATE_TYPE).key_id)
    if issuer is None:
        return None
    what = "the certificate"
    found = _verified(what, signed.certificate, CERTIFICATE_TYPE, issuer.public, Certificate)
    if found.public_key != to_base64(public):
        raise ValueError(f"{what} is of another key than that of the statements")
    if not issuer.is_valid_at(found.not_before_s):
        raise ValueError(f"{what} was issued when the key {issuer.name} was not valid")
    for each in statements:
        if found.epoch != each.epoch:
            raise ValueError(f"{what} is of another epoch than the statements")
        if not found.not_before_s <= each.wall_s <= found.not_after_s:
            raise ValueError(f"{what} was not valid at the time of the statements")
        if not issuer.is_valid_at(each.wall_s):
            raise ValueError(f"the key {issuer.name} was not valid at the time of the statements")
    return issuer.name


def _check_chains(before: Statement, after: Statement, signed: Signed) -> None:
    if before.epoch != after.epoch:
        raise ValueError("the statements are of two epochs: the engine was restarted")
    if after.sequence != before.sequence + len(signed.between) + 1:
        raise ValueError(
            f"statement {after.sequence} does not follow statement {before.sequence} with "
            f"{len(signed.between)} between them"
        )
    own = statement_digest(parse_envelope(signed.before, STATEMENT_TYPE).payload)
    own = next_head(bytes.fromhex(before.previous), own)
    if reduce(next_head, map(bytes.fromhex, signed.between), own).hex() != after.previous:
        raise ValueError("the chain of statements is broken: the second does not follow the first")
    if len(signed.leaves) != (count := after.finished - before.finished) or not count:
        raise ValueError(
            f"{len(signed.leaves)} finished sequences are listed, the statements count {count}"
        )
    head = reduce(next_head, map(str.encode, signed.leaves), bytes.fromhex(before.finished_head))
    if head.hex() != after.finished_head:
        raise ValueError("the chain of finished sequences is broken: one was changed or left out")

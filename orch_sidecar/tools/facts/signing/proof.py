"""Verifies what an engine signed: signatures, the certificate, both hash chains, clocks, counters.

Pure. What it returns is what the engine stated; whether a row follows from it, `recompute` decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from orch_sidecar.tools.facts.labels.documents import at, first_problem, parse_content
from orch_sidecar.tools.facts.labels.figures import CompletedRequest
from orch_sidecar.tools.facts.labels.intervals import Interval
from orch_sidecar.tools.facts.labels.observation import States
from orch_sidecar.tools.facts.labels.snapshot import InvalidSnapshot, Snapshot, parse_snapshot
from orch_sidecar.tools.facts.labels.thresholds import CLOCKS_AGREE_S
from orch_sidecar.tools.facts.signing.evidence_file import Signed, Unsound
from orch_sidecar.tools.facts.signing.trusted import TrustedKeys
from vllm_plugin.contracts import dsse
from vllm_plugin.contracts.dsse import Envelope, InvalidEnvelope, from_base64, parse_envelope
from vllm_plugin.contracts.statement import (
    CERTIFICATE_TYPE,
    HASH,
    STATEMENT_TYPE,
    Leaf,
    key_id,
    next_head,
    parse_leaf,
    statement_digest,
)

# The parts of an engine's state that must not change during a run, as far as it has them.
_FIXED: Final = (
    *("engine", "engine_version", "pool", "profile", "measurement_type", "batching", "ctx_max"),
    *("slots_total", "gpu", "gpu_count", "precision", "rate_limits", "features", "conditions"),
    *("weights", "epoch"),
)
_COUNTERS: Final = ("requests_total", "generated_tokens_total", "steps_total", "preemptions_total")


def _hash(text: object) -> bytes:
    if not isinstance(text, str) or HASH.fullmatch(text) is None:
        raise Unsound(f"{text!r:.80} is not a SHA-256 in hexadecimal")
    return bytes.fromhex(text)


_Hash = Annotated[bytes, BeforeValidator(_hash)]


class Statement(BaseModel):
    """A statement whose signature has been verified, with what its state means and the digest of
    its bytes. Times are seconds."""

    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False)

    run: str
    nonce: str | None
    sequence: int
    previous: _Hash
    epoch: str
    key_id: str
    wall_s: float
    monotonic_s: float
    finished: int = at("finished.count")
    finished_head: _Hash = at("finished.head")
    digests: dict[str, dict[str, Any]]
    state: dict[str, Any]
    counters: dict[str, int]
    snapshot: Snapshot
    digest: bytes


@dataclass(frozen=True, slots=True)
class SignedRequest(CompletedRequest):
    """A finished request in the engine, and its sequences. Times are seconds of its wall clock."""

    leaves: tuple[Leaf, ...] = ()

    @property
    def in_flight(self) -> Interval:
        """In the engine, with as many sequences as it had."""
        return Interval(self.arrived_s, self.ended_s, len(self.leaves))

    @property
    def running(self) -> Interval:
        """From its first slot to its end."""
        slot_s = min(leaf.ended_s - leaf.decode_s - leaf.prefill_s for leaf in self.leaves)
        return Interval(slot_s, self.ended_s)


def _request(leaves: Sequence[Leaf]) -> SignedRequest:
    """Returns the request that had these sequences, which share its prompt."""
    return SignedRequest(
        arrived_s=min(leaf.arrived_s for leaf in leaves),
        first_token_s=min(leaf.ended_s - leaf.decode_s for leaf in leaves),
        ended_s=max(leaf.ended_s for leaf in leaves),
        input_tokens=leaves[-1].prompt_tokens,
        output_tokens=sum(leaf.generated_tokens for leaf in leaves),
        longest_output_tokens=max(leaf.generated_tokens for leaf in leaves),
        leaves=tuple(leaves),
    )


@dataclass(frozen=True)
class Proof:
    """What an engine stated about a run. `signer`: the name of the trusted key, None if unknown."""

    before: Statement
    after: Statement
    leaves: Sequence[Leaf]
    signer: str | None

    @property
    def generated_tokens(self) -> int:
        return sum(leaf.generated_tokens for leaf in self.leaves)

    @cached_property
    def requests(self) -> Sequence[SignedRequest]:
        """The finished HTTP requests, by their arrival."""
        leaves: dict[str, list[Leaf]] = {}
        for leaf in self.leaves:
            leaves.setdefault(leaf.request, []).append(leaf)
        return sorted(map(_request, leaves.values()), key=lambda request: request.arrived_s)

    @property
    def states(self) -> States:
        return States(self.before.snapshot, self.after.snapshot)

    @property
    def window_s(self) -> float:
        """From the first arrival to the last end of its sequences, by the engine's wall clock."""
        return max(each.ended_s for each in self.leaves) - min(
            each.arrived_s for each in self.leaves
        )

    @property
    def tokens_per_s(self) -> float:
        """Throughput by the engine's clock."""
        return self.generated_tokens / self.window_s

    @property
    def between_s(self) -> float:
        """Between the two statements, by the engine's monotonic clock."""
        return self.after.monotonic_s - self.before.monotonic_s

    @property
    def adjusted_s(self) -> float:
        """By how much its wall clock was adjusted between the statements."""
        return abs(self.after.wall_s - self.before.wall_s - self.between_s)


def prove(signed: Signed, trusted: TrustedKeys) -> Proof:
    """Returns what the engine stated. Raises Unsound."""
    try:
        public = from_base64("public_key", signed.public_key)
        before = _statement("the statement before", signed.before, public)
        after = _statement("the statement after", signed.after, public)
        signer = _signer(signed, public, (before, after), trusted)
    except InvalidEnvelope as error:
        raise Unsound(str(error)) from None
    for which, each in (("before", before), ("after", after)):
        if (each.run, each.nonce) != (signed.run, signed.nonce):
            raise Unsound(f"the statement {which} is of another run, or has another nonce")
    _check_chain(before, after, signed.between)
    proof = Proof(before, after, _leaves(before, after, signed.leaves), signer)
    _check_clocks(proof)
    _check_unchanged(before, after)
    _check_counters(proof)
    return proof


def _verify(what: str, envelope: Envelope, kind: str, public: bytes) -> Mapping[str, Any]:
    """Returns the payload of an envelope that this key signed."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    parsed = parse_envelope(envelope, kind)
    if parsed.key_id != key_id(public):
        raise Unsound(f"{what} is signed by the key {parsed.key_id}, not by {key_id(public)}")
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(parsed.signature, parsed.pae)
    except (InvalidSignature, ValueError):
        raise Unsound(f"{what}: the signature does not match its bytes") from None
    try:
        return parse_content(parsed.payload, kind)
    except ValueError as error:
        raise Unsound(f"{what}: its content is not sound: {error}") from None


def _statement(what: str, envelope: Envelope, public: bytes) -> Statement:
    content = _verify(what, envelope, STATEMENT_TYPE, public)
    digest = statement_digest(parse_envelope(envelope, STATEMENT_TYPE).payload)
    try:
        snapshot = parse_snapshot({"engines": [content.get("state")]})
        counters = {name: content["state"].get(name) for name in _COUNTERS}
        more = {"snapshot": snapshot, "digest": digest, "counters": counters}
        found = Statement.model_validate({**content, **more})
    except InvalidSnapshot as error:
        raise Unsound(f"{what} lacks what evidence needs: {error}") from None
    except ValidationError as error:
        raise Unsound(f"{what} lacks what evidence needs: {first_problem(error)}") from None
    if found.key_id != key_id(public) or found.snapshot.epoch != found.epoch:
        raise Unsound(f"{what} names another key or epoch than its own")
    return found


def _signer(
    signed: Signed, public: bytes, statements: tuple[Statement, ...], trusted: TrustedKeys
) -> str | None:
    """Returns the name of the trusted key that certified the engine's; None if there is none."""
    if signed.certificate is None:
        return None
    issuer_id = parse_envelope(signed.certificate, CERTIFICATE_TYPE).key_id
    issuer = trusted.get(issuer_id)
    if issuer is None:
        return None
    content = _verify("the certificate", signed.certificate, CERTIFICATE_TYPE, issuer.public)
    begin_s, end_s = content.get("not_before_s"), content.get("not_after_s")
    if type(begin_s) is not int or type(end_s) is not int:
        raise Unsound("the certificate has no validity")
    if content.get("public_key") != dsse.to_base64(public):
        raise Unsound("the certificate is of another key than that of the statements")
    if not issuer.is_valid_at(begin_s):
        raise Unsound(f"the certificate was issued when the key {issuer.name} was not valid")
    for each in statements:
        if content.get("epoch") != each.epoch:
            raise Unsound("the certificate is of another epoch than the statements")
        if not begin_s <= each.wall_s <= end_s:
            raise Unsound("the certificate was not valid at the time of the statements")
        if not issuer.is_valid_at(each.wall_s):
            raise Unsound(f"the key {issuer.name} was not valid at the time of the statements")
    return issuer.name


def _check_chain(before: Statement, after: Statement, between: Sequence[str]) -> None:
    if before.epoch != after.epoch:
        raise Unsound("the statements are of two epochs: the engine was restarted")
    if after.sequence != before.sequence + len(between) + 1:
        raise Unsound(
            f"statement {after.sequence} does not follow statement {before.sequence} with "
            f"{len(between)} between them"
        )
    head = next_head(before.previous, before.digest)
    for each in between:
        head = next_head(head, _hash(each))
    if head != after.previous:
        raise Unsound("the chain of statements is broken: the second does not follow the first")


def _leaves(before: Statement, after: Statement, lines: Sequence[str]) -> tuple[Leaf, ...]:
    if before.finished + len(lines) != after.finished:
        raise Unsound(
            f"{len(lines)} finished sequences are listed, the statements count "
            f"{after.finished - before.finished}"
        )
    if not lines:
        raise Unsound("no sequence finished between the statements")
    head = before.finished_head
    found = []
    for number, line in enumerate(lines, before.finished + 1):
        head = next_head(head, line.encode())
        try:
            found.append(parse_leaf(line))
        except ValueError as error:
            raise Unsound(str(error)) from None
        if found[-1].number != number:
            raise Unsound(f"the finished sequence {found[-1].number} must be number {number}")
    if head != after.finished_head:
        raise Unsound("the chain of finished sequences is broken: one was changed or left out")
    return tuple(found)


def _check_clocks(proof: Proof) -> None:
    if proof.between_s <= 0 or proof.adjusted_s > CLOCKS_AGREE_S:
        raise Unsound(
            f"between the statements lie {proof.between_s:.3f} s by the monotonic clock, and the "
            f"wall clock differs by {proof.adjusted_s:.3f} s: the clock was set"
        )
    first_s = proof.before.wall_s - CLOCKS_AGREE_S
    last_s = proof.after.wall_s + CLOCKS_AGREE_S
    for leaf in proof.leaves:
        if not first_s <= leaf.arrived_s <= leaf.ended_s <= last_s:
            raise Unsound(f"the finished sequence {leaf.number} lies outside of the statements")
    if proof.window_s <= 0:
        raise Unsound("the finished sequences took no time")


def _check_unchanged(before: Statement, after: Statement) -> None:
    for name in _FIXED:
        if before.state.get(name) != after.state.get(name):
            raise Unsound(f"{name} changed between the statements")
    for name, digest in after.digests.items():
        earlier = before.digests.get(name, {}).get("sha256")
        if earlier is not None and earlier != digest.get("sha256"):
            raise Unsound(f"the digest of the {name} changed between the statements")


def _check_counters(proof: Proof) -> None:
    """Compares the engine's counters with its finished sequences, which are all of the window."""
    before, after = proof.before.counters, proof.after.counters
    if fell := [name for name in _COUNTERS if after[name] < before[name]]:
        raise Unsound(f"{fell[0]} fell between the statements")
    requests, generated = (after[name] - before[name] for name in _COUNTERS[:2])
    # With fewer some were aborted, or are still running: their tokens are in no leaf.
    if len(proof.requests) >= requests and generated != proof.generated_tokens:
        raise Unsound(
            f"the engine generated {generated} tokens between the statements, its finished "
            f"sequences have {proof.generated_tokens}"
        )

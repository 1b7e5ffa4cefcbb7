"""What is accepted of signed statements, where each way to change one is rejected, and of keys."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from orch_sidecar.tools.facts.signing.files import Signed, entry_of, parse_trusted
from orch_sidecar.tools.facts.signing.proof import prove
from tests.orch_sidecar.tools.facts.signing.signed import (
    BEGIN_S,
    DAY_S,
    Operator,
    SigningEngine,
    content_of,
    resigned,
)
from vllm_plugin.contracts.statement import key_id, to_base64
from vllm_plugin.evidence.epoch_key import CERTIFICATE_DAYS


def changed(signed: Signed, **fields: Any) -> Signed:
    return signed.model_copy(update=fields)


def test_statements_of_a_certified_engine_are_proven() -> None:
    operator = Operator()
    engine = SigningEngine(operator)
    engine.decode(2, 3)  # of the warm-up
    proof = prove(engine.measure(), operator.trusted())
    assert proof.signer == "lab"
    assert [leaf.number for leaf in proof.leaves] == [3, 4, 5]
    assert proof.totals.output_tokens == 18
    assert proof.totals.window_s == pytest.approx(0.06, abs=1e-5)
    assert proof.between_s == pytest.approx(0.10, abs=1e-5)


def test_without_a_trusted_key_the_signer_is_unknown() -> None:
    operator = Operator()
    assert prove(SigningEngine(operator).measure(), {}).signer is None
    assert prove(SigningEngine(operator).measure(), Operator("other").trusted()).signer is None
    assert prove(SigningEngine().measure(), operator.trusted()).signer is None


def test_statements_of_others_in_between_are_part_of_the_chain() -> None:
    operator = Operator()
    engine = SigningEngine(operator)
    before = engine.ask()
    engine.ask(run="another", nonce=None)
    engine.decode(2, 3)
    after = engine.ask(since=1)
    signed = engine.signed(before, after)
    assert prove(signed, operator.trusted()).after.sequence == 3
    with pytest.raises(ValueError, match="with 0 between them"):
        prove(changed(signed, between=[]), operator.trusted())
    with pytest.raises(ValueError, match="the chain of statements is broken"):
        prove(changed(signed, between=["0" * 64]), operator.trusted())


def other_key() -> str:
    return to_base64(Ed25519PrivateKey.generate().public_key().public_bytes_raw())


# What is changed of the evidence, by the reason that rejects it.
CHANGES: dict[str, list[Callable[[Signed], dict[str, Any]]]] = {
    "2 finished sequences are listed, the": [lambda s: {"leaves": s.leaves[1:]}],
    "4 finished sequences are listed, the statements count 3": [
        lambda s: {"leaves": [*s.leaves, s.leaves[-1].replace("3,", "4,", 1)]}
    ],
    "chain of finished sequences is broken": [
        lambda s: {"leaves": [*s.leaves[:-1], s.leaves[-1].replace(",6,", ",9,")]},
        lambda s: {"leaves": s.leaves[::-1]},
    ],
    "statement 1 does not follow statement 2": [lambda s: {"before": s.after, "after": s.before}],
    "statement 1 does not follow statement 1": [lambda s: {"after": s.before, "leaves": []}],
    "the statement before is of another run": [lambda s: {"run": "another"}],
    "of another run, or has another nonce": [
        lambda s: {"nonce": "f" * 64},
        lambda s: {"nonce": None},
    ],
    "is signed by the key sha256:": [
        lambda s: {"public_key": other_key()},
        lambda s: {"public_key": to_base64(b"short")},
    ],
}


@pytest.mark.parametrize(
    ("reason", "change"), [(why, each) for why, found in CHANGES.items() for each in found]
)
def test_changed_evidence_is_rejected(
    reason: str, change: Callable[[Signed], dict[str, Any]]
) -> None:
    operator = Operator()
    signed = SigningEngine(operator).measure()
    with pytest.raises(ValueError, match=reason):
        prove(changed(signed, **change(signed)), operator.trusted())


def test_clock_that_was_set_between_the_statements_is_rejected() -> None:
    engine = SigningEngine()
    before = engine.ask()
    engine.decode(1, 1)
    engine.now_s += 100
    with pytest.raises(ValueError, match="the clock was set"):
        prove(engine.signed(before, engine.ask(since=1)), {})


def test_digest_that_changed_is_rejected_and_one_that_came_late_is_not() -> None:
    engine = SigningEngine()
    engine.digests["weights"]["sha256"] = None
    before = engine.ask()
    engine.digests["weights"]["sha256"] = "a" * 64
    engine.decode(1, 1)
    first = engine.ask(since=1)
    prove(engine.signed(before, first), {})
    engine.digests["weights"]["sha256"] = "b" * 64
    engine.decode(1, 1)
    with pytest.raises(ValueError, match="the digest of the weights changed"):
        prove(engine.signed(first, engine.ask(since=2)), {})


def test_forger_cannot_sign_for_an_engine_nor_use_a_certificate() -> None:
    operator, forger = Operator(), Ed25519PrivateKey.generate()
    signed, trusted = SigningEngine(operator).measure(), operator.trusted()
    with pytest.raises(ValueError, match="the certificate is of another key"):
        prove(changed(SigningEngine().measure(), certificate=signed.certificate), trusted)
    theirs = resigned(signed.after, lambda content: None, forger)
    with pytest.raises(ValueError, match="the statement after is signed by the key"):
        prove(changed(signed, after=theirs), trusted)
    theirs["signatures"][0]["keyid"] = signed.after["signatures"][0]["keyid"]
    with pytest.raises(ValueError, match="the signature does not match"):
        prove(changed(signed, after=theirs), trusted)
    own, other = signed.certificate, SigningEngine(Operator()).measure()
    assert own is not None
    assert other.certificate is not None
    borrowed = {**other.certificate, "signatures": own["signatures"]}
    with pytest.raises(ValueError, match="the certificate: the signature does not match"):
        prove(changed(other, certificate=borrowed), trusted)


def test_restarted_engine_has_another_epoch() -> None:
    operator = Operator()
    engine = SigningEngine(operator)
    signed = engine.measure()

    def another(content: dict[str, Any]) -> None:
        content["epoch"] = content["state"]["epoch"] = "e2"

    after = resigned(signed.after, another, engine.private)
    with pytest.raises(ValueError, match="the certificate is of another epoch"):
        prove(changed(signed, after=after), operator.trusted())
    with pytest.raises(ValueError, match="of two epochs"):
        prove(changed(signed, after=after), {})


@pytest.mark.parametrize(
    ("waited_days", "key", "reason"),
    [
        (CERTIFICATE_DAYS + 1, {}, "the certificate was not valid at the time"),
        # A key that is retired while the engine runs vouches no longer.
        (3, {"days": 2}, "the key lab was not valid at the time of the statements"),
        (0, {"from_s": BEGIN_S - 2 * DAY_S, "days": 1}, "issued when the key lab was not valid"),
        (0, {"from_s": BEGIN_S + 1}, "issued when the key lab was not valid"),
    ],
)
def test_key_vouches_only_while_it_and_its_certificate_are_valid(
    waited_days: float, key: dict[str, float], reason: str
) -> None:
    operator = Operator()
    engine = SigningEngine(operator)
    engine.wait(waited_days * DAY_S)
    with pytest.raises(ValueError, match=reason):
        prove(engine.measure(), operator.trusted(**key))
    certified = SigningEngine(operator).measure()
    assert prove(certified, operator.trusted(days=2)).signer == "lab", "before it was retired"


def test_statement_contains_no_id_of_a_client() -> None:
    signed = SigningEngine().measure()
    assert "secret" not in str(content_of(signed.after)) + str(signed.leaves)


BEGIN = datetime(2026, 11, 22, 12, tzinfo=UTC)
END = BEGIN + timedelta(days=365)


def entry(**changes: object) -> str:
    made = yaml.safe_load(entry_of("lab", Operator().public, BEGIN, END))[0] | changes
    return yaml.safe_dump([{name: each for name, each in made.items() if each is not None}])


def test_entries_are_read_as_they_are_written() -> None:
    first, second = Operator(), Operator()
    text = entry_of("lab", first.public, BEGIN, END) + entry_of("old", second.public, BEGIN, END)
    found = parse_trusted(text)
    assert list(found) == [key_id(first.public), key_id(second.public)]
    key = found[key_id(first.public)]
    assert (key.name, key.public) == ("lab", first.public)
    assert (key.not_before, key.not_after) == (BEGIN, END)
    around = [at.timestamp() + by for at in (BEGIN, END) for by in (-1, 0, 1)]
    assert [key.is_valid_at(at_s) for at_s in around] == [False, True, True, True, True, False]


def test_time_may_be_written_without_quotes() -> None:
    text = entry().replace("'", "")
    assert next(iter(parse_trusted(text).values())).not_before == BEGIN


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must be keys, as `orch key --evidence` prints them: .* should be a valid list"),
        ("[]", "should have at least 1 item"),
        ("a: [b", "^is not valid YAML: while parsing a flow sequence .* got '<stream end>' .*$"),
        ("- 5", "0 is 5: must be an object"),
        (entry(name=None), "0.name is missing"),
        (entry(public="x"), "0.public is 'x': Extra inputs"),
        (entry(public_key="%%"), "public_key: it must be standard base64"),
        (entry(public_key="YWJj"), "must be the SHA-256 of a public key of 32 bytes"),
        (entry(id="sha256:0"), "id is sha256:0: it must be the SHA-256"),
        (entry(not_before="2026-11-22T12:00:00"), "0.not_before is .*: Input should have timezone"),
        (entry(not_after="2026-11-22T12:00:00Z"), "not_after must be after not_before"),
    ],
)
def test_invalid_file_is_refused_with_the_rule(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_trusted(text)


def test_key_that_occurs_twice_is_refused() -> None:
    text = entry()
    with pytest.raises(ValueError, match="occurs twice: change the validity"):
        parse_trusted(text + text)

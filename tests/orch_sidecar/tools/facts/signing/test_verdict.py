"""What the evidence of a row is worth, and every way to get a row past it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orch_sidecar.tools.facts.commands.tables import beside
from orch_sidecar.tools.facts.labels import intervals
from orch_sidecar.tools.facts.labels.thresholds import SHARED_STEPS
from orch_sidecar.tools.facts.signing.files import (
    Signed,
    TrustedKeys,
    digest,
    evidence_of,
    named_by,
    parse_trusted,
)
from orch_sidecar.tools.facts.signing.recompute import client_measured
from orch_sidecar.tools.facts.signing.verdict import Verdict, Verified, Verifier
from orch_sidecar.tools.facts.tables.files import read
from orch_sidecar.tools.facts.tables.notes import ALWAYS_REPORTED, SETTING_NAMES
from orch_sidecar.tools.facts.tables.row import Row, format_notes, parse_notes
from orch_sidecar.tools.facts.tables.table import LocatedRow, check, row_fields, valid_rows
from tests.fuzz import examples
from tests.orch_sidecar.tools.facts.rows import table
from tests.orch_sidecar.tools.facts.signing.signed import (
    CLIENTS,
    LOADED,
    NONCE,
    RUN,
    Operator,
    SigningEngine,
    evidence_and_row,
    result_of,
    row_of,
    verified,
)

# What engines of earlier releases did not report.
SETTINGS = [
    each for each in SETTING_NAMES if each not in (*ALWAYS_REPORTED, "data_parallel", "loaded")
]


def located(*rows: Row) -> list[LocatedRow]:
    """The rows of a table; one that `check` refuses is a mistake of the test."""
    made = table(*map(row_fields, rows))
    assert check(made) == []
    return valid_rows(made)


def verdicts(
    rows: list[LocatedRow], contents: Mapping[str, bytes], trusted: TrustedKeys
) -> list[Verified]:
    return list(Verifier(contents.get, trusted).rows(rows).values())


def verdict_of(signed: Signed, row: Row, trusted: TrustedKeys) -> Verified:
    """The verdict on a row with evidence that states this row."""
    content, named = evidence_of(signed, row, result_of(row))
    [found] = verdicts(located(named), {digest(content): content}, trusted)
    return found


def expect(found: Verified, verdict: Verdict, reason: str = "") -> None:
    assert (found.verdict, reason in "; ".join(found.reasons)) == (verdict, True), found.reasons


@pytest.fixture
def operator() -> Operator:
    return Operator()


def test_row_of_a_signed_run_is_verified_with_what_was_recomputed(operator: Operator) -> None:
    found = verdict_of(SigningEngine(operator).measure(), row_of(), operator.trusted())
    assert (found.verdict, found.signer, found.reasons) == (Verdict.VERIFIED, "lab", ())
    assert found.proof is not None
    assert found.proof.totals.tokens_per_s == pytest.approx(300, rel=1e-4)
    batches = found.proof.states.batches
    assert (batches.mean, batches.largest) == (3.0, 3)
    assert (len(found.proof.leaves), found.proof.totals.output_tokens) == (3, 18)
    assert client_measured(row_of()) == CLIENTS


def test_recorded_run_whose_requests_decode_beside_prompts_is_verified() -> None:
    """Three clients, prompts of 1200 tokens and answers of 4: while one of them decodes, the engine
    mostly reads the prompts of the others. Of `orch bench` on a tiny model."""
    folder = Path(__file__).parent / "recorded"
    trusted = parse_trusted((folder / "trusted.yaml").read_text(encoding="utf-8"))
    [row] = valid_rows(read(folder / "beside_prompts.csv"))
    found = Verifier(beside(folder / "beside_prompts.csv"), trusted).row(row.row)
    assert (found.verdict, found.signer, found.reasons) == (Verdict.VERIFIED, "lab", ())
    assert found.proof is not None
    requests = found.proof.requests
    assert intervals.share_together([each.earliest.generation for each in requests]) < SHARED_STEPS
    together = intervals.share_together([each.running for each in requests])
    assert together == pytest.approx(0.857, abs=1e-3)


def test_run_between_two_pairs_of_statements_makes_one_row(operator: Operator) -> None:
    engine, nonce, run = SigningEngine(operator), "f" * 64, RUN.replace("abc123", "abc124")
    before, before_too = engine.ask(), engine.ask(nonce=nonce, run=run)
    engine.wait(0.02)
    engine.decode(3, 6)
    engine.wait(0.02)
    after, after_too = engine.ask(since=1), engine.ask(since=2, nonce=nonce, run=run)
    first, row = evidence_of(engine.signed(before, after), row_of(), result_of(row_of()))
    second, row_too = evidence_of(
        engine.signed(before_too, after_too, nonce, run), row_of(run=run), result_of(row_of())
    )
    contents = {digest(each): each for each in (first, second)}
    found, again = verdicts(located(row, row_too), contents, operator.trusted())
    assert found.verdict is Verdict.VERIFIED
    expect(again, Verdict.FAILED, "it has the engine's sequences of")


def test_row_of_a_model_of_which_no_digest_is_known_is_unverified(operator: Operator) -> None:
    engine = SigningEngine(operator)
    engine.digests["weights"]["sha256"] = None
    found = verdict_of(engine.measure(), row_of(), operator.trusted())
    expect(found, Verdict.UNVERIFIED, "no digest of its weights")
    older = SigningEngine(operator, loaded="unknown")
    row = row_of()
    row = replace(row, scenario_notes=row.scenario_notes.replace(f" loaded={LOADED};", ""))
    found = verdict_of(older.measure(), row, operator.trusted())
    expect(found, Verdict.UNVERIFIED, "no digest of the model that it loaded")


@pytest.mark.parametrize(
    ("name", "signed", "noted"),
    [
        ("loaded", "1" * 16, LOADED),  # one layer of four, said to be the whole model
        ("loaded", f"dummy:{LOADED}", LOADED),  # dummy weights, said to be real ones
        ("loaded", "unknown", LOADED),  # a claim of which the engine knows nothing
        ("max_num_batched_tokens", 512, 8192),
        ("execution", "eager", "vllm_compile+full_and_piecewise"),
    ],
)
def test_row_of_another_engine_than_was_signed_fails(
    operator: Operator, name: str, signed: Any, noted: Any
) -> None:
    engine = SigningEngine(operator, **{name: signed})
    found = verdict_of(engine.measure(), row_of(notes={name: noted}), operator.trusted())
    expect(found, Verdict.FAILED, f"the note {name} is {noted}")


def test_settings_that_an_older_engine_does_not_sign_are_no_notes(operator: Operator) -> None:
    class OlderEngine(SigningEngine):
        def _document(self, at_s: float) -> dict[str, Any]:
            found = super()._document(at_s)
            for name in SETTINGS:
                del found["conditions"][name]
            return found

    row, trusted = row_of(), operator.trusted()
    notes = parse_notes(row.scenario_notes)
    plain = format_notes({name: notes[name] for name in notes if name not in SETTINGS})
    measured = OlderEngine(operator).measure()
    expect(verdict_of(measured, replace(row, scenario_notes=plain), trusted), Verdict.VERIFIED)
    expect(verdict_of(measured, row, trusted), Verdict.FAILED, "the evidence gives absent")


def test_rows_without_evidence_are_unverified_and_those_of_traces_not_fresh() -> None:
    found = verdicts(located(row_of()), {}, {})
    assert [each.verdict for each in found] == [Verdict.UNVERIFIED]
    for tag in ("jaeger:orch-sidecar run-1", "otlp:traces.jsonl run-1"):
        found = verdicts(located(row_of(source_tag=tag, notes={"tool": None})), {}, {})
        assert [each.verdict for each in found] == [Verdict.NOT_FRESH]


def test_row_whose_evidence_is_missing_or_has_another_name_fails(operator: Operator) -> None:
    content, row = evidence_and_row(SigningEngine(operator).measure())
    [found] = verdicts(located(row), {}, operator.trusted())
    expect(found, Verdict.FAILED, "is not beside the table")
    [found] = verdicts(located(row), {digest(content): content + b"\n"}, operator.trusted())
    expect(found, Verdict.FAILED, "the SHA-256 of the file is")


def test_evidence_that_two_readers_read_differently_fails(operator: Operator) -> None:
    content, _ = evidence_and_row(SigningEngine(operator).measure())
    twice = content.replace(b'"result":{', b'"result":{"id":"another",')
    found = verified(twice, operator.trusted())
    expect(found, Verdict.FAILED, "the file: 'id' is there twice in one object")


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        ({"model_id": "llama"}, ", the evidence gives "),
        ({"throughput_tokens_per_sec": 295.0}, ", the evidence gives "),
        ({"source_tag": "orch-bench:another"}, ", the evidence gives "),
        ({"notes": {"ttft_p50_ms": 1.5}}, ", the evidence gives "),
        ({"notes": {"cooled": "absent"}}, "it is written otherwise"),
    ],
)
def test_row_that_was_edited_in_the_table_fails(
    operator: Operator, edit: dict[str, Any], reason: str
) -> None:
    """With the evidence of the row as it was."""
    content, row = evidence_and_row(SigningEngine(operator).measure())
    name = digest(content)
    edited = row_of(**edit)
    edited = replace(edited, scenario_notes=f"{edited.scenario_notes}; evidence=sha256:{name}")
    assert edited != row
    [found] = verdicts(located(edited), {name: content}, operator.trusted())
    expect(found, Verdict.FAILED, reason)


def test_evidence_of_one_run_makes_one_row(operator: Operator) -> None:
    signed = SigningEngine(operator).measure()
    made = [
        evidence_of(signed, row_of(), result_of(row_of())),
        evidence_of(signed, row_of(), result_of(row_of()) | {"again": True}),
    ]
    rows = valid_rows(table(*(row_fields(row) for _, row in made)))
    contents = {digest(content): content for content, _ in made}
    found = verdicts(rows, contents, operator.trusted())
    assert [each.verdict for each in found] == [Verdict.VERIFIED, Verdict.FAILED]
    assert "one run makes one row" in found[1].reasons[0]


@pytest.mark.hypothesis  # a fifth of the bytes in `make test`
def test_every_changed_byte_of_the_file_is_noticed(operator: Operator) -> None:
    """Also when the file is renamed after its new bytes: only what the client stated of itself,
    and no column or note of the row, could be changed so."""
    content, row = evidence_and_row(SigningEngine(operator).measure(batch=3))
    trusted, without = operator.trusted(), named_by(located(row)[0].row)[0]
    assert verified(content, trusted, without).verdict is Verdict.VERIFIED
    unsigned = content.index(b'"result":') + len(b'"result":')
    passed = []
    for index in range(0, len(content), 100 // examples(100)):
        changed = bytearray(content)
        changed[index] ^= 1
        by_old_name = verified(bytes(changed), trusted, without, digest(content))
        assert by_old_name.verdict is Verdict.FAILED
        renamed = verified(bytes(changed), trusted, without)
        if renamed.verdict is Verdict.VERIFIED:
            passed.append(index)
    assert [index for index in passed if index < unsigned] == []


def test_evidence_alone_is_verified_by_its_name(operator: Operator) -> None:
    content, _ = evidence_and_row(SigningEngine(operator).measure())
    found = verified(content, operator.trusted())
    assert (found.verdict, found.proof and found.proof.before.nonce) == (Verdict.VERIFIED, NONCE)
    assert (
        Verifier(lambda _: content, operator.trusted()).evidence("evidence").verdict
        is Verdict.FAILED
    )
    version = b'{"schema_version":"orch.evidence/2"}'
    for broken in (b"", b"{}", b"[]", b"\xff", content[:-3], version):
        assert verified(broken, {}).verdict is Verdict.FAILED

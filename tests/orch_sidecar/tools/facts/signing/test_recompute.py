"""Rows that do not follow from what an engine signed, whatever their evidence claims."""

from __future__ import annotations

from typing import Any

import pytest

from orch_sidecar.tools.facts.signing.evidence_file import digest
from orch_sidecar.tools.facts.signing.proof import prove
from orch_sidecar.tools.facts.signing.recompute import client_measured, contradictions, recompute
from orch_sidecar.tools.facts.signing.verdict import Verdict, verify_evidence
from orch_sidecar.tools.facts.tables.row import Label
from tests.orch_sidecar.tools.facts.signing.signed import (
    Operator,
    SigningEngine,
    content_of,
    evidence_and_row,
    resigned,
    row_of,
)
from vllm_plugin.contracts.statement import next_head, parse_leaf

FORGERIES: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("twice the throughput", {"throughput_tokens_per_sec": 580.0}, "throughput is 580"),
    ("a hundredth of it", {"throughput_tokens_per_sec": 2.9}, "throughput is 2.9"),
    ("3 % more", {"throughput_tokens_per_sec": 309.5}, "throughput is 309.5"),
    ("another batch", {"batch": 2}, "batch is 2, by the engine's steps 3"),
    ("another mean", {"notes": {"batch_mean": 2.5}}, "batch_mean is 2.5"),
    ("another peak", {"batch": 3, "notes": {"batch_max": 8}}, "batch_max is 8"),
    ("another GPU", {"gpu": "NVIDIA B200"}, "gpu is 'NVIDIA B200', the engine signed"),
    ("more GPUs", {"gpu_count": 8}, "gpu_count is 8, the engine signed 2"),
    ("another precision", {"precision": "FP8"}, "precision is 'FP8'"),
    ("another engine", {"engine": "vLLM 0.33.0"}, "engine is 'vLLM 0.33.0'"),
    ("another model", {"model_id": "llama"}, "the model 'llama' is not one"),
    (
        "another model behind a name that is served",
        {"model_id": "meta/llama-405b", "model_name": "llama-405b", "notes": {"served_as": "tiny"}},
        "model_id is 'meta/llama-405b': the engine serves tiny, alias",
    ),
    ("another display name", {"model_name": "Llama 405B"}, "the note given must name it"),
    ("another name served", {"notes": {"served_as": "llama"}}, "the model 'llama' is not one"),
    ("another profile", {"notes": {"profile": "offline"}}, "the note profile is offline"),
    ("speculative", {"notes": {"speculative": "medusa:5"}}, "speculative is medusa:5, the"),
    ("as one of eight ranks", {"notes": {"data_parallel": 8}}, "data_parallel is 8, the engine"),
    ("cached", {"notes": {"prefix_hit_ratio": 0.5}}, "prefix_hit_ratio is 0.5, by the engine"),
    ("another run", {"source_tag": "orch-bench:another"}, "source_tag is"),
    ("another tool", {"source_tag": "otlp:a.jsonl"}, "source_tag is"),
    ("as offline", {"measurement_type": Label.OFFLINE}, "cannot be offline"),
    ("more requests", {"notes": {"requests": 4}}, "4 requests were answered"),
    ("fewer requests", {"notes": {"requests": 2}}, "the engine served other clients, too"),
    ("shorter", {"notes": {"window_s": 0.03}}, "window_s is 0.03, by the engine 0.0"),
    ("longer", {"notes": {"window_s": 0.2}}, "the statements are 0.1 s apart"),
    (
        "longer answers",
        {"output_tokens": 7, "notes": {"output_tokens": 7}},
        "output_tokens is 7, by the engine 6",
    ),
    (
        "longer prompts",
        {"input_tokens": 30, "notes": {"input_tokens": 30}},
        "input_tokens is 30, by the engine 20",
    ),
)


@pytest.mark.parametrize(
    ("change", "reason"), [each[1:] for each in FORGERIES], ids=[each[0] for each in FORGERIES]
)
def test_row_that_does_not_follow_from_what_was_signed_is_contradicted(
    change: dict[str, Any], reason: str
) -> None:
    operator, row = Operator(), row_of(**change)
    signed = SigningEngine(operator).measure()
    proof = prove(signed, operator.trusted())
    assert reason in "; ".join(contradictions(row, proof, recompute(proof)))
    content, _ = evidence_and_row(signed, row)  # made anew for this row
    verdict = verify_evidence(digest(content), content, operator.trusted())
    assert verdict.verdict is Verdict.FAILED


def test_row_of_the_run_is_not_contradicted_and_its_latencies_are_the_clients() -> None:
    proof, row = prove(SigningEngine().measure(), {}), row_of()
    assert contradictions(row, proof, recompute(proof)) == []
    assert client_measured(row) == ["ttft_p50_ms"]


@pytest.mark.parametrize("prompts", [1, 4])
def test_requests_one_after_the_other_are_no_batch_however_many_sequences_they_have(
    prompts: int,
) -> None:
    engine = SigningEngine()
    before = engine.ask()
    for _ in range(3):
        engine.decode(4, 6, of_one_request=True, prompts=prompts)
    proof = prove(engine.signed(before, engine.ask(since=1)), {})
    found = contradictions(row_of(), proof, recompute(proof))
    assert "the requests came one by one" in "; ".join(found)


def test_prompts_of_one_request_are_no_batch_of_several() -> None:
    engine = SigningEngine()
    before = engine.ask()
    for _ in range(3):
        engine.decode(4, 6, of_one_request=True, prompts=4)
    proof = prove(engine.signed(before, engine.ask(since=1)), {})
    found = contradictions(row_of(), proof, recompute(proof))
    assert "the requests came one by one" in "; ".join(found)


@pytest.mark.parametrize(
    ("name", "tokens", "reason"),
    [
        ("input_tokens", 8192, "input_tokens is 8192, of 199 requests of the engine it was 20"),
        ("input_tokens", 2, "input_tokens is 2, of 199 requests of the engine it was 20"),
        ("output_tokens", 5, "output_tokens is 5, of 199 requests of the engine it was 6"),
    ],
)
def test_failed_request_allows_no_other_lengths(name: str, tokens: int, reason: str) -> None:
    proof = prove(SigningEngine().measure(batch=200), {})
    ran: dict[str, Any] = {"requests": 199, "failed": 1}
    changed: dict[str, Any] = {name: tokens}
    honest = row_of(batch=200, throughput_tokens_per_sec=19258.1, notes=ran)
    assert contradictions(honest, proof, recompute(proof)) == []
    row = row_of(batch=200, throughput_tokens_per_sec=19258.1, **changed, notes=ran)
    assert reason in "; ".join(contradictions(row, proof, recompute(proof)))


def test_requests_of_others_are_no_failed_ones() -> None:
    """The engine aborts a request that fails, which then is no finished sequence."""
    proof = prove(SigningEngine().measure(batch=6), {})
    ran: dict[str, Any] = {"requests": 3, "failed": 3}
    row = row_of(batch=6, throughput_tokens_per_sec=290.323, notes=ran)
    assert contradictions(row, proof, recompute(proof)) == [
        "3 requests of 6 generated tokens are fewer than the 36 of the engine's finished "
        "sequences: it served others, too"
    ]


@pytest.mark.parametrize("claimed", [10, 40])
def test_prompts_of_requests_with_several_sequences_are_those_of_the_engine(claimed: int) -> None:
    engine = SigningEngine()
    before = engine.ask()
    for _ in range(3):
        engine.decode(2, 6, of_one_request=True)
    proof = prove(engine.signed(before, engine.ask(since=1)), {})
    notes = {"input_tokens": claimed, "output_tokens": 12}
    row = row_of(input_tokens=claimed, output_tokens=12, notes=notes)
    found = "; ".join(contradictions(row, proof, recompute(proof)))
    assert f"input_tokens is {claimed}, by the engine 20" in found
    assert "output_tokens is" not in found


def test_requests_of_one_id_prove_no_lengths() -> None:
    engine = SigningEngine()
    signed = engine.measure()
    lines = [parse_leaf(line)._replace(request="0" * 16).line for line in signed.leaves]
    before = content_of(signed.before)["finished"]
    head = bytes.fromhex(before["head"])
    for line in lines:
        head = next_head(head, line.encode())

    def of_one_id(content: dict[str, Any]) -> None:
        content["finished"]["head"] = head.hex()

    after = resigned(signed.after, of_one_id, engine.private)
    proof = prove(signed.model_copy(update={"leaves": lines, "after": after}), {})
    row = row_of(input_tokens=1, notes={"input_tokens": 1})
    found = "; ".join(contradictions(row, proof, recompute(proof)))
    assert "3 requests were answered, the engine's finished sequences are of 1" in found


def test_note_that_is_no_number_is_a_contradiction() -> None:
    proof = prove(SigningEngine().measure(), {})
    row = row_of(notes={"requests": "many"})
    assert "a note is not a number" in contradictions(row, proof, recompute(proof))[0]

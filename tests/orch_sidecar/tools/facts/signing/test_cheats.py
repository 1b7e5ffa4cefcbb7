"""Cheats with the honest evidence of an engine: each is a line, and runs through check and verify.

The evidence is made anew for the row, as a cheat can. A row is what its evidence gives, so that it
does not matter what a note means: one that is another is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from orch_sidecar.tools.facts.labels.recorded import RecordedRun
from orch_sidecar.tools.facts.signing.evidence_file import digest, evidence_of
from orch_sidecar.tools.facts.signing.proof import prove
from orch_sidecar.tools.facts.signing.recompute import contradictions, recompute
from orch_sidecar.tools.facts.signing.verdict import Verdict, verify_evidence
from orch_sidecar.tools.facts.tables.check import invalid_fields
from orch_sidecar.tools.facts.tables.row import Label
from tests.orch_sidecar.tools.facts.signing.signed import (
    Operator,
    SigningEngine,
    content_of,
    resigned,
    result_of,
    row_of,
)
from vllm_plugin.contracts.statement import next_head, parse_leaf

GIVES = "the evidence gives"


class Cheat(NamedTuple):
    """`row`: the columns and notes that are changed. `result`: the fields of the client's result.
    `follows`: the result is made of the changed row, and not of the run. `checked`: `orch facts
    check` refuses the row by itself, too."""

    name: str
    reason: str
    row: Mapping[str, Any] = MappingProxyType({})
    result: Mapping[str, Any] = MappingProxyType({})
    follows: bool = False
    checked: bool = False


def noted(name: str, *, checked: bool = False, **notes: Any) -> Cheat:
    """A row of which notes were edited; the result is honest."""
    [note, *_] = notes
    return Cheat(name, f"the note {note} is", {"notes": notes}, checked=checked)


def lengths(**tokens: int) -> dict[str, Any]:
    return {**tokens, "notes": tokens}


def call(**changes: Any) -> list[Any]:
    names = ("due_s", "sent_s", "first_s", "ended_s", "status", "fate", "why", "input", "output")
    honest = (None, 0.0, 0.0115, 0.062, 200, "answered", "", 20, 6)
    values = (changes.get(name, value) for name, value in zip(names, honest, strict=True))
    return [*values, None, None]


def calls(**changes: Any) -> dict[str, Any]:
    return {"calls": [call(**changes)] * 3}


def scenario(**changes: Any) -> dict[str, Any]:
    return {"scenario": result_of(row_of())["scenario"] | changes}


CHEATS = (
    Cheat(
        "twice the throughput",
        "throughput is 580",
        {"throughput_tokens_per_sec": 580.0},
        checked=True,
    ),
    Cheat("3 % more", "throughput is 299.1", {"throughput_tokens_per_sec": 299.1}),
    Cheat("another batch", "batch is 2", {"batch": 2}, checked=True),
    Cheat("another GPU", f"gpu is 'NVIDIA B200', {GIVES}", {"gpu": "NVIDIA B200"}, follows=True),
    Cheat("more GPUs", f"gpu_count is 8, {GIVES} 2", {"gpu_count": 8}, follows=True),
    Cheat("another precision", "precision is 'FP8'", {"precision": "FP8"}, checked=True),
    Cheat("another engine", "engine is 'vLLM 0.33.0'", {"engine": "vLLM 0.33.0"}, follows=True),
    Cheat(
        "another model",
        "the model 'llama' is not one that the engine served",
        {"model_id": "llama", "model_name": "llama"},
        follows=True,
    ),
    Cheat(
        "another model behind a name that is served",
        "model_id is 'meta/llama-405b': the engine serves tiny, alias",
        {"model_id": "meta/llama-405b", "model_name": "llama-405b", "notes": {"served_as": "tiny"}},
        follows=True,
    ),
    Cheat(
        "another display name",
        f"the note given is absent, {GIVES} model_name",
        {"model_name": "Llama 405B"},
        follows=True,
    ),
    Cheat(
        "another run",
        "source_tag is",
        {"source_tag": "orch-bench:20260921T133320Z-batched_online-abc124"},
        follows=True,
    ),
    Cheat("another tool", "source_tag is 'otlp:a'", {"source_tag": "otlp:a"}, checked=True),
    Cheat("as offline", "cannot be offline", {"measurement_type": Label.OFFLINE}, checked=True),
    noted("another mean", batch_mean=2.9),
    noted("another peak", batch_max=8),
    noted("another profile", profile="mine"),
    noted("speculative", speculative="medusa:5"),
    noted("as one of eight ranks", data_parallel=8),
    noted("another model than was loaded", loaded="f" * 16),
    noted("cached", prefix_hit_ratio=0.5),
    noted("more requests", requests=4, checked=True),
    noted("shorter", window_s=0.06, checked=True),
    noted("a tenth of TTFT", ttft_p50_ms=1.15),
    noted("a tenth of the latency", latency_p50_ms=6.2, checked=True),
    noted("a tenth of TPOT", tpot_p50_ms=1.01),
    noted("a percentile that is not there", latency_p99_ms=62),
    noted("failures", failed=2),
    noted("refusals that are not noted", refused=1),
    noted("other arrivals", arrivals="poisson"),
    noted("a trace", arrivals="trace:0123456789abcdef"),
    noted("another limit", at_once=8),
    noted("a class", latency_of="interactive"),
    noted("a bottleneck", client_bottleneck="yes"),
    noted("another name", served_as="alias"),
    noted("a note of its own", cooled="water"),
    Cheat("goodput without an SLO", "there was no SLO", {"notes": {"goodput_share": 0.99}}),
    Cheat(
        "goodput",
        f"goodput_share is 0.99, {GIVES} 0",
        {"notes": {"goodput_share": 0.99}},
        scenario(slo_ms={"ttft": 20.0, "latency": 61.0}),
    ),
    Cheat(
        "goodput that is not noted",
        f"goodput_share is absent, {GIVES} 1",
        result=scenario(slo_ms={"ttft": 20.0}),
    ),
    Cheat(
        "a wider SLO",
        f"slo_ttft_ms is 500, {GIVES} 20",
        {"notes": {"goodput_share": 1.0, "slo_ttft_ms": 500}},
        scenario(slo_ms={"ttft": 20.0}),
    ),
    Cheat(
        "a bottleneck that is not noted",
        "client_bottleneck is absent",
        result={"client": {"bottleneck": ["it used 97 % of one core"]}},
    ),
    Cheat("longer answers", "3 more answers of 20 prompt and 7", lengths(output_tokens=7),
          follows=True, checked=True),
    Cheat("longer prompts", "3 more answers of 30 prompt and 6", lengths(input_tokens=30),
          follows=True),
    Cheat("fewer answers", "it served others, too", {"notes": {"requests": 2}}, follows=True,
          checked=True),
    Cheat("more answers", "4 requests were answered, but the engine accepted 3",
          {"notes": {"requests": 4}}, follows=True, checked=True),
    Cheat("a schedule", "arrivals is closed_loop, the client's requests had a schedule",
          result=calls(due_s=0.0)),
    Cheat("no schedule", "arrivals is poisson, the client's requests had no schedule",
          result=scenario(arrivals="poisson", rate_per_s=3.0)),
    Cheat("fewer clients", "at_once is 2, 3 requests were in flight at once",
          {"notes": {"at_once": 2}}, scenario(clients=2)),
    Cheat("no requests", "no request was answered", result={"calls": []}),
    Cheat("requests that took no time", "has no length", result=calls(ended_s=0.0, first_s=0.0)),
)  # fmt: skip


@pytest.mark.parametrize("cheat", CHEATS, ids=[cheat.name for cheat in CHEATS])
def test_row_that_does_not_follow_from_its_evidence_fails(cheat: Cheat) -> None:
    columns = {name: value for name, value in cheat.row.items() if name != "notes"}
    operator, row = Operator(), replace(row_of(notes=cheat.row.get("notes", {})), **columns)
    assert bool(invalid_fields(row)) is cheat.checked
    result = result_of(row if cheat.follows else row_of()) | {**cheat.result}
    signed = SigningEngine(operator).measure()
    proof = prove(signed, operator.trusted())
    found = contradictions(row, RecordedRun.model_validate(result), proof, recompute(proof))
    assert cheat.reason in "; ".join(found)
    content, _ = evidence_of(signed, row, result)
    assert verify_evidence(digest(content), content, operator.trusted()).verdict is Verdict.FAILED


def reasons(engine_or_signed: Any, row: Any, result: dict[str, Any] | None = None) -> list[str]:
    proof = prove(engine_or_signed, {})
    run = RecordedRun.model_validate(result_of(row) if result is None else result)
    return contradictions(row, run, proof, recompute(proof))


def test_row_of_the_run_follows_from_its_evidence() -> None:
    assert reasons(SigningEngine().measure(), row_of()) == []


def test_slow_row_is_rounded_and_an_older_record_has_no_classes() -> None:
    ttft_s, window_s, row = 0.0123456, 0.0611234, row_of(notes={"ttft_p50_ms": 12.346})
    tpot_ms = 1000 * (window_s - ttft_s) / 5
    times = {"ttft": 1000 * ttft_s, "tpot": tpot_ms, "latency": 1000 * window_s}
    ranks = {"ttft": (50, 95), "tpot": (50, 95), "latency": (50, 90, 95)}
    notes = {
        f"{name}_p{at}_ms": round(times[name], 3) for name, all_ in ranks.items() for at in all_
    }
    row = row_of(throughput_tokens_per_sec=294.486, notes=notes | {"window_s": 0.061})
    result = result_of(row) | calls(first_s=ttft_s, ended_s=window_s)
    result["calls"] = [each[:-1] for each in result["calls"]]
    assert reasons(SigningEngine().measure(), row, result) == []


@pytest.mark.parametrize(
    "result", [{}, {"calls": [], "client": {"bottleneck": []}}, {"calls": [[1, 2]]}]
)
def test_evidence_without_the_clients_record_is_none(result: dict[str, Any]) -> None:
    operator = Operator()
    content, _ = evidence_of(SigningEngine(operator).measure(), row_of(), result)
    found = verify_evidence(digest(content), content, operator.trusted())
    assert found.verdict is Verdict.FAILED
    assert "the client's result: " in found.reasons[0]


@pytest.mark.parametrize("prompts", [1, 4])
def test_requests_one_after_the_other_are_no_batch_however_many_sequences_they_have(
    prompts: int,
) -> None:
    engine = SigningEngine()
    before = engine.ask()
    for _ in range(3):
        engine.decode(4, 6, of_one_request=True, prompts=prompts)
    found = reasons(engine.signed(before, engine.ask(since=1)), row_of())
    assert "the requests came one by one" in "; ".join(found)


def test_failed_request_allows_no_other_lengths() -> None:
    signed = SigningEngine().measure(batch=200)
    honest = row_of(batch=200, throughput_tokens_per_sec=19258.1)
    answered = result_of(honest)
    failed = call(ended_s=0.05, first_s=None, fate="failed", output=None)
    result = answered | {"calls": [*answered["calls"][:199], failed]}
    row = row_of(batch=200, throughput_tokens_per_sec=19258.1, notes={"requests": 199, "failed": 1})
    assert reasons(signed, row, result) == []
    for tokens in ({"input": 8192}, {"input": 2}, {"output": 5}):
        forged = result | {"calls": [call(**tokens), *result["calls"][1:]]}
        assert "1 more answers of" in "; ".join(reasons(signed, row, forged))


def test_requests_of_others_are_no_failed_ones() -> None:
    """The engine aborts a request that fails, which then is no finished sequence."""
    row = row_of(notes={"failed": 3})
    failed = [call(fate="failed", output=None)] * 3
    result = result_of(row_of()) | {"calls": [*[call()] * 3, *failed]}
    found = "; ".join(reasons(SigningEngine().measure(batch=6), row, result))
    assert "have 18 generated tokens, the engine's finished sequences 36: it served others" in found


def test_requests_of_one_id_prove_no_lengths() -> None:
    engine = SigningEngine()
    signed = engine.measure()
    lines = [parse_leaf(line)._replace(request="0" * 16).line for line in signed.leaves]
    head = bytes.fromhex(content_of(signed.before)["finished"]["head"])
    for line in lines:
        head = next_head(head, line.encode())

    def of_one_id(content: dict[str, Any]) -> None:
        content["finished"]["head"] = head.hex()

    after = resigned(signed.after, of_one_id, engine.private)
    found = reasons(signed.model_copy(update={"leaves": lines, "after": after}), row_of())
    assert "3 requests were answered, the engine's finished sequences are of 1" in "; ".join(found)


def test_replayed_trace_beside_bulk_work_has_the_latencies_of_interactive_requests() -> None:
    trace = {
        "sha256": "0123456789abcdef" * 4, "window_s": [0.0, None], "time_factor": 1.0,
        "length_factor": 1.0, "bulk_clients": 1,
    }  # fmt: skip
    load = {"arrivals": "trace", "clients": None, "seed": 1, "slo_ms": {}, "trace": trace}
    interactive = [*call(due_s=0.0)[:-1], "interactive"]
    bulk = [*call(first_s=0.05)[:-1], "bulk"]
    result = result_of(row_of()) | {"scenario": load, "calls": [interactive, interactive, bulk]}
    notes = {
        "at_once": None, "arrivals": "trace:0123456789abcdef", "trace_window": "0:",
        "trace_time": 1, "trace_lengths": 1, "bulk_clients": 1, "latency_of": "interactive",
    }  # fmt: skip
    signed = SigningEngine().measure()
    assert reasons(signed, row_of(notes=notes), result) == []
    of_all = "; ".join(reasons(signed, row_of(notes=notes | {"ttft_p95_ms": 46.15}), result))
    assert f"the note ttft_p95_ms is 46.15, {GIVES} 11.5" in of_all

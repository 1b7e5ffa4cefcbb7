"""Whether a row follows from its evidence, and what is matched by counts and times."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orch_sidecar.tools.facts.labels.judge import Reason, judge
from orch_sidecar.tools.facts.labels.recorded import RecordedRun
from orch_sidecar.tools.facts.signing.files import evidence_of
from orch_sidecar.tools.facts.signing.proof import prove
from orch_sidecar.tools.facts.signing.recompute import contradictions, observation_of
from orch_sidecar.tools.facts.signing.verdict import Verdict
from tests.orch_sidecar.tools.facts.cheats.evidence import GIVES, call, calls, scenario
from tests.orch_sidecar.tools.facts.signing.signed import (
    Operator,
    SigningEngine,
    content_of,
    resigned,
    result_of,
    row_of,
    verified,
)
from vllm_plugin.contracts.statement import next_head, parse_leaf


def reasons(engine_or_signed: Any, row: Any, result: dict[str, Any] | None = None) -> list[str]:
    proof = prove(engine_or_signed, {})
    run = RecordedRun.model_validate(result_of(row) if result is None else result)
    return contradictions(row, run, proof)


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
    "result",
    [
        {},
        {"calls": [], "client": {"bottleneck": []}},
        {"calls": [[1, 2]]},
        result_of(row_of()) | {"calls": [call(first_s="nan"), call(), call()]},
        result_of(row_of()) | scenario(slo_ms={"itl": 20.0}),
    ],
    ids=range(5),
)
def test_evidence_without_the_clients_record_is_none(result: dict[str, Any]) -> None:
    operator = Operator()
    content, _ = evidence_of(SigningEngine(operator).measure(), row_of(), result)
    found = verified(content, operator.trusted())
    assert found.verdict is Verdict.FAILED
    assert "the client's result: " in found.reasons[0]


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("requests_total", 0, "the second state is older than the first"),
        ("generated_tokens_total", 99, "the engine generated 92 tokens in the window, but"),
        ("generated_tokens_total", 24, "the engine generated 17 tokens in the window, but"),
        ("slots_total", 9, "the number of slots changed"),
        ("gpu", "another", "what the engine says about itself changed"),
    ],
)
def test_counters_and_configuration_that_do_not_fit_are_contradictions(
    name: str, value: object, reason: str
) -> None:
    """Even if the engine's own key signs them."""
    engine = SigningEngine()
    engine.decode(1, 7)  # of the warm-up
    signed = engine.measure()

    def change(content: dict[str, Any]) -> None:
        content["state"][name] = value

    after = resigned(signed.after, change, engine.private)
    assert reason in "; ".join(reasons(signed.model_copy(update={"after": after}), row_of()))


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


@pytest.mark.parametrize(("queued_s", "prefill_s", "is_batched"), [(0, 9, True), (9, 0, False)])
def test_requests_run_together_while_prompts_are_read_but_not_while_they_are_queued(
    queued_s: float, prefill_s: float, is_batched: bool
) -> None:
    proof, row = prove(SigningEngine().measure(batch=2), {}), row_of(batch=2)
    first, second = proof.leaves
    at_s = first.ended_s
    first = first._replace(arrived_s=at_s - 10, prefill_s=0.1, decode_s=9.9)
    second = second._replace(
        arrived_s=at_s - 9, ended_s=at_s + 1,
        queued_s=queued_s, prefill_s=prefill_s, decode_s=1.0,
    )  # fmt: skip
    run = RecordedRun.model_validate(result_of(row))
    found = observation_of(row.measurement_type, run, replace(proof, leaves=[first, second]))
    assert (Reason.MOSTLY_ALONE in [each.reason for each in judge(found)]) is not is_batched


def test_first_tokens_of_a_part_of_the_answers_are_no_figures() -> None:
    signed, row = SigningEngine().measure(tokens=16), row_of(tokens=16)
    result = result_of(row)
    assert reasons(signed, row, result) == []
    slow = call(first_s=None, ended_s=0.162, output=16)
    result["calls"] = [slow, *result["calls"][1:]]
    assert reasons(signed, row, result) == ["1 of 3 answers have no first token"]


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


def test_others_in_the_engine_in_the_window_and_after_it_are_found() -> None:
    engine = SigningEngine()
    before = engine.ask()
    engine.decode(3, 6)
    engine.decode(1, 2)
    engine.engine_state.enter(None)
    found = "; ".join(reasons(engine.signed(before, engine.ask(since=1)), row_of()))
    assert "sequences in the engine after the measurement: 1 foreign" in found
    assert "the engine served other clients, too" in found


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
    assert "3 more answers of 20 prompt and 6 generated tokens were" in "; ".join(found)


def test_replayed_trace_beside_bulk_work_has_the_latencies_of_interactive_requests() -> None:
    trace = {
        "name": "conv.csv", "requests": 2, "sha256": "0123456789abcdef" * 4,
        "window_s": [0.0, None], "time_factor": 1.0,
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

"""Rows with the honest evidence of an engine, of which something was edited.

The evidence is made anew for the row, as a cheat can. A row is what its evidence gives, so that it
does not matter what a note means: one that is another is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from orch_sidecar.tools.facts.labels.measured import Model, engine_between
from orch_sidecar.tools.facts.labels.measured import row_of as measured_row
from orch_sidecar.tools.facts.labels.recorded import RecordedRun
from orch_sidecar.tools.facts.signing.files import evidence_of
from orch_sidecar.tools.facts.signing.proof import prove
from orch_sidecar.tools.facts.signing.recompute import contradictions
from orch_sidecar.tools.facts.signing.verdict import Verdict
from orch_sidecar.tools.facts.tables.row import Label
from orch_sidecar.tools.facts.tables.table import check, row_fields
from tests.orch_sidecar.tools.facts.cheats import Cheat, Gate
from tests.orch_sidecar.tools.facts.rows import table
from tests.orch_sidecar.tools.facts.signing.signed import (
    RUN,
    Operator,
    SigningEngine,
    result_of,
    row_of,
    verified,
)

GIVES = "the evidence gives"


class Forgery(NamedTuple):
    """`row`: the columns and notes that are changed. `result`: the fields of the client's result.
    `follows`: the result is made of the changed row, and not of the run. `checked`: `orch facts
    check` refuses the row by itself, too."""

    name: str
    reason: str
    row: Mapping[str, Any] = MappingProxyType({})
    result: Mapping[str, Any] = MappingProxyType({})
    follows: bool = False
    checked: bool = False


def noted(name: str, *, checked: bool = False, **notes: Any) -> Forgery:
    """A row of which notes were edited; the result is honest."""
    [note, *_] = notes
    return Forgery(name, f"the note {note} is", {"notes": notes}, checked=checked)


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


TRACE = {
    **{"name": "t", "sha256": 64 * "a", "requests": 3, "window_s": [0.0, None]},
    **{"time_factor": 1.0, "length_factor": 1.0},
}

FORGERIES = (
    Forgery("twice the throughput", "throughput_tokens_per_sec is 580",
            {"throughput_tokens_per_sec": 580.0}, checked=True),
    Forgery("3 % more", "throughput_tokens_per_sec is 299.1", {"throughput_tokens_per_sec": 299.1}),
    Forgery("another batch", "batch is 2", {"batch": 2}, checked=True),
    Forgery("another GPU", f"gpu is NVIDIA B200, {GIVES}", {"gpu": "NVIDIA B200"}, follows=True),
    Forgery("more GPUs", f"gpu_count is 8, {GIVES} 2", {"gpu_count": 8}, follows=True),
    Forgery("another precision", "precision is FP8", {"precision": "FP8"}, checked=True),
    Forgery("another engine", "engine is vLLM 0.33.0", {"engine": "vLLM 0.33.0"}, follows=True),
    Forgery("another model", "the model 'llama' is not one that the engine served",
            {"model_id": "llama", "model_name": "llama"}, follows=True),
    Forgery("another model behind a name that is served",
            "model_id is 'meta/llama-405b': the engine serves tiny, alias",
            {"model_id": "meta/llama-405b", "model_name": "llama-405b",
             "notes": {"served_as": "tiny"}}, follows=True),
    Forgery("another display name", f"the note given is absent, {GIVES} model_name",
            {"model_name": "Llama 405B"}, follows=True),
    Forgery("another run", "source_tag is",
            {"source_tag": "orch-bench:20260921T133320Z-batched_online-abc124"}, follows=True),
    Forgery("another tool", "source_tag is otlp:a", {"source_tag": "otlp:a"}, checked=True),
    Forgery("as offline", "cannot be offline", {"measurement_type": Label.OFFLINE}, checked=True),
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
    Forgery("goodput without an SLO", f"goodput_share is 0.99, {GIVES} absent",
            {"notes": {"goodput_share": 0.99}}),
    Forgery("goodput", f"goodput_share is 0.99, {GIVES} 0", {"notes": {"goodput_share": 0.99}},
            scenario(slo_ms={"ttft": 20.0, "latency": 61.0})),
    Forgery("goodput that is not noted", f"goodput_share is absent, {GIVES} 1",
            result=scenario(slo_ms={"ttft": 20.0})),
    Forgery("a wider SLO", f"slo_ttft_ms is 500, {GIVES} 20",
            {"notes": {"goodput_share": 1.0, "slo_ttft_ms": 500}},
            scenario(slo_ms={"ttft": 20.0})),
    Forgery("a bottleneck that is not noted", "client_bottleneck is absent",
            result={"client": {"bottleneck": ["it used 97 % of one core"]}}),
    Forgery("longer answers", "3 more answers of 20 prompt and 7", lengths(output_tokens=7),
          follows=True, checked=True),
    Forgery("longer prompts", "3 more answers of 30 prompt and 6", lengths(input_tokens=30),
          follows=True),
    Forgery("fewer answers", "it served others, too", {"notes": {"requests": 2}}, follows=True,
          checked=True),
    Forgery("more answers", "4 requests were answered, but the engine accepted 3",
          {"notes": {"requests": 4}}, follows=True, checked=True),
    Forgery("a schedule", "arrivals is closed_loop, the client's requests had a schedule",
          result=calls(due_s=0.0)),
    Forgery("no schedule", "arrivals is poisson, the client's requests had no schedule",
          result=scenario(arrivals="poisson", rate_per_s=3.0)),
    Forgery("fewer clients", "at_once is 2, 3 requests were in flight at once",
          {"notes": {"at_once": 2}}, scenario(clients=2)),
    Forgery("a name that no note can hold", "must be one line without a semicolon",
            result={"engine": result_of(row_of())["engine"] | {"model": "tiny; batch_max=9"}}),
    Forgery("no requests", "no request was answered", result={"calls": []}),
    Forgery("a slow request that is said to be none", "answered, refused or failed, not cut",
            result={"calls": [call(fate="cut", ended_s=9.0), call(), call()]}),
    Forgery("a slow answer of unknown length", "1 answers have no length, or no end",
            result={"calls": [call(output=None, ended_s=9.0), call(), call()]}),
    Forgery("a result of no label", "the client's result is of no label",
            result={"measurement_type": "to_be_confirmed"}),
    Forgery("a loop beside a trace that has none", "at_once is 0, 3 requests were in flight",
            result=scenario(arrivals="trace", trace=TRACE)),
    Forgery("requests that took no time", "has no length", result=calls(ended_s=0.0, first_s=0.0)),
)  # fmt: skip


def said(forgery: Forgery) -> Mapping[Gate, str]:
    columns = {name: value for name, value in forgery.row.items() if name != "notes"}
    operator, row = Operator(), replace(row_of(notes=forgery.row.get("notes", {})), **columns)
    result = result_of(row if forgery.follows else row_of()) | {**forgery.result}
    signed = SigningEngine(operator).measure()
    proof, run = prove(signed, operator.trusted()), RecordedRun.model_validate(result)
    try:
        found = contradictions(row, run, proof)
    except ValueError as error:  # it has no figures
        found = [str(error)]
    content, _ = evidence_of(signed, row, result)
    verdict = verified(content, operator.trusted()).verdict
    return {
        Gate.CHECK: "; ".join(fault.text for fault in check(table(row_fields(row)))),
        Gate.VERIFY: "; ".join(found) if verdict is Verdict.FAILED else "",
    }


def said_of_a_loop() -> Mapping[Gate, str]:
    """A closed loop that states a Poisson process of its rate: nothing else of it is false."""
    operator, turn_s = Operator(), 0.064
    engine = SigningEngine(operator)
    before = engine.ask()
    for _ in range(20):
        engine.decode(2, 6)
        engine.wait(turn_s - 0.06)
    signed = engine.signed(before, engine.ask(since=1))
    starts = [turn_s * (number // 2) for number in range(40)]
    rows = [call(due_s=s, sent_s=s, first_s=s + 0.0115, ended_s=s + 0.062) for s in starts]
    load = {"arrivals": "poisson", "rate_per_s": 39 / starts[-1], "clients": None}
    result = result_of(row_of()) | scenario(**load) | {"calls": rows}
    proof, run = prove(signed, operator.trusted()), RecordedRun.model_validate(result)
    model = Model(run.model_id, run.model_name, ())
    engine_seen, tag = engine_between(proof.states), f"orch-bench:{RUN}"
    row = measured_row(run.run, Label.BATCHED_ONLINE, engine_seen, model, tag)
    found = verified(evidence_of(signed, row, result)[0], operator.trusted())
    return {Gate.VERIFY: "; ".join(found.reasons) or found.verdict}


CHEATS = [
    *(
        Cheat(
            each.name,
            {Gate.VERIFY: each.reason, **({Gate.CHECK: ""} if each.checked else {})},
            partial(said, each),
        )
        for each in FORGERIES
    ),
    Cheat(
        "a closed loop as a Poisson process",
        {Gate.VERIFY: "arrivals is poisson, 38 requests came as answers ended, by chance 1.22"},
        said_of_a_loop,
    ),
]

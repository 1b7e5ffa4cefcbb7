"""Converting runs of other tools to rows, with and without the state of the engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orch_sidecar.tools.facts.evidence.imported import read_run, to_row
from orch_sidecar.tools.facts.labels.load import Load
from orch_sidecar.tools.facts.labels.measured import Engine, Run, Source
from orch_sidecar.tools.facts.labels.observation import States
from orch_sidecar.tools.facts.tables.notes import ALWAYS_REPORTED, Arrivals
from orch_sidecar.tools.facts.tables.row import Label, Row, parse_notes
from tests.orch_sidecar.tools.facts.imports import measured, proof

GIVEN = Engine(engine="vLLM 0.32.0", precision="BF16", gpu="H100", gpu_count=1)
SOURCE = Source("run-1")
RUNS = ("vllm_bench_home", "guidellm_home", "vllm_bench_cloud", "guidellm_cloud")


_SUMS = ("requests", "input_tokens", "output_tokens")


def run(name: str, **changes: Any) -> Run:
    found = measured(name)
    sums = {name: changes.pop(name) for name in _SUMS if name in changes}
    return replace(found, totals=replace(found.totals, **sums), **changes)


def by(arrivals: Arrivals, clients: int | None = None) -> Load:
    return Load(arrivals=arrivals, clients=clients)


def row(measured: Run, known: States | Engine, source: Source = SOURCE) -> Row:
    return to_row(measured, known, source)


def refused(measured: Run, known: States | Engine, source: Source = SOURCE) -> str:
    found = read_run("", lambda: to_row(measured, known, source))
    assert isinstance(found, str), found
    return found.removeprefix(": ")


@pytest.mark.parametrize("name", RUNS)
def test_run_earns_its_label_by_what_the_engine_did(name: str) -> None:
    made = row(run(name), proof(name))
    single = name.endswith("home")
    assert made.measurement_type is (Label.SINGLE_STREAM if single else Label.BATCHED_ONLINE)
    assert (made.batch == 1) is single
    assert parse_notes(made.scenario_notes)["batching"] == ("off" if single else "on")
    assert made.engine.startswith("vLLM 0.")
    assert (made.gpu_count, made.precision) == (0, "FP32")
    assert made.gpu.startswith("CPU (")


def test_batch_is_what_the_engine_counted_and_not_the_clients_overlap() -> None:
    made = row(run("vllm_bench_cloud"), proof("vllm_bench_cloud"))
    notes = parse_notes(made.scenario_notes)
    assert (made.batch, notes["batch_mean"], notes["batch_max"]) == (2, "2.16832", "5")
    assert "batch_is" not in notes


def test_row_has_the_conditions_of_the_engine_and_its_cache() -> None:
    ends = proof("vllm_bench_cloud")
    on = ends.before.conditions | {"prefix_caching": "on"}
    ends = States(replace(ends.before, conditions=on), replace(ends.after, conditions=on))
    cached = replace(ends.after, prefix_queries=ends.before.prefix_queries + 1000, prefix_hits=250)
    notes = parse_notes(row(run("vllm_bench_cloud"), States(ends.before, cached)).scenario_notes)
    assert {name: notes[name] for name in ALWAYS_REPORTED} == {
        name: str(value) for name, value in ends.before.conditions.items()
    }
    assert notes["prefix_hit_ratio"] == "0.25"
    untouched = parse_notes(row(run("vllm_bench_cloud"), ends).scenario_notes)
    assert untouched["prefix_hit_ratio"] == "0"


def test_notes_describe_the_measurement() -> None:
    notes = parse_notes(row(run("vllm_bench_cloud"), proof("vllm_bench_cloud")).scenario_notes)
    assert list(notes)[:5] == ["input_tokens", "output_tokens", "batching", "tool", "arrivals"]
    assert (notes["arrivals"], notes["rate_per_s"], notes["requests"]) == ("poisson", "3", "45")
    assert notes["profile"] == "cloud"
    assert notes["preliminary"] == "yes"  # too few queries for publication
    assert "failed" not in notes
    assert notes["tool"] == "vllm bench serve"


def test_failed_requests_are_noted() -> None:
    made = row(run("vllm_bench_cloud", failed=2), proof("vllm_bench_cloud"))
    assert parse_notes(made.scenario_notes)["failed"] == "2"


def test_without_a_claim_the_label_is_the_engines() -> None:
    for claim in (None, Label.TO_BE_CONFIRMED):
        made = row(run("guidellm_cloud", claim=claim), proof("guidellm_cloud"))
        assert made.measurement_type is Label.BATCHED_ONLINE


@pytest.mark.parametrize("name", RUNS)
def test_without_proof_nothing_is_confirmed_and_the_claim_is_a_note(name: str) -> None:
    made = row(run(name), GIVEN)
    notes = parse_notes(made.scenario_notes)
    assert made.measurement_type is Label.TO_BE_CONFIRMED
    assert notes["claim"] == ("single_stream" if name.endswith("home") else "batched_online")
    assert notes["batching"] == "unknown"
    assert notes["given"] == "engine,precision,gpu,gpu_count"
    assert (made.engine, made.gpu) == ("vLLM 0.32.0", "H100")


def test_without_proof_a_claim_that_the_load_contradicts_is_rejected() -> None:
    found = run("vllm_bench_home", claim=Label.OFFLINE)
    rule = "must be at_once or closed_loop for offline"
    assert rule in refused(found, GIVEN)


def test_without_proof_the_batch_is_the_overlap_by_the_tools_times() -> None:
    made = row(run("guidellm_cloud"), GIVEN)
    assert made.batch == 3
    assert parse_notes(made.scenario_notes)["batch_is"] == "overlap"


def test_concurrency_limit_is_not_a_batch() -> None:
    found = run("vllm_bench_cloud", served=(), load=by(Arrivals.POISSON, 8))
    assert refused(found, GIVEN).startswith("max_concurrency '8': is a limit, not a measured batch")
    assert row(replace(found, load=by(Arrivals.POISSON, 1), claim=None), GIVEN).batch == 1
    # The engine's label is used.
    assert row(found, proof("vllm_bench_cloud")).batch > 1


def test_offline_by_a_schedule_is_rejected() -> None:
    ends = proof("vllm_bench_cloud")
    offline: dict[str, Any] = {"measurement_type": "offline", "profile": "offline"}
    known = States(replace(ends.before, **offline), replace(ends.after, **offline))
    found = run("vllm_bench_cloud", claim=None)
    assert "must be at_once or closed_loop" in refused(found, known)
    burst = replace(found, load=by(Arrivals.AT_ONCE), served=())
    assert "offline needs a batch of 8" in refused(burst, known)
    steps = {**known.after.steps_by_batch, 8: (5, 0.1)}
    full = States(known.before, replace(known.after, steps_by_batch=steps))
    made = row(burst, full)
    assert made.measurement_type is Label.OFFLINE
    # Latencies of an offline run only show the length of the queue.
    assert burst.latency_ms
    assert not [name for name in parse_notes(made.scenario_notes) if name.endswith("_ms")]


def test_model_is_one_that_the_engine_serves_or_has_loaded() -> None:
    found, ends = run("vllm_bench_home", model="other"), proof("vllm_bench_home")
    assert refused(found, ends).startswith("model 'other': the engine serves small")
    served = row(found, ends, Source("run-1", "small"))
    assert served.model_id == "small"
    assert "given" not in parse_notes(served.scenario_notes)
    refusal = refused(found, ends, Source("run-1", "org/Large-70B"))
    assert refusal.startswith("model 'org/Large-70B': the engine serves small (loaded as /")
    loaded = States(
        replace(ends.before, weights="org/Small"), replace(ends.after, weights="org/Small")
    )
    made = row(found, loaded, Source("run-1", "org/Small"))
    assert made.model_id == "org/Small"
    assert "given" not in parse_notes(made.scenario_notes)


def test_model_that_the_engine_knows_by_paths_only_is_named_by_the_user() -> None:
    found, ends = run("vllm_bench_home", model="/models/small"), proof("vllm_bench_home")
    paths: dict[str, Any] = {"models": ("/models/small",), "weights": "/models/small"}
    known = States(replace(ends.before, **paths), replace(ends.after, **paths))
    assert "is a path: name the model with --model-id" in refused(found, known)
    made = row(found, known, Source("run-1", "org/Small"))
    assert made.model_id == "org/Small"
    assert parse_notes(made.scenario_notes)["given"] == "model_id"


def test_every_name_that_the_engine_serves_is_a_model() -> None:
    ends = proof("vllm_bench_home")
    models = ("small", "alias", "sql")
    known = States(replace(ends.before, models=models), replace(ends.after, models=models))
    for model in models:
        assert row(run("vllm_bench_home", model=model), known).model_id == model


def test_tokens_of_failed_requests_are_unknown() -> None:
    """The engine may have decoded some of them."""
    row(run("vllm_bench_home", requests=19, failed=1, output_tokens=608), proof("vllm_bench_home"))


def test_path_is_rejected_as_a_model() -> None:
    found = run("vllm_bench_home", model="/models/llama")
    assert "--model-id" in refused(found, GIVEN)
    made = row(found, GIVEN, Source("run-1", "meta-llama/Llama-3.1-8B-Instruct"))
    assert made.model_name == "Llama-3.1-8B-Instruct"
    assert row(found, GIVEN, Source("run-1", "llama", "Llama 3.1 8B")).model_name == "Llama 3.1 8B"


def test_lengths_are_means_per_request() -> None:
    made = row(run("vllm_bench_cloud", input_tokens=45 * 32 + 30), GIVEN)
    assert (made.input_tokens, made.output_tokens) == (33, 32)
    assert parse_notes(made.scenario_notes)["input_tokens"] == "33"

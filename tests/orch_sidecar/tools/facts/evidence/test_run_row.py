"""Converting runs of other tools to rows, with and without the state of the engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orch_sidecar.tools.facts.evidence.imported import read_run, to_row
from orch_sidecar.tools.facts.labels.load import Load
from orch_sidecar.tools.facts.labels.measured import Engine, Source
from orch_sidecar.tools.facts.labels.observation import Run, States
from orch_sidecar.tools.facts.tables.notes import ALWAYS_REPORTED, Arrivals
from orch_sidecar.tools.facts.tables.row import Label, Row
from tests.orch_sidecar.tools.facts.imports import measured, proof

GIVEN = Engine(engine="vLLM 0.32.0", precision="BF16", gpu="H100", gpu_count=1)
SOURCE = Source("run-1")
HOME, CLOUD, GUIDE = "vllm_bench_home", "vllm_bench_cloud", "guidellm_cloud"
SINGLE = Load(arrivals=Arrivals.ONE_BY_ONE, clients=1)
_SUMS = ("requests", "input_tokens", "output_tokens")


def run(name: str, **changes: Any) -> Run:
    found = measured(name)
    sums = {name: changes.pop(name) for name in _SUMS if name in changes}
    return replace(found, totals=replace(found.totals, **sums), **changes)


def states(name: str, **fields: Any) -> States:
    """Returns the recorded states with other fields at both ends."""
    ends = proof(name)
    return States(replace(ends.before, **fields), replace(ends.after, **fields))


def row(measured: Run, known: States | Engine, source: Source = SOURCE) -> Row:
    return to_row(measured, known, source)


def refused(measured: Run, known: States | Engine, source: Source = SOURCE) -> str:
    found = read_run("", lambda: to_row(measured, known, source))
    assert isinstance(found, str), found
    return found.removeprefix(": ")


@pytest.mark.parametrize(
    ("name", "tool", "load", "claim", "sums", "batch", "overlap"),
    [
        (HOME, "vllm bench serve", SINGLE, "single_stream", (20, 0, 640), 1, 1),
        ("guidellm_home", "guidellm 0.8.1", SINGLE, "single_stream", (20, 0, 640), 1, 1),
        (CLOUD, "vllm bench serve", Load(arrivals=Arrivals.POISSON, rate_per_s=3.0),
         "batched_online", (45, 0, 1440), 2, 5),
        (GUIDE, "guidellm 0.8.1", Load(arrivals=Arrivals.CONSTANT, rate_per_s=3.0),
         "batched_online", (45, 0, 1440), 2, 3),
        # It claims no label, and has no times of requests.
        ("aiperf_cloud", "aiperf 0.13.0", Load(arrivals=Arrivals.CLOSED_LOOP, clients=4), None,
         (40, 0, 640), 4, 0),
    ],
)  # fmt: skip
def test_recorded_run_earns_its_label_by_what_the_engine_did(
    name: str,
    tool: str,
    load: Load,
    claim: str | None,
    sums: tuple[int, ...],
    batch: int,
    overlap: int,
) -> None:
    found = run(name)
    assert (found.named["tool"], found.load, found.claim) == (tool, load, claim)
    assert (found.totals.requests, found.failed, found.totals.output_tokens) == sums
    made = row(found, proof(name))
    assert made.measurement_type == (claim or "batched_online")
    assert (made.batch, made.notes["batching"]) == (batch, "off" if batch == 1 else "on")
    assert made.engine.startswith("vLLM 0.")
    assert (made.gpu_count, made.precision) == (0, "FP32")
    assert made.gpu.startswith("CPU (")
    if not overlap:
        assert refused(found, GIVEN).startswith("max_concurrency '4': is a limit")
        return
    made = row(found, GIVEN)
    notes = made.notes
    assert (made.measurement_type, notes["claim"]) == (Label.TO_BE_CONFIRMED, claim)
    assert (made.batch, notes["batch_is"]) == (overlap, "overlap")
    assert (notes["batching"], notes["given"]) == ("unknown", "engine,precision,gpu,gpu_count")
    assert (made.engine, made.gpu) == ("vLLM 0.32.0", "H100")


def test_batch_is_what_the_engine_counted_and_not_the_clients_overlap() -> None:
    made = row(run(CLOUD), proof(CLOUD))
    notes = made.notes
    assert (made.batch, notes["batch_mean"], notes["batch_max"]) == (2, "2.16832", "5")
    assert "batch_is" not in notes


def test_row_has_the_conditions_of_the_engine_and_its_cache() -> None:
    ends = states(CLOUD, conditions=proof(CLOUD).before.conditions | {"prefix_caching": "on"})
    cached = replace(ends.after, prefix_queries=ends.before.prefix_queries + 1000, prefix_hits=250)
    notes = row(run(CLOUD), States(ends.before, cached)).notes
    assert {name: notes[name] for name in ALWAYS_REPORTED} == {
        name: str(value) for name, value in ends.before.conditions.items()
    }
    assert notes["prefix_hit_ratio"] == "0.25"
    assert row(run(CLOUD), ends).notes["prefix_hit_ratio"] == "0"


def test_notes_describe_the_measurement() -> None:
    notes = row(run(CLOUD), proof(CLOUD)).notes
    assert list(notes)[:5] == ["input_tokens", "output_tokens", "batching", "tool", "arrivals"]
    assert (notes["arrivals"], notes["rate_per_s"], notes["requests"]) == ("poisson", "3", "45")
    assert notes["profile"] == "cloud"
    assert notes["preliminary"] == "yes"  # too few queries for publication
    assert "failed" not in notes
    assert "tpot_p50_ms" in row(run(HOME), proof(HOME)).notes  # as many clients as sequences
    assert row(run(CLOUD, failed=2), proof(CLOUD)).notes["failed"] == "2"


def test_without_a_claim_the_label_is_the_engines() -> None:
    for claim in (None, Label.TO_BE_CONFIRMED):
        assert row(run(GUIDE, claim=claim), proof(GUIDE)).measurement_type is Label.BATCHED_ONLINE


def test_without_proof_a_claim_that_the_load_contradicts_is_rejected() -> None:
    found = run(HOME, claim=Label.OFFLINE)
    assert "must be at_once or closed_loop for offline" in refused(found, GIVEN)


def test_concurrency_limit_is_not_a_batch() -> None:
    found = run(CLOUD, served=(), load=Load(arrivals=Arrivals.POISSON, clients=8))
    assert refused(found, GIVEN).startswith("max_concurrency '8': is a limit, not a measured batch")
    alone = Load(arrivals=Arrivals.POISSON, clients=1)
    assert row(replace(found, load=alone, claim=None), GIVEN).batch == 1
    # The engine's label is used.
    assert row(found, proof(CLOUD)).batch > 1


def test_offline_by_a_schedule_is_rejected() -> None:
    known = states(CLOUD, measurement_type=Label.OFFLINE, profile="offline")
    found = run(CLOUD, claim=None)
    assert "must be at_once or closed_loop" in refused(found, known)
    burst = replace(found, load=Load(arrivals=Arrivals.AT_ONCE), served=())
    assert "offline needs a batch of 8" in refused(burst, known)
    steps = {**known.after.steps_by_batch, 8: (5, 0.1)}
    made = row(burst, States(known.before, replace(known.after, steps_by_batch=steps)))
    assert made.measurement_type is Label.OFFLINE
    # Latencies of an offline run only show the length of the queue.
    assert burst.latency_ms
    assert not [name for name in made.notes if name.endswith("_ms")]


PATHS = states(HOME, models=("/models/small",), weights="/models/small")
ALIASES = states(HOME, models=("small", "alias", "sql"))


@pytest.mark.parametrize(
    ("model", "model_id", "known", "expected", "given"),
    [
        # It is one that the engine serves, or has loaded.
        ("other", None, proof(HOME), "model 'other': the engine serves small", None),
        ("other", "small", proof(HOME), "small", None),
        ("other", "org/Large-70B", proof(HOME),
         "model 'org/Large-70B': the engine serves small (loaded as /", None),
        ("other", "org/Small", states(HOME, weights="org/Small"), "org/Small", None),
        *((model, None, ALIASES, model, None) for model in ALIASES.before.models),
        # One that the engine knows by paths only is named by the user.
        ("/models/small", None, PATHS, "is a path: name the model with --model-id", None),
        ("/models/small", "org/Small", PATHS, "org/Small", "model_id"),
        ("/models/llama", None, GIVEN, "is a path: name the model with --model-id", None),
    ],
)  # fmt: skip
def test_model_is_one_that_the_engine_knows_or_else_the_users(
    model: str, model_id: str | None, known: States | Engine, expected: str, given: str | None
) -> None:
    found = read_run("", lambda: row(run(HOME, model=model), known, Source("run-1", model_id)))
    if isinstance(found, str):
        assert expected in found
    else:
        assert (found.model_id, found.notes.get("given")) == (expected, given)


def test_name_for_display_is_the_last_part_of_the_id_or_given() -> None:
    found = run(HOME, model="/models/llama")
    made = row(found, GIVEN, Source("run-1", "meta-llama/Llama-3.1-8B-Instruct"))
    assert made.model_name == "Llama-3.1-8B-Instruct"
    assert row(found, GIVEN, Source("run-1", "llama", "Llama 3.1 8B")).model_name == "Llama 3.1 8B"


def test_tokens_of_failed_requests_are_unknown() -> None:
    """The engine may have decoded some of them, and has read their prompts."""
    found, ends = run(HOME, requests=19, failed=1, output_tokens=608), proof(HOME)
    found = replace(found, served=found.served[:19])
    known = States(replace(ends.before, prefill_s=0.0), replace(ends.after, prefill_s=100.0))
    row(found, known)
    assert "the first tokens took" in refused(run(HOME), known)


def test_lengths_are_means_per_request() -> None:
    made = row(run(CLOUD, input_tokens=45 * 32 + 30), GIVEN)
    assert (made.input_tokens, made.output_tokens) == (33, 32)
    assert made.notes["input_tokens"] == "33"

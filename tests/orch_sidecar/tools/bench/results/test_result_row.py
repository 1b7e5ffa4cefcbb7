"""A result as a row, if it is a fact."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orch_sidecar.tools.bench.load.scenario import Scenario
from orch_sidecar.tools.bench.results.result import Result, row_of
from orch_sidecar.tools.bench.results.summary import result_of
from orch_sidecar.tools.facts.labels.figures import LATENCIES
from orch_sidecar.tools.facts.tables.notes import ALWAYS_REPORTED, Arrivals
from orch_sidecar.tools.facts.tables.row import Label
from tests.orch_sidecar.tools.bench.sample_results import (
    OFFLINE,
    ONLINE,
    SINGLE,
    answered,
    in_a_row,
    refused,
    result,
    unverified,
)
from tests.orch_sidecar.tools.facts.snapshots import CONDITIONS, snapshot

CALLS = in_a_row(10)
TYPED = {"engine": "vLLM 0.32.0", "precision": "BF16", "gpu": "H100", "gpu_count": 1}


@pytest.mark.parametrize(
    ("scenario", "batch", "largest", "batching"),
    [(SINGLE, 1, "1", "off"), (ONLINE, 3, "6", "on"), (OFFLINE, 4, "8", "on")],
)
def test_row_contains_what_the_engine_did(
    scenario: Scenario, batch: int, largest: str, batching: str
) -> None:
    offline = {"every_s": 0.0, "first_s": 1.0} if scenario is OFFLINE else {}
    calls = in_a_row(10, due=scenario is not SINGLE, **offline)
    row = row_of(result(calls, scenario))
    assert (row.measurement_type, row.batch) == (scenario.label, batch)
    assert (row.input_tokens, row.output_tokens) == (32, 11)
    assert row.throughput_tokens_per_sec == pytest.approx(100.0)
    assert row.engine == "vLLM 0.32.0"
    assert (row.gpu, row.gpu_count, row.precision) == ("CPU (test)", 0, "FP32")
    assert row.source_tag == "orch-bench:20261121T211711Z-x-4037a0"
    notes = row.notes
    assert notes["batching"] == batching
    assert notes["batch_max"] == largest
    assert round(float(notes["batch_mean"])) == batch
    assert notes["arrivals"] == scenario.arrivals
    assert (notes["requests"], notes["window_s"], notes["preliminary"]) == ("10", "1.1", "yes")


def test_notes_have_the_names_that_other_rows_have() -> None:
    notes = row_of(result([*CALLS, refused(0.0)], replace(ONLINE, slo_ms={"ttft": 500.0}))).notes
    assert set(notes) == {
        "input_tokens", "output_tokens", "batching", "tool", "arrivals", "rate_per_s", "requests",
        "window_s", "seed", "refused", "slo_ttft_ms", "goodput_share", "batch_mean", "batch_max",
        "profile", "preliminary", *ALWAYS_REPORTED, "loaded", "prefix_hit_ratio",
        *(f"{name}_p{at}_ms" for name, places in LATENCIES.items() for at in places),
    }  # fmt: skip
    assert (notes["ttft_p50_ms"], notes["latency_p90_ms"]) == ("100", "200")
    assert (notes["rate_per_s"], notes["refused"]) == ("10", "1")
    assert notes["goodput_share"] == "0.9091"


def test_estimates_of_early_stopping_stand_beside_percentiles_that_have_enough_samples() -> None:
    calls = [answered(index / 50, first_s=0.001 * index) for index in range(64)]
    found = result(calls)
    notes = row_of(found).notes
    assert notes["latency_p90_early_ms"] == "163", "the largest of 64"
    assert float(notes["latency_p90_ms"]) < 163
    assert "latency_p95_early_ms" not in notes
    assert found.figures is not None
    latency = found.figures.times_s["latency"]
    assert latency is not None
    assert latency.early["p90"] == pytest.approx(0.163)
    assert "latency_p90_early_ms" not in row_of(result(calls[:63])).notes


def test_prompts_found_in_the_cache_are_noted() -> None:
    """A run that repeats one prompt has a TTFT that no other has."""
    cached = CONDITIONS | {"prefix_caching": "on"}
    after = snapshot(
        conditions=cached,
        requests_total=110,
        steps_by_batch={"4": [25, 0.5]},
        prefix_cache={"queries_total": 320, "hits_total": 288},
    )
    found = result(CALLS, before=snapshot(conditions=cached), after=after)
    assert found.prefix_hit_ratio == 0.9
    assert row_of(found).notes["prefix_hit_ratio"] == "0.9"


def test_what_a_load_does_not_have_is_not_noted() -> None:
    """All wait for all in an offline run; the clients of a closed loop have no rate."""
    assert not [name for name in row_of(result(in_a_row(10, 0.0), OFFLINE)).notes if "_ms" in name]
    closed = replace(ONLINE, arrivals=Arrivals.CLOSED_LOOP, rate_per_s=None, clients=8)
    notes = row_of(result(CALLS, closed)).notes
    assert (notes["arrivals"], notes["at_once"]) == ("closed_loop", "8")
    assert "rate_per_s" not in notes


def test_doubts_are_noted() -> None:
    calls = [answered(0.0, counted_by_events=True), *CALLS]
    ends: dict[str, Any] = {"models": ["/m"], "weights": "/m"}
    steps = {"1": [20, 0.2], "4": [20, 0.4], "6": [5, 0.15]}
    after = snapshot(requests_total=111, steps_by_batch=steps, **ends)
    more: dict[str, Any] = {"before": snapshot(**ends), "after": after, "model": "/m"}
    row = row_of(result(calls, given={"model_id": "org/m"}, cpu_share=0.95, **more))
    notes = row.notes
    assert (notes["given"], notes["served_as"]) == ("model_id", "/m")
    assert (notes["client_bottleneck"], notes["counted_by_events"]) == ("yes", "1")
    assert (row.model_id, row.model_name, row.gpu) == ("org/m", "m", "CPU (test)")


def test_endpoint_without_capabilities_makes_a_row_to_be_confirmed() -> None:
    calls = [answered(0.0), answered(0.01), answered(1.0)]
    row = row_of(result_of(unverified(calls, given=TYPED)))
    notes = row.notes
    assert (row.measurement_type, row.batch) == (Label.TO_BE_CONFIRMED, 2)
    assert (notes["batching"], notes["claim"]) == ("unknown", "batched_online")
    assert (notes["batch_is"], notes["given"]) == ("overlap", "engine,precision,gpu,gpu_count")


SEMICOLON: dict[str, Any] = {
    "before": snapshot(profile="a;b"),
    "after": snapshot(profile="a;b", requests_total=110, steps_by_batch={"4": [25, 0.5]}),
}


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (result_of(unverified(CALLS)), "give --engine, --precision, --gpu, --gpu-count"),
        (result([answered(0.0, input_tokens=None), *CALLS]),
         "the number of prompt tokens is unknown"),
        (result(CALLS, stopped=True), "the result is incomplete: the user interrupted the run"),
        (result(CALLS, after=snapshot(epoch="e2")),
         "the result is invalid: the engine was restarted"),
        (result([refused(0.0)]), "no request was answered"),
        (result(CALLS, **SEMICOLON), "must be one line without a semicolon"),
    ],
)  # fmt: skip
def test_result_that_is_no_fact_makes_no_row(found: Result, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        row_of(found)

"""Parsing files of `vllm bench serve`: recorded ones, with and without changes."""

from __future__ import annotations

from typing import Any

import pytest

from orch_sidecar.tools.facts.tables.notes import Arrivals
from tests.orch_sidecar.tools.facts.imports import changed, document, load, measured

HOME, CLOUD = "vllm_bench_home", "vllm_bench_cloud"


@pytest.mark.parametrize("name", [HOME, CLOUD])
def test_figures_of_the_details_agree_with_the_tools_own(name: str) -> None:
    """Where its definitions are ours: percentiles and times per token are the same numbers, and
    the throughput differs by what its duration has before the first request and after the last
    token."""
    file, found = document(name), measured(name)
    assert found.latency_ms["ttft_p50_ms"] == pytest.approx(file["median_ttft_ms"], rel=0.01)
    assert found.latency_ms["ttft_p95_ms"] == pytest.approx(file["p95_ttft_ms"], rel=0.01)
    assert found.latency_ms["tpot_p50_ms"] == pytest.approx(file["median_tpot_ms"], rel=1e-6)
    assert found.latency_ms["latency_p90_ms"] == pytest.approx(file["p90_e2el_ms"], rel=0.01)
    assert found.totals.window_s < file["duration"]
    assert found.totals.tokens_per_s == pytest.approx(file["output_throughput"], rel=0.05)
    assert found.totals.tokens_per_s > file["output_throughput"]


def test_ttft_counts_from_arrival_where_requests_queued_before_being_sent() -> None:
    """vLLM counts from when `--max-concurrency` let it send the request."""
    late = changed(CLOUD, {"max_concurrency": 2, "queue_times": [1.0] * 45})
    assert measured(CLOUD, late).latency_ms["ttft_p50_ms"] == pytest.approx(
        1000 + late["median_ttft_ms"], rel=0.01
    )


def test_queue_time_of_a_closed_loop_does_not_move_arrivals() -> None:
    """The tool creates all requests at the start, so its queue times grow during the run."""
    assert measured(HOME).latency_ms["ttft_p95_ms"] < 1000
    assert max(document(HOME)["queue_times"]) > 5


@pytest.mark.parametrize(
    ("values", "arrivals"),
    [
        ({"burstiness": 0.5}, Arrivals.GAMMA),
        ({"burstiness": float("inf")}, Arrivals.CONSTANT),
        ({"request_rate": "inf"}, Arrivals.AT_ONCE),
        ({"request_rate": "inf", "max_concurrency": 4}, Arrivals.CLOSED_LOOP),
    ],
)
def test_arrivals_follow_from_rate_and_limit(values: dict[str, Any], arrivals: Arrivals) -> None:
    found = load(measured(CLOUD, changed(CLOUD, values)))
    assert found.arrivals is arrivals
    assert (found.burstiness is not None) == (arrivals is Arrivals.GAMMA)


def test_failed_requests_are_counted_but_not_measured() -> None:
    file = document(CLOUD)
    lists = {name: [*value, 0] for name, value in file.items() if isinstance(value, list)}
    found = measured(CLOUD, file | lists | {"failed": 1})
    assert (found.totals.requests, found.failed) == (45, 1)
    assert found.totals.tokens_per_s == measured(CLOUD, file).totals.tokens_per_s

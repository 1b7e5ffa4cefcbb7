"""Parsing reports of GuideLLM: recorded ones, with and without changes."""

from __future__ import annotations

import statistics
from typing import Any

import pytest

from orch_sidecar.tools.facts.evidence.guidellm import parts
from orch_sidecar.tools.facts.tables.notes import Arrivals
from tests.orch_sidecar.tools.facts.imports import changed, document, load, measured

HOME, CLOUD = "guidellm_home", "guidellm_cloud"
STRATEGY = "benchmarks.0.config.strategy"


def requests_of(report: dict[str, Any]) -> list[dict[str, Any]]:
    requests: list[dict[str, Any]] = report["benchmarks"][0]["requests"]["successful"]
    return requests


def test_times_per_token_are_the_tools_inter_token_latencies() -> None:
    theirs = statistics.median(
        each["inter_token_latency_ms"] for each in requests_of(document(CLOUD))
    )
    assert measured(CLOUD).latency_ms["tpot_p50_ms"] == pytest.approx(theirs, rel=1e-4)


def test_ttft_counts_from_the_due_time_of_a_schedule() -> None:
    for name, later_ms in ((CLOUD, 1000), (HOME, 0)):
        report = document(name)
        report["benchmarks"][0]["scheduler_metrics"]["start_time"] -= 1
        for each in requests_of(report):
            each["info"]["timings"]["targeted_start"] -= 1
        expected = measured(name).latency_ms["ttft_p50_ms"] + later_ms
        found = measured(name, report).latency_ms["ttft_p50_ms"]
        assert found == pytest.approx(expected, abs=0.01)


def test_throughput_is_of_generated_tokens_over_first_arrival_to_last_token() -> None:
    timings = [each["info"]["timings"] for each in requests_of(document(HOME))]
    began = min(each["request_start"] for each in timings)
    window_s = max(each["last_token_iteration"] for each in timings) - began
    totals = measured(HOME).totals
    assert (totals.window_s, totals.tokens_per_s) == pytest.approx((window_s, 640 / window_s))


def test_answers_that_were_not_streamed_have_no_first_token() -> None:
    report = document(HOME)
    for each in requests_of(report):
        each["info"]["timings"] |= {"first_token_iteration": None, "last_token_iteration": None}
    found = measured(HOME, report)
    percentiles = {"latency_p50_ms", "latency_p90_ms", "latency_p95_ms"}
    assert set(found.latency_ms) == percentiles | {"latency_p50_early_ms"}
    assert found.overlap == 1


def test_phase_that_states_nothing_is_none() -> None:
    phases: dict[str, Any] = {
        f"benchmarks.0.config.{phase}": {} for phase in ("warmup", "cooldown")
    }
    assert measured(HOME, changed(HOME, phases)) == measured(HOME)


def test_requests_that_failed_or_were_cut_off_are_counted() -> None:
    made = "benchmarks.0.scheduler_metrics.requests_made"
    report = changed(CLOUD, {f"{made}.errored": 2, f"{made}.incomplete": 1})
    assert measured(CLOUD, report).failed == 3


def test_each_benchmark_of_a_report_is_one_run() -> None:
    report = document(HOME)
    report["benchmarks"] += document(CLOUD)["benchmarks"]
    assert [load(measured(CLOUD, each)).clients for each in parts(report)] == [1, None]
    others: tuple[object, ...] = ({}, {"benchmarks": []}, [])
    assert [parts(other) for other in others] == [[other] for other in others]


@pytest.mark.parametrize(
    ("values", "arrivals", "at_once"),
    [
        ({STRATEGY: {"type_": "concurrent", "streams": 4}}, Arrivals.CLOSED_LOOP, 4),
        ({STRATEGY: {"type_": "concurrent", "streams": 1}}, Arrivals.ONE_BY_ONE, 1),
        ({STRATEGY: {"type_": "throughput", "max_concurrency": 10240}}, Arrivals.AT_ONCE, None),
        ({STRATEGY: {"type_": "trace"}}, Arrivals.TRACE, None),
        ({f"{STRATEGY}.type_": "poisson"}, Arrivals.POISSON, None),
        # Each process draws the same gaps.
        ({STRATEGY: {"type_": "poisson", "worker_count": 10}}, Arrivals.REPEATED_GAPS, None),
        # The limit of an open loop is the requested one.
        ({"benchmarks.0.config.profile.max_concurrency": 4}, Arrivals.CONSTANT, 4),
    ],
)
def test_strategies_map_to_arrivals(
    values: dict[str, Any], arrivals: Arrivals, at_once: int | None
) -> None:
    found = measured(CLOUD, changed(CLOUD, {**values, "config.metadata.labels": {}}))
    assert (load(found).arrivals, load(found).clients, found.claim) == (arrivals, at_once, None)

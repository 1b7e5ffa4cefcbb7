"""Parsing reports of GuideLLM: recorded ones, with and without changes."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import pytest

from orch_sidecar.tools.facts.evidence.guidellm import parts
from orch_sidecar.tools.facts.labels.figures import overlap
from orch_sidecar.tools.facts.tables.notes import Arrivals
from orch_sidecar.tools.facts.tables.row import Label
from tests.orch_sidecar.tools.facts.imports import changed, document, load, measured, refused

HOME, CLOUD = "guidellm_home", "guidellm_cloud"
Change = Callable[[dict[str, Any]], Any]


def benchmark(change: Change, name: str = CLOUD) -> Any:
    """Returns a report with a change in its benchmark."""
    return changed(name, lambda report: change(report["benchmarks"][0]))


def requests_of(report: dict[str, Any]) -> list[dict[str, Any]]:
    requests: list[dict[str, Any]] = report["benchmarks"][0]["requests"]["successful"]
    return requests


def test_synchronous_report_is_one_request_after_the_other() -> None:
    found = measured(HOME)
    assert (load(found).arrivals, load(found).clients, load(found).rate_per_s) == (
        Arrivals.ONE_BY_ONE,
        1,
        None,
    )
    assert (found.claim, overlap(found.served)) == (Label.SINGLE_STREAM, 1)
    assert (found.totals.requests, found.failed, found.totals.output_tokens) == (20, 0, 640)
    assert (found.named["tool"], found.model) == ("guidellm 0.8.1", "small")


def test_constant_report_has_a_rate_and_overlapping_answers() -> None:
    found = measured(CLOUD)
    assert (load(found).arrivals, load(found).clients, load(found).rate_per_s) == (
        Arrivals.CONSTANT,
        None,
        3.0,
    )
    assert found.claim is Label.BATCHED_ONLINE
    assert overlap(found.served) > 1


def test_times_per_token_are_the_tools_inter_token_latencies() -> None:
    report = document(CLOUD)
    theirs = statistics.median(each["inter_token_latency_ms"] for each in requests_of(report))
    assert measured(CLOUD, report).latency_ms["tpot_p50_ms"] == pytest.approx(theirs, rel=1e-4)


def test_ttft_counts_from_the_due_time_of_a_schedule() -> None:
    def late(benchmark: dict[str, Any]) -> None:
        for each in benchmark["requests"]["successful"]:
            each["info"]["timings"]["targeted_start"] -= 1

    def began_early(benchmark: dict[str, Any]) -> None:
        late(benchmark)
        benchmark["scheduler_metrics"]["start_time"] -= 1

    plain = measured(CLOUD).latency_ms["ttft_p50_ms"]
    later = measured(CLOUD, benchmark(began_early)).latency_ms["ttft_p50_ms"]
    assert later == pytest.approx(plain + 1000, abs=0.01)
    closed = measured(CLOUD, benchmark(late, HOME)).latency_ms
    assert closed == measured(HOME).latency_ms


def test_throughput_is_of_generated_tokens_over_first_arrival_to_last_token() -> None:
    report = document(HOME)
    timings = [each["info"]["timings"] for each in requests_of(report)]
    began = min(each["request_start"] for each in timings)
    window_s = max(each["last_token_iteration"] for each in timings) - began
    found = measured(CLOUD, report)
    assert found.totals.window_s == pytest.approx(window_s)
    assert found.totals.tokens_per_s == pytest.approx(640 / window_s)


def test_answers_that_were_not_streamed_have_no_first_token() -> None:
    def whole(benchmark: dict[str, Any]) -> None:
        for each in benchmark["requests"]["successful"]:
            each["info"]["timings"] |= {"first_token_iteration": None, "last_token_iteration": None}

    found = measured(CLOUD, benchmark(whole, HOME))
    percentiles = {"latency_p50_ms", "latency_p90_ms", "latency_p95_ms"}
    assert set(found.latency_ms) == percentiles | {"latency_p50_early_ms"}
    assert overlap(found.served) == 1


def test_each_benchmark_of_a_report_is_one_run() -> None:
    report = document(HOME)
    report["benchmarks"] += document(CLOUD)["benchmarks"]
    assert [load(measured(CLOUD, each)).clients for each in parts(report)] == [1, None]
    assert parts({}) == [{}]
    assert parts({"benchmarks": []}) == [{"benchmarks": []}]


def test_poisson_of_several_processes_has_repeated_gaps() -> None:
    def poisson(workers: int) -> Change:
        return lambda benchmark: benchmark["config"]["strategy"].update(
            type_="poisson", worker_count=workers
        )

    assert load(measured(CLOUD, benchmark(poisson(10)))).arrivals is Arrivals.REPEATED_GAPS
    assert load(measured(CLOUD, benchmark(poisson(1)))).arrivals is Arrivals.POISSON


def test_requests_due_before_the_run_are_rejected() -> None:
    found = refused(CLOUD, document("guidellm_early"))
    assert found.startswith("info.timings.targeted_start '-0.")
    assert "20 of 45 requests were due before the run began" in found


@pytest.mark.parametrize(
    ("strategy", "arrivals", "at_once"),
    [
        ({"type_": "concurrent", "streams": 4}, Arrivals.CLOSED_LOOP, 4),
        ({"type_": "concurrent", "streams": 1}, Arrivals.ONE_BY_ONE, 1),
        ({"type_": "throughput", "max_concurrency": 10240}, Arrivals.AT_ONCE, None),
        ({"type_": "trace"}, Arrivals.TRACE, None),
    ],
)
def test_strategies_map_to_arrivals(
    strategy: dict[str, Any], arrivals: Arrivals, at_once: int | None
) -> None:
    def change(benchmark: dict[str, Any]) -> None:
        benchmark["config"]["strategy"] = strategy

    report = benchmark(change)
    report["config"]["metadata"]["labels"] = {}
    found = measured(CLOUD, report)
    assert (load(found).arrivals, load(found).clients, found.claim) == (arrivals, at_once, None)


def test_limit_of_an_open_loop_is_the_requested_one() -> None:
    def change(benchmark: dict[str, Any]) -> None:
        benchmark["config"]["profile"]["max_concurrency"] = 4

    assert load(measured(CLOUD, benchmark(change))).clients == 4


def _set(*path: str | int, value: Any) -> Change:
    def change(benchmark: dict[str, Any]) -> None:
        place: Any = benchmark
        for name in path[:-1]:
            place = place[name]
        place[path[-1]] = value

    return change


_MADE = ("scheduler_metrics", "requests_made")
_FIRST = ("requests", "successful", 0)


@pytest.mark.parametrize(
    ("change", "name", "rule"),
    [
        (_set("config", "warmup", "value", value=0.1), "config.warmup", "must be none"),
        (_set("config", "cooldown", "percent", value=0.2), "config.cooldown", "must be none"),
        (_set(*_MADE, "successful", value=0), "requests_made", "greater than or equal to 1"),
        (_set(*_MADE, "successful", value=50), "requests.successful", "must be all 50"),
        (_set("config", "strategy", "type_", value="burst"), "type_", "'synchronous'"),
        (_set("config", "backend", "kind", value="vllm_python"), "kind", "'openai_http'"),
        (_set(*_FIRST, "output_tokens", value=None), "output_tokens", "valid integer"),
        (_set(*_FIRST, "output_tokens", value=0), "output_tokens", "greater than 0"),
        (
            _set(*_FIRST, "info", "timings", "request_end", value=None),
            "request_end",
            "valid number",
        ),
        (_set("requests", value={}), "requests.successful", "is missing"),
    ],
)
def test_unsupported_run_is_rejected_with_field_value_and_rule(
    change: Change, name: str, rule: str
) -> None:
    found = refused(CLOUD, benchmark(change))
    assert name in found.partition(" ")[0]
    assert rule in found


@pytest.mark.parametrize("version", [1, 3, "2", None])
def test_report_of_another_schema_is_rejected(version: object) -> None:
    report = document(HOME)
    report["metadata"]["version"] = version
    assert refused(CLOUD, report).startswith("metadata.version is ")


def test_report_before_0_5_without_a_version_is_rejected() -> None:
    report = document(HOME)
    del report["metadata"]
    assert refused(CLOUD, report).startswith("metadata.version is missing: the file has another")


def test_unknown_claim_is_rejected() -> None:
    report = document(HOME)
    report["config"]["metadata"]["labels"] = {"measurement_type": "fast"}
    assert refused(CLOUD, report).startswith("config.metadata.labels.measurement_type is 'fast'")


@pytest.mark.parametrize("found", [[], "file", None, {}, {"benchmarks": []}])
def test_other_document_is_rejected(found: object) -> None:
    assert refused(CLOUD, found)

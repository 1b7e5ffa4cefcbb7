"""Parsing summaries of AIPerf and of MLPerf's tool: recorded ones, with and without changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from orch_sidecar.tools.facts.evidence.imported import ImportedRun, Rejection, read_run, to_row
from orch_sidecar.tools.facts.evidence.summaries import aiperf, mlperf_endpoints
from orch_sidecar.tools.facts.labels.measured import Engine, Source
from orch_sidecar.tools.facts.tables.notes import Arrivals
from orch_sidecar.tools.facts.tables.row import Label
from tests.orch_sidecar.tools.facts.imports import document, proof

Change = Callable[[dict[str, Any]], Any]
NAMED = Source("run-1", "tiny")
RUNS = {"aiperf_cloud": aiperf, "mlperf_cloud": mlperf_endpoints}


def found_in(name: str, change: Change = lambda summary: None) -> ImportedRun | Rejection:
    summary: dict[str, Any] = document(name)
    change(summary)
    return read_run(lambda: RUNS[name](summary))


def run_in(name: str, change: Change = lambda summary: None) -> ImportedRun:
    found = found_in(name, change)
    assert isinstance(found, ImportedRun), found
    return found


def phase(**fields: Any) -> Change:
    return lambda summary: summary["input_config"]["phases"][0].update(fields)


def load(**fields: Any) -> Change:
    return lambda summary: summary["run_config"]["load_pattern"].update(fields)


def test_tokens_are_those_that_the_engine_reported() -> None:
    found = run_in("aiperf_cloud")
    assert (found.tool, found.model) == ("aiperf 0.13.0", "tiny")
    assert (found.arrivals, found.at_once, found.failed) == (Arrivals.CLOSED_LOOP, 4, 0)
    # 40 answers of 16 tokens, whose text AIPerf tokenized to 900.
    assert (found.totals.requests, found.totals.output_tokens) == (40, 640)
    assert found.totals.tokens_per_s == pytest.approx(640 / 8.4067, rel=1e-4)


def test_tokens_of_a_tool_that_has_none_of_the_engine_are_the_engines_counts() -> None:
    row = to_row(run_in("mlperf_cloud"), proof("mlperf_cloud"), NAMED)
    # 40 answers of 16 tokens, whose text the tool tokenized to 899.
    assert row.throughput_tokens_per_sec == pytest.approx(640 / 1.652324903)
    assert (row.input_tokens, row.model_id) == (36, "tiny")
    with pytest.raises(Rejection, match="give --model-id"):
        to_row(run_in("mlperf_cloud"), proof("mlperf_cloud"), Source("run-1"))


@pytest.mark.parametrize("name", RUNS)
def test_states_of_the_engine_earn_the_label(name: str) -> None:
    found = run_in(name)
    row = to_row(found, proof(name), NAMED)
    assert (row.measurement_type, row.batch, row.output_tokens) == (Label.BATCHED_ONLINE, 4, 16)
    assert sorted(found.latency_ms) == [
        "latency_p50_ms", "latency_p90_ms", "latency_p95_ms", "ttft_p50_ms", "ttft_p95_ms",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "change", "duration"),
    [
        ("aiperf_cloud", lambda summary: summary["benchmark_duration"].update(avg=8.0), "8"),
        ("mlperf_cloud", lambda summary: summary.update(duration_ns=1_600_000_000), "1.6"),
    ],
)
def test_duration_in_which_the_clients_cannot_have_had_their_answers_is_rejected(
    name: str, change: Change, duration: str
) -> None:
    rule = f"the duration '{duration} s': is too short: at most 4 at a time"
    with pytest.raises(Rejection, match=rule):
        to_row(run_in(name, change), proof(name), NAMED)


@pytest.mark.parametrize(
    ("name", "change", "arrivals", "rate", "at_once"),
    [
        ("aiperf_cloud", phase(type="poisson", rate=8.0), Arrivals.POISSON, 8.0, 4),
        ("mlperf_cloud", load(target_concurrency=1), Arrivals.ONE_BY_ONE, None, 1),
        ("mlperf_cloud", load(type="max_throughput"), Arrivals.AT_ONCE, None, None),
        ("mlperf_cloud", load(type="poisson", target_qps=8.0), Arrivals.POISSON, 8.0, None),
    ],
)
def test_pattern_of_the_load_tells_the_arrivals(
    name: str, change: Change, arrivals: Arrivals, rate: float | None, at_once: int | None
) -> None:
    run = run_in(name, change)
    assert (run.arrivals, run.rate_per_s, run.at_once) == (arrivals, rate, at_once)
    # The times of a schedule begin with the sending.
    assert (run.latency_ms == {}) is (arrivals is Arrivals.POISSON)


@pytest.mark.parametrize("failed", [0, 1])
def test_run_whose_tokens_no_engine_counted_is_rejected(failed: int) -> None:
    known = proof("mlperf_cloud") if failed else Engine("vLLM 0.32.0", "BF16", "H100", 1)
    run = run_in("mlperf_cloud", lambda file: file.update(n_samples_completed=40 - failed))
    with pytest.raises(Rejection, match="the tool counts tokens of the text"):
        to_row(run, known, NAMED)


@pytest.mark.parametrize(
    ("name", "change", "field"),
    [
        ("aiperf_cloud", phase(type="user_centric"), "input_config.phases.0.type"),
        ("aiperf_cloud", phase(name="warmup"), "input_config.phases"),
        ("aiperf_cloud", lambda file: file.update(was_cancelled=True), "was_cancelled"),
        ("aiperf_cloud", lambda file: file.update(schema_version="2.0"), "schema_version"),
        ("aiperf_cloud", lambda file: file.pop("total_usage_completion_tokens"),
         "total_usage_completion_tokens.avg"),
        ("mlperf_cloud", load(type="agentic_inference"), "run_config.load_pattern.type"),
        ("mlperf_cloud", lambda file: file.update(complete=False), "complete"),
        ("mlperf_cloud", lambda file: file.update(run_config=None), "run_config.load_pattern.type"),
        ("mlperf_cloud", lambda file: file.update(n_samples_completed=0), "n_samples_completed"),
    ],
)  # fmt: skip
def test_summary_that_says_something_else_is_rejected_by_its_field(
    name: str, change: Change, field: str
) -> None:
    found = found_in(name, change)
    assert isinstance(found, Rejection), found
    assert found.name == field

"""Parsing summaries of MLPerf's tool for endpoints: a recorded one, with and without changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from orch_sidecar.tools.facts.evidence.imported import (
    ImportedRun,
    Rejection,
    read_run,
    to_row,
)
from orch_sidecar.tools.facts.evidence.summaries import mlperf_endpoints
from orch_sidecar.tools.facts.labels.measured import Engine, Source
from orch_sidecar.tools.facts.tables.notes import Arrivals
from orch_sidecar.tools.facts.tables.row import Label
from tests.orch_sidecar.tools.facts.imports import document, proof

Change = Callable[[dict[str, Any]], Any]
NAMED = Source("run-1", "tiny", None)


def found_in(change: Change = lambda summary: None) -> ImportedRun | Rejection:
    summary: dict[str, Any] = document("mlperf_cloud")
    change(summary)
    return read_run(lambda: mlperf_endpoints(summary))


def load(**fields: Any) -> Change:
    return lambda summary: summary["run_config"]["load_pattern"].update(fields)


def run_in(change: Change = lambda summary: None) -> ImportedRun:
    found = found_in(change)
    assert isinstance(found, ImportedRun), found
    return found


def test_states_of_the_engine_earn_the_label_and_have_the_tokens() -> None:
    made = run_in()
    row = to_row(made, proof("mlperf_cloud"), NAMED)
    assert (row.measurement_type, row.batch, row.model_id) == (Label.BATCHED_ONLINE, 4, "tiny")
    # 40 answers of 16 tokens, whose text the tool tokenized to 899.
    assert row.throughput_tokens_per_sec == pytest.approx(640 / 1.652324903)
    assert (row.input_tokens, row.output_tokens) == (36, 16)
    assert made.latency_ms["ttft_p50_ms"] == pytest.approx(132.73314)
    assert len(made.latency_ms) == 5


@pytest.mark.parametrize(
    ("change", "arrivals", "rate", "at_once"),
    [
        (load(target_concurrency=1), Arrivals.ONE_BY_ONE, None, 1),
        (load(type="max_throughput", target_concurrency=None), Arrivals.AT_ONCE, None, None),
        (load(type="poisson", target_qps=8.0), Arrivals.POISSON, 8.0, None),
    ],
)
def test_pattern_of_the_load_tells_the_arrivals(
    change: Change, arrivals: Arrivals, rate: float | None, at_once: int | None
) -> None:
    made = run_in(change)
    assert (made.arrivals, made.rate_per_s, made.at_once) == (arrivals, rate, at_once)
    # The times of a schedule begin with the sending.
    assert (made.latency_ms == {}) is (arrivals is Arrivals.POISSON)


@pytest.mark.parametrize("failed", [0, 1])
def test_run_whose_tokens_no_engine_counted_is_rejected(failed: int) -> None:
    known = proof("mlperf_cloud") if failed else Engine("vLLM 0.32.0", "BF16", "H100", 1)
    made = run_in(lambda summary: summary.update(n_samples_completed=40 - failed))
    with pytest.raises(Rejection, match="the tool counts tokens of the text"):
        to_row(made, known, NAMED)


def test_duration_in_which_the_clients_cannot_have_had_their_answers_is_rejected() -> None:
    made = run_in(lambda summary: summary.update(duration_ns=1_600_000_000))
    with pytest.raises(Rejection, match=r"the duration '1.6 s': is too short: at most 4 at a time"):
        to_row(made, proof("mlperf_cloud"), NAMED)


def test_model_has_to_be_named() -> None:
    with pytest.raises(Rejection, match="give --model-id"):
        to_row(run_in(), proof("mlperf_cloud"), Source("run-1"))


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (load(type="agentic_inference"), "run_config.load_pattern.type"),
        (lambda summary: summary.update(complete=False), "complete"),
        (lambda summary: summary.update(run_config=None), "run_config.load_pattern.type"),
        (lambda summary: summary.update(n_samples_completed=0), "n_samples_completed"),
    ],
)
def test_summary_that_says_something_else_is_rejected_by_its_field(
    change: Change, name: str
) -> None:
    found = found_in(change)
    assert isinstance(found, Rejection), found
    assert found.name == name

"""Parsing a summary of AIPerf: a recorded one, with and without changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from orch_sidecar.tools.facts.evidence.imported import to_row
from orch_sidecar.tools.facts.labels.measured import Source
from orch_sidecar.tools.facts.tables.notes import Arrivals
from orch_sidecar.tools.facts.tables.row import Label
from tests.orch_sidecar.tools.facts.imports import changed, load, measured, proof, refused

Change = Callable[[dict[str, Any]], Any]
NAME, SOURCE = "aiperf_cloud", Source("run-1")


def phase(**fields: Any) -> Change:
    return lambda summary: summary["input_config"]["phases"][0].update(fields)


def test_tokens_are_those_that_the_engine_reported() -> None:
    found = measured(NAME)
    assert (found.named["tool"], found.model) == ("aiperf 0.13.0", "tiny")
    assert (load(found).arrivals, load(found).clients, found.failed) == (Arrivals.CLOSED_LOOP, 4, 0)
    # 40 answers of 16 tokens, whose text AIPerf tokenized to 900.
    assert (found.totals.requests, found.totals.output_tokens) == (40, 640)
    assert found.totals.tokens_per_s == pytest.approx(640 / 8.4067, rel=1e-4)


def test_states_of_the_engine_earn_the_label() -> None:
    found = measured(NAME)
    row = to_row(found, proof(NAME), SOURCE)
    assert (row.measurement_type, row.batch, row.output_tokens) == (Label.BATCHED_ONLINE, 4, 16)
    assert sorted(found.latency_ms) == [
        "latency_p50_ms", "latency_p90_ms", "latency_p95_ms", "ttft_p50_ms", "ttft_p95_ms",
    ]  # fmt: skip


def test_duration_in_which_the_clients_cannot_have_had_their_answers_is_rejected() -> None:
    file = changed(NAME, lambda summary: summary["benchmark_duration"].update(avg=8.0))
    assert "the duration '8 s': is too short: at most 4 at a time" in refused(NAME, file)


def test_schedule_has_its_rate_and_no_times_from_the_sending() -> None:
    found = measured(NAME, changed(NAME, phase(type="poisson", rate=8.0)))
    assert (load(found).arrivals, load(found).rate_per_s, load(found).clients) == (
        Arrivals.POISSON,
        8.0,
        4,
    )
    assert found.latency_ms == {}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (phase(type="user_centric"), "input_config.phases.0.type"),
        (phase(name="warmup"), "input_config.phases"),
        (lambda file: file.update(was_cancelled=True), "was_cancelled"),
        (lambda file: file.update(schema_version="2.0"), "schema_version"),
        (lambda file: file.pop("total_usage_completion_tokens"),
         "total_usage_completion_tokens.avg"),
    ],
)  # fmt: skip
def test_summary_that_says_something_else_is_rejected_by_its_field(
    change: Change, field: str
) -> None:
    assert refused(NAME, changed(NAME, change)).startswith(f"{field} ")

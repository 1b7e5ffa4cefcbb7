"""Parsing a summary of AIPerf: a recorded one, with and without changes."""

from __future__ import annotations

import pytest

from orch_sidecar.tools.facts.labels.load import Load
from orch_sidecar.tools.facts.tables.notes import Arrivals
from tests.orch_sidecar.tools.facts.imports import changed, measured

NAME = "aiperf_cloud"


def test_tokens_are_those_that_the_engine_reported() -> None:
    found = measured(NAME)
    # 40 answers of 16 tokens, whose text AIPerf tokenized to 900.
    assert found.totals.tokens_per_s == pytest.approx(640 / 8.4067, rel=1e-4)
    assert sorted(found.latency_ms) == [
        "latency_p50_ms", "latency_p90_ms", "latency_p95_ms", "ttft_p50_ms", "ttft_p95_ms",
    ]  # fmt: skip


def test_schedule_has_its_rate_and_no_times_from_the_sending() -> None:
    phase = {"input_config.phases.0.type": "poisson", "input_config.phases.0.rate": 8.0}
    found = measured(NAME, changed(NAME, phase))
    assert found.load == Load(arrivals=Arrivals.POISSON, clients=4, rate_per_s=8.0)
    assert found.latency_ms == {}

"""What a request must keep, and how a scenario is described."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orch_sidecar.tools.bench.load.scenario import Slo
from orch_sidecar.tools.facts.labels.figures import CompletedRequest
from orch_sidecar.tools.facts.tables.notes import Arrivals
from tests.orch_sidecar.tools.bench.sample_results import OFFLINE, ONLINE, SINGLE

# TTFT 100 ms, TPOT 10 ms, latency 200 ms.
SERVED = CompletedRequest(0.0, 0.1, 0.2, 32, 11)


@pytest.mark.parametrize(
    ("slo", "kept"),
    [
        (Slo(), True),
        (Slo(ttft_ms=100.0), True),
        (Slo(ttft_ms=99.0), False),
        (Slo(tpot_ms=10.001), True),
        (Slo(tpot_ms=9.9), False),
        (Slo(latency_ms=200.0), True),
        (Slo(latency_ms=199.0), False),
        (Slo(ttft_ms=100.0, latency_ms=199.0), False),
    ],
)
def test_every_bound_must_be_kept(slo: Slo, kept: bool) -> None:
    assert slo.kept_by(SERVED) is kept


def test_answer_of_one_token_has_no_time_per_token_to_keep() -> None:
    assert Slo(tpot_ms=1.0).kept_by(replace(SERVED, output_tokens=1))


def test_answer_without_a_first_token_misses_the_ttft_bound() -> None:
    unseen = replace(SERVED, first_token_s=None)
    assert not Slo(ttft_ms=1000.0).kept_by(unseen)
    assert not Slo(tpot_ms=1000.0).kept_by(unseen)
    assert Slo(latency_ms=200.0).kept_by(unseen)


def test_scenarios_are_described_as_text() -> None:
    gamma = replace(ONLINE, arrivals=Arrivals.GAMMA, burstiness=0.5)
    closed = replace(ONLINE, arrivals=Arrivals.CLOSED_LOOP, rate_per_s=None, clients=8)
    assert [each.text for each in (SINGLE, OFFLINE, ONLINE, gamma, closed)] == [
        "one by one",
        "at once",
        "poisson at 10/s",
        "gamma (burstiness 0.5) at 10/s",
        "closed loop of 8",
    ]

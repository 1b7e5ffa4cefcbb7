"""Rows that differ from what their own client recorded, beside honest evidence of the engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orch_sidecar.tools.facts.signing.client_calls import call_contradictions
from orch_sidecar.tools.facts.signing.evidence_file import digest, evidence_of
from orch_sidecar.tools.facts.signing.verdict import Verdict, verify_evidence
from orch_sidecar.tools.facts.tables.row import Row
from tests.orch_sidecar.tools.facts.signing.signed import (
    Operator,
    SigningEngine,
    result_of,
    row_of,
)

SLO = {"slo_ms": {"ttft": 20.0, "latency": 61.0}}
LATENCIES = {"latency_p50_ms": 62, "tpot_p50_ms": 10.1}


def honest(**notes: Any) -> tuple[Row, dict[str, Any]]:
    """Three answers at once: none of them met the SLO."""
    row = row_of(notes=LATENCIES | {"goodput_share": 0.0, "arrivals": "closed_loop"} | notes)
    return row, result_of(row) | {"scenario": SLO}


def test_row_is_what_its_client_recorded() -> None:
    assert call_contradictions(*honest()) == []


def test_slow_row_is_rounded_and_an_older_record_has_no_classes() -> None:
    row, result = honest(window_s=900.0, latency_p50_ms=900_000, tpot_p50_ms=179_997.7)
    calls = [[*call[:3], 900.0, *call[4:-1]] for call in result["calls"]]
    row = replace(row, throughput_tokens_per_sec=0.02)
    assert call_contradictions(row, result | {"calls": calls}) == []


FORGERIES: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("a tenth of TTFT", {"ttft_p50_ms": 1.15}, "ttft_p50_ms is 1.15, the client recorded 11.5"),
    ("a tenth of the latency", {"latency_p50_ms": 6.2}, "latency_p50_ms is 6.2, the client"),
    ("a tenth of TPOT", {"tpot_p50_ms": 1.01}, "tpot_p50_ms is 1.01, the client recorded 10.1"),
    ("a percentile", {"latency_p95_ms": 70}, "latency_p95_ms is 70, the client recorded 62"),
    ("goodput", {"goodput_share": 0.99}, "goodput_share is 0.99, the client recorded 0"),
    ("a schedule", {"arrivals": "poisson"}, "arrivals is poisson, the client's requests had no"),
    ("failures", {"failed": 2}, "failed is 2, the client recorded 0"),
    ("refusals", {"refused": 1}, "refused is 1, the client recorded 0"),
    ("the window", {"window_s": 0.064}, "window_s is 0.064, the client recorded 0.062"),
    ("a class", {"latency_of": "interactive"}, "latency_p50_ms is 62, the client recorded 0"),
    ("a bottleneck", {"client_bottleneck": "yes"}, "client_bottleneck is yes, the client"),
)


@pytest.mark.parametrize(
    ("change", "reason"), [each[1:] for each in FORGERIES], ids=[each[0] for each in FORGERIES]
)
def test_row_that_differs_from_its_clients_record(change: dict[str, Any], reason: str) -> None:
    _, result = honest()
    row, _ = honest(**change)
    assert reason in "; ".join(call_contradictions(row, result))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"client": {"bottleneck": ["it used 97% of one core"]}}, "client_bottleneck is absent"),
        ({"calls": []}, "no valid calls: List should have at least 1 item"),
        ({"calls": [[1, 2]]}, "no valid calls.0"),
        ({"calls": [[0.0, 0.0, 0.01, 0.0, 200, "answered", "", 20, 6, None, None]]}, "no length"),
    ],
)
def test_record_that_is_not_that_of_the_row(change: dict[str, Any], reason: str) -> None:
    row, result = honest()
    assert reason in "; ".join(call_contradictions(row, result | change))


def test_schedule_of_a_client_that_waited_for_answers_is_another_load() -> None:
    row, result = honest()
    calls = [[0.0, *call[1:]] for call in result["calls"]]
    found = call_contradictions(row, result | {"calls": calls})
    assert found == ["arrivals is closed_loop, the client's requests had a schedule"]


@pytest.mark.parametrize("result", [{}, {"calls": [], "client": {"bottleneck": []}}])
def test_evidence_without_the_clients_record_is_none(result: dict[str, Any]) -> None:
    operator = Operator()
    content, _ = evidence_of(SigningEngine(operator).measure(), row_of(), result)
    found = verify_evidence(digest(content), content, operator.trusted())
    assert found.verdict is Verdict.FAILED
    assert "the client's result has no valid" in found.reasons[0]

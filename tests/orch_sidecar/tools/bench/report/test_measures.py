"""Figures of reports are those of the result."""

from __future__ import annotations

import pytest

from orch_sidecar.tools.bench.report.measures import measures_of
from orch_sidecar.tools.bench.results.result import Result
from tests.orch_sidecar.tools.bench.report.sample_reports import of_two_classes, online
from tests.orch_sidecar.tools.bench.sample_results import OFFLINE, refused, result


def values(found: Result) -> dict[str, float]:
    return {each.title: each.estimate.value for each in measures_of(found)}


def test_figures_equal_those_of_the_result() -> None:
    found = online()
    assert found.figures is not None
    assert found.goodput is not None
    assert found.figures.ttft_ms is not None
    assert found.figures.tpot_ms is not None
    assert found.figures.queue_ms is not None
    figures = values(found)
    assert figures["throughput"] == pytest.approx(found.figures.tokens_per_s, rel=1e-4)
    assert figures["answers"] == pytest.approx(found.figures.requests_per_s, rel=1e-4)
    assert figures["within the SLO"] == pytest.approx(found.goodput.share, abs=1e-4)
    assert figures["goodput"] == pytest.approx(found.goodput.requests_per_s, rel=1e-4)
    for name, spread in {
        "TTFT": found.figures.ttft_ms,
        "TPOT": found.figures.tpot_ms,
        "latency": found.figures.latency_ms,
        "wait": found.figures.queue_ms,
    }.items():
        for at in ("p50", "p90", "p95", "p99"):
            assert figures[f"{name} {at}"] == pytest.approx(getattr(spread, at), rel=1e-3), name


def test_classes_have_figures_of_their_own() -> None:
    figures = values(of_two_classes())
    assert {"interactive TTFT p50", "bulk TTFT p50", "interactive goodput", "throughput"} <= set(
        figures
    )
    assert "bulk goodput" not in figures, "the SLO is that of interactive requests"
    assert "TTFT p50" not in figures


def test_offline_run_has_throughput_alone() -> None:
    found = online()
    offline = result([], OFFLINE).model_copy(
        update={"calls": found.calls, "figures": found.figures}
    )
    assert set(values(offline)) == {"throughput", "answers"}


def test_run_without_an_answer_has_no_figures() -> None:
    assert measures_of(result([refused(0.0)])) == []

"""Figures of reports are those of the result."""

from __future__ import annotations

import pytest

from orch_sidecar.tools.bench.report.measures import (
    Bins,
    bins_of,
    generating,
    measures_of,
    served,
    tokens,
    waiting,
)
from orch_sidecar.tools.bench.results.result import Result
from tests.orch_sidecar.tools.bench.report.sample_reports import of_two_classes, online
from tests.orch_sidecar.tools.bench.sample_results import (
    OFFLINE,
    answered,
    in_a_row,
    refused,
    result,
)


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


def test_amounts_are_spread_over_their_time_and_none_is_lost() -> None:
    bins = Bins(0.0, 10.0, 5)
    sums = bins.spread([((1.0, 5.0), 8.0), ((9.0, 9.0), 1.0), ((10.0, 10.0), 2.0)])
    assert sums == pytest.approx([2.0, 4.0, 2.0, 0.0, 3.0])
    assert bins.edges == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]


def test_mean_is_of_the_time_that_spans_are_open() -> None:
    assert Bins(0.0, 4.0, 2).mean([(0.0, 4.0), (1.0, 2.0)]) == pytest.approx([1.5, 1.0])


def test_window_is_from_the_first_arrival_to_the_last_end() -> None:
    found = result([answered(0.5), answered(2.0, first_s=0.1)])
    completed = list(served(found.calls))
    bins = bins_of(completed, 10)
    assert bins is not None
    assert (bins.begin_s, bins.end_s) == pytest.approx((0.5, 2.2))
    assert found.figures is not None
    assert bins.end_s - bins.begin_s == pytest.approx(found.figures.window_s)
    assert bins_of([], 10) is None


def test_generation_and_wait_of_a_request() -> None:
    [request] = result([answered(1.0, queue_ms=50.0)]).calls
    assert list(generating([request])) == [pytest.approx((1.1, 1.2))]
    assert list(waiting([request])) == [pytest.approx((1.0, 1.05))]
    [(span, count)] = tokens([request])
    assert span == pytest.approx((1.1, 1.2))
    assert count == 11.0


def test_request_without_an_answer_generates_nothing() -> None:
    requests = result([refused(0.0), *in_a_row(2)]).calls
    assert len(list(generating(requests))) == 2
    assert len(list(tokens(requests))) == 2
    assert list(waiting(requests)) == []

"""What a run did over time."""

from __future__ import annotations

import pytest

from orch_sidecar.tools.bench.report.measures import (
    Bins,
    bins_of,
    generating,
    served,
    tokens,
    waiting,
)
from tests.orch_sidecar.tools.bench.sample_results import answered, in_a_row, refused, result


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

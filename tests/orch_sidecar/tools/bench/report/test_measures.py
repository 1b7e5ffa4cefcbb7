"""The figures of a run over time, and their intervals."""

from __future__ import annotations

import random
from collections.abc import Iterator
from statistics import fmean, median

import pytest

from orch_sidecar.tools.bench.report.measures import (
    Estimate,
    edges_of,
    estimated,
    measures_of,
    of_percentile,
    of_sections,
    spread,
    tokens,
)
from orch_sidecar.tools.bench.results.result import Result
from orch_sidecar.tools.facts.labels.intervals import Interval
from orch_sidecar.tools.facts.labels.recorded import answers
from tests.orch_sidecar.tools.bench.report.sample_reports import of_two_classes, online
from tests.orch_sidecar.tools.bench.sample_results import (
    OFFLINE,
    answered,
    refused,
    result,
)


def dependent(count: int, generator: random.Random, correlation: float = 0.8) -> Iterator[float]:
    """Normal values, each of which depends on the one before; their median is 10."""
    value = generator.gauss(0, 1)
    for _ in range(count):
        value = correlation * value + generator.gauss(0, (1 - correlation**2) ** 0.5)
        yield 10 + value


def test_interval_of_dependent_values_covers_the_median_about_as_often_as_stated() -> None:
    """95 of 100; an interval for independent values would cover it less than 60 times."""
    generator = random.Random(1)
    covered = []
    for _ in range(200):
        found = of_percentile(list(dependent(400, generator)), 50)
        assert found is not None
        if found.margin is not None:
            covered.append(abs(found.value - 10) <= found.margin)
    assert len(covered) >= 160, "few of them drift"
    assert sum(covered) >= 0.88 * len(covered)


def test_figure_that_follows_a_trend_has_no_interval() -> None:
    generator = random.Random(1)
    growing = [number / 40 + generator.gauss(0, 1) for number in range(400)]
    found = of_percentile(growing, 50)
    assert found is not None
    assert (found.drifts, found.margin) == (True, None)
    steady = of_percentile([generator.gauss(5, 1) for _ in range(400)], 50)
    assert steady is not None
    assert not steady.drifts


@pytest.mark.parametrize(("p", "least"), [(50, 20), (90, 100), (95, 200), (99, 1000)])
def test_percentile_without_enough_values_in_a_section_has_no_interval(
    p: float, least: int
) -> None:
    generator = random.Random(4)
    values = [generator.random() for _ in range(least)]
    found = of_percentile(values, p), of_percentile(values[:-1], p)
    assert [each is not None and each.margin is not None for each in found] == [True, False]


def test_figure_of_values_or_of_sections() -> None:
    assert of_percentile([], 50) is of_sections([], fmean) is None
    assert of_percentile([3.0] * 100, 50) == Estimate(3.0, 0.0), "constant"
    assert of_sections([True] * 19, fmean) == Estimate(1.0, None), "too few"
    share = of_sections([True, True, True, False] * 10, fmean)
    assert share is not None
    assert share.value == 0.75
    assert share.margin is not None
    # Ten sections, each of which deviates by 10.
    rate = estimated(30.0, [20.0, 40.0] * 5)
    assert rate.margin == pytest.approx(2.262157 * (10 * 100 / 90) ** 0.5)


def values(found: Result) -> dict[str, float]:
    return {name: each.estimate.value for name, each in measures_of(found).items()}


def test_figures_equal_those_of_the_result() -> None:
    found = online()
    assert found.figures is not None
    assert found.goodput is not None
    figures = values(found)
    assert figures["throughput"] == pytest.approx(found.tokens_per_s)
    per_s = found.figures.requests / found.figures.window_s
    assert figures["answers"] == pytest.approx(per_s)
    assert figures["within the SLO"] == pytest.approx(found.goodput.share, abs=1e-4)
    assert figures["goodput"] == pytest.approx(found.goodput.requests / found.figures.window_s)
    for name in ("ttft", "tpot", "latency"):
        spread, shown = found.figures.times_s[name], name if name == "latency" else name.upper()
        for at in ("p50", "p90", "p95", "p99"):
            assert figures[f"{shown} {at}"] == pytest.approx(1000 * getattr(spread, at)), name
    waits = [call.queue_ms for call in found.calls if call.queue_ms is not None]
    assert figures["wait p50"] == pytest.approx(median(waits))


def test_figures_beside_bulk_work_are_those_of_interactive_requests() -> None:
    found = of_two_classes()
    figures, calls = values(found), found.calls
    ttft = [each.ttft_s for each in answers(calls[1::3] + calls[2::3]) if each.ttft_s is not None]
    assert figures["TTFT p50"] == pytest.approx(1000 * median(ttft))
    assert figures["throughput"] == pytest.approx(found.tokens_per_s), "of all"


def test_offline_run_has_throughput_alone_and_one_without_an_answer_nothing() -> None:
    update = {"calls": online().calls, "figures": online().figures}
    assert set(values(result([], OFFLINE).model_copy(update=update))) == {"throughput", "answers"}
    assert measures_of(result([refused(0.0)])) == {}


def test_amounts_are_spread_over_their_time_and_none_is_lost() -> None:
    times = (Interval(1.0, 5.0), 8.0), (Interval(9.0, 9.0), 1.0), (Interval(10.0, 10.0), 2.0)
    found = spread(times, [0.0, 2.0, 4.0, 6.0, 8.0, 10.0])
    assert found == pytest.approx([2.0, 4.0, 2.0, 0.0, 3.0])


def test_window_is_from_the_first_arrival_to_the_last_end() -> None:
    found = result([answered(0.5), answered(2.0, first_s=0.1)])
    edges = edges_of(answers(found.calls), 10)
    assert (len(edges), edges[0], edges[-1]) == pytest.approx((11, 0.5, 2.2))
    assert found.figures is not None
    assert edges[-1] - edges[0] == pytest.approx(found.figures.window_s)
    assert edges_of([], 10) == []


def test_tokens_come_from_the_first_to_the_last_and_none_without_an_answer() -> None:
    requests = result([refused(0.0), answered(1.0, queue_ms=50.0)]).calls
    [(time, count)] = tokens(answers(requests))
    assert (time.start, time.end, count) == pytest.approx((1.1, 1.2, 11.0))

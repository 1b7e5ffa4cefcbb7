"""When bulk requests gather for a batch, and how often they arrive."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from orch_sidecar.admission.constraints.window import AVERAGE_S, ArrivalRate
from orch_sidecar.admission.types import AdmissionRequest, BlockedBy
from tests.orch_sidecar.admission.bench import Bench
from tests.orch_sidecar.admission.examples import (
    STEP_TIME,
    bulk,
    class_rules,
    interactive,
    rules,
)
from vllm_plugin.profile import Bounds


def bench_at(per_second: float, until: float = 2.0, window_ms: int = 50) -> Bench:
    """An idle engine to which bulk requests have come at that rate."""
    window = Bounds(least=window_ms, most=window_ms)
    bench = Bench(8, rules(bulk=class_rules(queue_capacity=64), window_ms=window))
    for number in range(int(until * per_second)):
        bench.constraints.window.arrived((number + 1) / per_second)
    return bench


def test_window_opens_if_another_request_is_expected_within_it() -> None:
    assert bench_at(per_second=25.0).constraints.opens_window(bulk(), 2.0)
    assert not bench_at(per_second=16.0).constraints.opens_window(bulk(), 2.0)


def test_window_opens_only_while_the_engine_is_idle() -> None:
    leased, foreign = bench_at(per_second=100.0), bench_at(per_second=100.0)
    leased.grant(interactive(), 2.0)
    foreign.ledger.foreign = 1
    assert not leased.constraints.opens_window(bulk(), 2.0)
    assert not foreign.constraints.opens_window(bulk(), 2.0)


@pytest.mark.parametrize(
    ("ends_at", "held_s"),
    [(2.01, 0.01), (2.05, 0.05), (9.0, 0.05)],  # the last: its first request had left
)
def test_windows_and_their_durations_are_counted(ends_at: float, held_s: float) -> None:
    bench = bench_at(per_second=100.0)
    assert (bench.constraints.window.count, bench.constraints.window.seconds) == (0, 0.0)
    bench.constraints.opens_window(bulk(), 2.0)
    bench.grant(interactive(), ends_at)
    assert bench.constraints.window.count == 1
    assert bench.constraints.window.seconds == pytest.approx(held_s)
    bench.grant(bulk(), ends_at)
    assert bench.constraints.window.seconds == pytest.approx(held_s)


def test_window_that_is_ended_or_followed_by_another_is_counted_once() -> None:
    bench = bench_at(per_second=100.0)
    bench.constraints.opens_window(bulk(), 2.0)
    assert bench.constraints.closes_window(bulk(may_queue=False), 2.02)
    bench.constraints.opens_window(bulk(), 2.1)
    bench.constraints.opens_window(bulk(), 2.2)  # the first request of the last one had left
    bench.grant(bulk(), 2.23)
    assert bench.constraints.window.count == 3
    assert bench.constraints.window.seconds == pytest.approx(0.02 + 0.05 + 0.03)


def test_window_is_of_no_use_to_one_that_fills_it() -> None:
    assert not bench_at(per_second=100.0).constraints.opens_window(bulk(8), 2.0)


@pytest.mark.parametrize(
    "arriving", [bulk(may_queue=False), bulk(max_wait_ms=50.0), bulk(deadline_ms=50.0)]
)
def test_a_request_that_may_not_wait_neither_opens_nor_bears_a_window(
    arriving: AdmissionRequest,
) -> None:
    bench = bench_at(per_second=100.0)
    assert not bench.constraints.opens_window(arriving, 2.0)
    assert bench.constraints.opens_window(bulk(max_wait_ms=51.0, deadline_ms=51.0), 2.0)
    assert not bench.constraints.closes_window(bulk(), 2.0)
    assert bench.blocked_by(bulk(), 2.0) is BlockedBy.WINDOW
    assert bench.constraints.closes_window(arriving, 1.99)
    assert bench.blocked_by(bulk(), 2.0) is None


@pytest.mark.parametrize("promise", [bulk(deadline_ms=160.0), bulk()])
def test_a_request_whose_first_token_would_come_too_late_bears_no_window(
    promise: AdmissionRequest,
) -> None:
    """A prompt of 100 ms and a step of 11 ms leave less than the window of 50 ms."""
    bench = bench_at(per_second=100.0)
    if promise.deadline_ms is None:
        of_class = bench.constraints.rules.bulk.model_copy(update={"ttft_p95_ms": 160.0})
        bench.constraints.rules = rules(bulk=of_class)
    assert bench.constraints.opens_window(replace(promise, prompt_tokens=100), 2.0), (
        "nothing is known"
    )
    bench.service_times.step_time, bench.service_times.prefill_tokens_per_s = STEP_TIME, 1000.0
    assert not bench.constraints.closes_window(replace(promise, prompt_tokens=50), 2.0)
    assert bench.constraints.closes_window(replace(promise, prompt_tokens=100), 2.0)
    assert not bench.constraints.opens_window(replace(promise, prompt_tokens=100), 2.0)
    assert bench.constraints.opens_window(replace(promise, prompt_tokens=50), 2.0)


def test_window_closes_in_time_or_when_it_is_full() -> None:
    bench = bench_at(per_second=100.0)
    bench.constraints.opens_window(bulk(), 2.0)
    bench.wait(bulk())
    assert bench.constraints.clears_at(BlockedBy.WINDOW, 2.0) == 2.05
    assert bench.blocked_by(bulk(), 2.049) is BlockedBy.WINDOW
    assert bench.blocked_by(bulk(), 2.05) is None
    bench.wait(bulk(7), "more")
    assert bench.blocked_by(bulk(), 2.0) is None


def test_window_ends_with_any_dispatch() -> None:
    bench = bench_at(per_second=100.0)
    bench.constraints.opens_window(bulk(), 2.0)
    assert bench.blocked_by(interactive(), 2.0) is None
    bench.release(bench.grant(interactive(), 2.0), 2.01)
    assert bench.blocked_by(bulk(), 2.01) is None


# The rate of arrivals


def steady(per_second: float, until: float) -> ArrivalRate:
    rate = ArrivalRate()
    for number in range(int(until * per_second)):
        rate.arrived((number + 1) / per_second)
    return rate


def test_nothing_came_yet() -> None:
    assert ArrivalRate().per_second(5.0) == 0


@pytest.mark.parametrize("per_second", [50.0, 500.0])
def test_steady_arrivals_are_counted_per_second(per_second: float) -> None:
    rate = steady(per_second, 5.0)
    assert rate.per_second(5.0) == pytest.approx(per_second, rel=0.03)


def test_without_the_last_arrival_the_rate_is_that_of_the_others() -> None:
    rate = ArrivalRate()
    rate.arrived(3.0)
    assert rate.per_second(3.0) - ArrivalRate.one == 0


def test_rate_falls_by_half_in_the_time_of_the_average() -> None:
    rate = steady(100.0, 5.0)
    half_s = AVERAGE_S * math.log(2)
    assert 0.25 <= half_s <= 0.5
    assert rate.per_second(5.0 + half_s) == pytest.approx(rate.per_second(5.0) / 2)


def test_a_long_pause_is_no_trouble() -> None:
    rate = steady(100.0, 5.0)
    assert rate.per_second(1e6) == 0
    rate.arrived(1e6)
    assert rate.per_second(1e6) == ArrivalRate.one

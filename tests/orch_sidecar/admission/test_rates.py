"""How often requests come, and how many interactive ones there lately were."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_sidecar.admission.rates import AVERAGE_S, CLAIM_S, ArrivalRate, RecentPeak


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


def test_peak_of_nothing_is_zero() -> None:
    assert RecentPeak().value(7.0) == 0


def test_peak_is_the_largest_seen() -> None:
    peak = RecentPeak()
    for at, value in ((0.0, 3), (1.0, 7), (2.0, 1)):
        peak.saw(value, at)
    assert peak.value(2.0) == 7


@pytest.mark.parametrize("looked_at", [(), (4.9,), (5.1,), (9.9,), (3.0, 6.0, 9.0)])
def test_peak_is_forgotten_after_ten_seconds_however_often_it_is_looked_at(
    looked_at: tuple[float, ...],
) -> None:
    peak = RecentPeak()
    peak.saw(7, 0.0)
    for at in looked_at:
        assert peak.value(at) == 7
    assert peak.value(CLAIM_S) == 0


@given(
    st.lists(st.tuples(st.floats(0, 3), st.integers(0, 9), st.booleans()), max_size=40),
    st.floats(0, 12),
)
def test_peak_is_that_of_the_last_five_to_ten_seconds(
    steps: list[tuple[float, int, bool]], later_s: float
) -> None:
    peak, now, seen = RecentPeak(), 0.0, list[tuple[float, int]]()
    for passed_s, value, looks in steps:
        now += passed_s
        peak.saw(value, now)
        seen.append((now, value))
        if looks:
            peak.value(now)
    now += later_s
    certain = [value for at, value in seen if now - at < CLAIM_S / 2 - 1e-6]
    possible = [value for at, value in seen if now - at < CLAIM_S + 1e-6]
    assert max(certain, default=0) <= peak.value(now) <= max(possible, default=0)

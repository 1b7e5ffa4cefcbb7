"""How often requests come."""

from __future__ import annotations

import math

import pytest

from orch_sidecar.admission.constraints.arrivals import AVERAGE_S, ArrivalRate


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

"""How many slots requests ask for, whatever becomes of them."""

from __future__ import annotations

import random
from dataclasses import replace
from math import exp, sqrt

import pytest

from orch_sidecar.admission.prediction.demand import (
    DEFAULT_TOKENS,
    FAST_WINDOW_S,
    MAX_REFUSALS,
    Demand,
    ServicePace,
)
from orch_sidecar.admission.types import AdmissionRequest
from tests.orch_sidecar.admission.examples import interactive

SLOTS = 16
LENT_S = 10.0


def request_of(work: float, key: bytes = b"", weight: float = 1.0) -> AdmissionRequest:
    return replace(interactive(), work=work, key=key, weight=weight)


def of_slots(slots: int) -> Demand:
    demand = Demand()
    demand.slots_total, demand.lent_s = slots, LENT_S
    return demand


def a_second_for(tokens: float, slots: int = SLOTS) -> Demand:
    """Requests of so many expected tokens take a second."""
    demand = of_slots(slots)
    demand.pace.completed(tokens, 1.0)
    demand.update(100.0)
    return demand


def arrive(demand: Demand, per_s: float, seconds: float) -> float:
    """Requests of 10 tokens at equal intervals from 100 s on; returns the demand at the last."""
    asked = 0.0
    for number in range(int(per_s * seconds)):
        now = 100.0 + number / per_s
        asked = demand.update(now)
        demand.arrivals.append((now, request_of(10)))
    return asked


def test_without_requests_there_is_no_demand() -> None:
    assert Demand().update(100.0) == 0


def test_what_idle_requests_expect_of_others_is_the_demand_and_changes_nothing() -> None:
    asked, alone = a_second_for(10), a_second_for(10)
    for demand in (asked, alone):
        arrive(demand, per_s=8, seconds=60)
        demand.count_arrivals()
    for at in (160.5, 161.0, 163.0):
        expected = asked.expect(at)
    assert expected == asked.update(163.0) == alone.update(163.0) > 0


def test_demand_is_arrivals_times_service_time_times_slots() -> None:
    assert arrive(a_second_for(10), per_s=8, seconds=60) == pytest.approx(8, rel=0.05)
    assert arrive(a_second_for(20), per_s=8, seconds=60) == pytest.approx(4, rel=0.05)


def test_a_step_of_the_load_shows_within_a_second_but_for_its_standard_error() -> None:
    asked = arrive(a_second_for(10), per_s=40, seconds=1)
    fast = 40 * (1 - exp(-1 / FAST_WINDOW_S))
    assert asked == pytest.approx(fast - sqrt(fast / (2 * FAST_WINDOW_S)), rel=0.15)


def test_a_few_requests_by_chance_are_no_step_of_the_load() -> None:
    demand = a_second_for(10)
    for _ in range(2):
        demand.arrivals.append((100.1, request_of(10)))
    assert demand.update(100.2) <= 1.5


def test_demand_falls_over_the_time_for_which_a_lent_slot_is_gone() -> None:
    demand = a_second_for(10)
    arrive(demand, per_s=8, seconds=60)
    assert demand.update(160.0) == pytest.approx(8, rel=0.1)
    assert demand.update(160.0 + LENT_S) == pytest.approx(8 / 2.718, rel=0.1)
    assert demand.update(160.0 + 20 * LENT_S) < 1e-3


def test_poisson_arrivals_are_measured_without_bias() -> None:
    """The larger of two averages is above the mean, by less than a third of the deviation."""
    demand, chance, now, seen = a_second_for(10), random.Random(5), 100.0, []
    for _ in range(4000):
        now += chance.expovariate(8.0)
        demand.arrivals.append((now, request_of(10)))
        seen.append(demand.update(now))
    assert 8 * 0.95 <= sum(seen[1000:]) / 3000 <= 8 + sqrt(8) / 3


def test_a_long_pause_does_not_hide_a_burst() -> None:
    demand = a_second_for(10)
    for _ in range(67):
        demand.arrivals.append((500.0, request_of(10)))
    assert demand.update(500.2) > 30


def test_wrong_expectations_correct_themselves() -> None:
    """Three times too many tokens were expected, or a third: the seconds were measured."""
    for wrong in (1 / 3, 3):
        demand = of_slots(SLOTS)
        demand.update(100.0)
        for _ in range(50):
            demand.pace.completed(wrong * 10, 2.0)
        for number in range(480):
            now = 100.0 + number / 4
            demand.arrivals.append((now, request_of(wrong * 10)))
            asked = demand.update(now)
        assert asked == pytest.approx(8, rel=0.05)


def test_before_a_request_has_completed_a_common_one_takes_a_second() -> None:
    pace = ServicePace()
    assert pace.token_s * DEFAULT_TOKENS == 1
    pace.completed(100.0, 5.0)
    assert (pace.token_s, pace.service_s) == (0.05, 5.0)


# Requests that do not count


def test_a_retry_before_its_time_is_the_same_request() -> None:
    demand = Demand()
    retry = replace(interactive(), key=b"k", identity=7)
    demand.refused(retry, 105.0, 100.0)
    assert demand.is_retry(retry, 104.9)
    assert not demand.is_retry(retry, 105.0), "it waited as it was asked to"
    assert not demand.is_retry(replace(retry, key=b"other"), 101.0)
    assert not demand.is_retry(replace(retry, identity=8), 101.0)


def test_a_client_that_repeats_its_request_asks_for_its_slots_once() -> None:
    """However short the Retry-After is."""
    demand = a_second_for(10)
    retry = replace(interactive(), identity=7, work=50.0)
    demand.refused(retry, 100.1, 100.0)
    assert demand.is_retry(retry, 104.9), "it would have been served for 5 s"
    assert not demand.is_retry(retry, 105.1)


def test_refused_requests_are_forgotten_after_their_time_and_bounded() -> None:
    demand = Demand()
    for number in range(MAX_REFUSALS + 10):
        demand.refused(replace(interactive(), key=b"k", identity=number + 1), 105.0, 100.0)
    assert demand.retries
    assert len(demand.retries) == MAX_REFUSALS
    demand.update(106.0)
    assert not demand.retries


def test_a_withdrawn_request_leaves_nothing_behind() -> None:
    demand, kept = a_second_for(10), a_second_for(10)
    for each in (demand, kept):
        arrive(each, per_s=8, seconds=30)
    demand.arrivals.append((130.0, request_of(1000)))
    for tick in range(10):
        demand.update(130.0 + tick / 10)
    demand.withdrawn(request_of(1000), 1.0, 131.0)
    for tick in range(100):
        asked, expected = (each.update(131.0 + tick / 10) for each in (demand, kept))
    assert asked == pytest.approx(expected, rel=0.1)


def test_a_key_counts_for_its_weights_share_where_not_all_can_be_served() -> None:
    demand = a_second_for(10)
    for number in range(600):
        now = 100.0 + number / 10
        demand.arrivals.append((now, request_of(100, b"greedy")))
        if not number % 5:
            demand.arrivals.append((now, request_of(10, b"small", weight=3.0)))
        asked = demand.update(now)
    assert asked == pytest.approx(SLOTS / 4 + 2, rel=0.1), "of 100 slots that it asks for"


def test_another_weight_of_a_key_counts_from_its_next_request_on() -> None:
    demand = a_second_for(10)
    for number in range(1200):
        now = 100.0 + number / 10
        demand.arrivals.append(
            (now, request_of(100, b"greedy", weight=1.0 if number < 600 else 3.0))
        )
        if not number % 5:
            demand.arrivals.append((now, request_of(10, b"small")))
        asked = demand.update(now)
        if number == 599:
            assert asked == pytest.approx(SLOTS / 2 + 2, rel=0.1)
    assert asked == pytest.approx(SLOTS * 3 / 4 + 2, rel=0.1)


def test_a_key_alone_may_ask_for_everything() -> None:
    demand = a_second_for(10)
    for number in range(600):
        now = 100.0 + number / 10
        demand.arrivals.append((now, request_of(100, b"greedy")))
        asked = demand.update(now)
    assert asked == pytest.approx(100, rel=0.1)


def test_keys_that_ask_no_longer_are_forgotten() -> None:
    demand = a_second_for(10)
    for number in range(50):
        demand.arrivals.append((100.0, request_of(10, str(number).encode())))
    demand.update(101.0)
    assert len(demand._keys) == 50
    demand.update(400.0)
    assert not demand._keys


def test_a_step_of_the_load_shows_within_a_second_with_thousands_of_keys() -> None:
    """What each of them asks for may be known later."""
    demand, now = a_second_for(100.0), 1000.0
    for number in range(20_000):
        now += 5e-3 if number < 4000 else 2.5e-4
        demand.arrivals.append((now, request_of(100.0 * 16 / 4000, b"%d" % (number % 4000))))
        if number == 4000 + 4000:
            assert demand.update(now) > 0.75 * 16
    assert demand.update(now) == pytest.approx(16, rel=0.1)

"""Looking for the largest rate that keeps an SLO."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_sidecar.tools.bench.load.call import Call
from orch_sidecar.tools.bench.runs.series import RateSearch
from orch_sidecar.tools.sizing.tune import RATES
from tests.orch_sidecar.tools.bench.sample_results import (
    ONLINE,
    answered,
    in_a_row,
    refused,
    result,
)

SLO = replace(ONLINE, slo_ms={"ttft": 200.0})
KEPT = result(in_a_row(100), SLO)
MISSED = result([refused(0.0)], SLO)


def search(first_per_s: float, most_per_s: float, **rules: Any) -> RateSearch:
    """One that has ended, on an engine that can do so much."""
    found = RateSearch(first_per_s, inf, **rules)
    while not found.done:
        found.record(KEPT if found.next_per_s <= most_per_s else MISSED)
    return found


LATE = answered(9.9, first_s=0.3)


@pytest.mark.parametrize(
    ("calls", "is_kept", "share"),
    [
        (in_a_row(100), True, 1.0),
        ([*in_a_row(99), LATE], True, 0.99),
        ([*in_a_row(98), LATE, LATE], False, 0.98),
        ([*in_a_row(98), refused(1.0), refused(1.0)], False, 0.98),  # turned away, not kept
        ([*in_a_row(296), *3 * [refused(1.0)]], False, 0.99),  # 98.997 %, rounded
        ([refused(0.0)], False, 0.0),
    ],
)
def test_one_in_a_hundred_may_miss_and_two_may_not(
    calls: list[Call], is_kept: bool, share: float
) -> None:
    found = RateSearch(4.0, inf)
    trial = found.record(result(calls, SLO))
    assert found.trials == [trial]
    stated = trial.rate_per_s, trial.requests, trial.share, trial.kept
    assert stated == (4.0, len(calls), share, is_kept)


@given(first_per_s=st.floats(0.1, 100.0), most_per_s=st.floats(0.05, 1000.0))
def test_it_comes_within_its_precision(first_per_s: float, most_per_s: float) -> None:
    found = search(first_per_s, most_per_s)
    assert found.best is not None
    best_per_s = found.best.rate_per_s
    assert best_per_s <= most_per_s <= best_per_s * (1 + found.precision) * 1.0001
    assert len(found.trials) <= found.most_trials


@pytest.mark.parametrize("first_per_s", [2.0, 4.0, 6.0])
def test_few_trials_are_enough_for_a_rate_and_one_above_it(first_per_s: float) -> None:
    found = search(first_per_s, 4.2, **RATES)
    assert found.best is not None
    assert found.missed is not None
    assert found.best.rate_per_s <= 4.2 < found.missed.rate_per_s
    assert found.missed.rate_per_s == pytest.approx(1.25 * found.best.rate_per_s)
    assert len(found.trials) <= RATES["most_trials"]


def test_search_from_a_rate_far_off_gives_up_after_its_trials() -> None:
    low, high = search(100.0, 1.0, **RATES), search(1.0, 100.0, **RATES)
    assert (low.best, len(low.trials)) == (None, 5)
    assert high.missed is None
    assert high.best is not None
    assert high.best.rate_per_s == pytest.approx(1.25**4)


def test_rates_that_would_take_too_long_to_try_are_not_halved_to() -> None:
    found = RateSearch(8.0, 100 / 7.5)
    while not found.done:
        found.record(MISSED)
    assert [trial.rate_per_s for trial in found.trials] == [8.0, 4.0, 2.0]
    assert (found.best, found.next_per_s, found.too_slow) == (None, 1.0, True)


def test_first_rate_is_tried_however_long_it_takes_and_higher_ones_are_looked_for() -> None:
    found = RateSearch(1.0, 100 / 7.5)
    assert not found.done
    while not found.done:
        found.record(KEPT if found.next_per_s <= 1.2 else MISSED)
    assert found.best is not None
    assert 1.1 < found.best.rate_per_s <= 1.2
    assert not found.too_slow

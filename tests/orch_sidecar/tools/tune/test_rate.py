"""The search for the largest rate with few trials."""

from __future__ import annotations

import pytest

from orch_sidecar.tools.tune.rate import RateBracket, Trial


def searched(first: float, limit: float) -> RateBracket:
    """A search where every rate up to `limit` keeps the SLO."""
    search = RateBracket(first)
    while not search.done:
        rate = search.next_per_s
        search.record(Trial(rate, 40, 40 if rate <= limit else 0))
    return search


@pytest.mark.parametrize("first", [2.0, 4.0, 6.0])
def test_limit_is_between_the_best_and_the_next_rate(first: float) -> None:
    found = searched(first, 4.2)
    assert found.best is not None
    assert found.missed is not None
    assert found.best.rate_per_s <= 4.2 < found.missed.rate_per_s
    assert found.missed.rate_per_s == pytest.approx(1.25 * found.best.rate_per_s)


def test_search_gives_up_after_five_trials() -> None:
    low, high = searched(100.0, 1.0), searched(1.0, 100.0)
    assert (low.best, len(low.trials)) == (None, 5)
    assert high.missed is None
    assert high.best is not None
    assert high.best.rate_per_s == pytest.approx(1.25**4)


def test_rate_above_one_that_missed_does_not_count() -> None:
    search = RateBracket(4.0)
    search.record(Trial(4.0, 40, 10))
    search.record(Trial(3.2, 40, 10))
    assert search.best is None
    search.trials.append(Trial(5.0, 40, 40))  # luck
    assert search.best is None


def test_interval_shows_how_uncertain_few_requests_are() -> None:
    low, high = Trial(1.0, 40, 38).interval
    assert 0.8 < low < 0.95 < high < 1.0
    assert Trial(1.0, 4000, 3800).interval[0] > 0.94
    with pytest.raises(ValueError, match="the first rate is 0: it must be above 0"):
        RateBracket(0)

"""Rows of the class `idle` beside the conversation trace, on the fitted curve of a GPU."""

from __future__ import annotations

import pytest

from tests.benchmarks.idle.__main__ import OF_BEST
from tests.benchmarks.idle.virtual import Load, outcome


@pytest.mark.parametrize(
    ("load", "numbers", "share"),
    [
        pytest.param(Load(0.4, 0, seconds=60.0), (8, 12, 16), OF_BEST, id="alone"),
        # It takes the loss of bulk requests for greater than it is.
        pytest.param(Load(0.4, 24, seconds=60.0), (24, 32), 0.7, id="beside bulk requests"),
    ],
)
def test_nobody_notices_them_and_as_many_are_done_as_by_the_best_number_set_by_hand(
    load: Load, numbers: tuple[int, ...], share: float
) -> None:
    """In virtual time. At a load at which the 95th percentile is not that of a single burst."""
    without, learned = outcome(load, None, rows=False), outcome(load, None)
    assert learned.keeps_bound(without)
    by_hand = [outcome(load, number) for number in numbers]
    kept = [each.rows_per_s for each in by_hand if each.keeps_bound(without)]
    assert len(kept) < len(by_hand), "more of them at once are noticed"
    assert learned.rows_per_s >= share * max(kept)

"""Rows of the class `idle` beside the conversation trace, on the fitted curve of a GPU."""

from __future__ import annotations

import pytest

from tests.benchmarks.idle.__main__ import OF_BEST
from tests.benchmarks.idle.virtual import POINTS, RATIO, Load, outcome


@pytest.mark.parametrize("bulk_clients", [0, 24])
def test_nobody_notices_them_and_as_many_are_done_as_by_the_best_number_set_by_hand(
    bulk_clients: int,
) -> None:
    """In virtual time, without chance. At half the capacity, for a minute."""
    load = Load(0.5, bulk_clients, seconds=60.0)
    without, learned = outcome(load, None, rows=False), outcome(load, None)
    assert learned.ttft_p95 <= RATIO * without.ttft_p95
    assert learned.refused <= without.refused + POINTS / 100
    by_hand = [outcome(load, way) for way in (4, 6, 8, 12)]
    kept = [each.rows_per_s for each in by_hand if each.ttft_p95 <= RATIO * without.ttft_p95]
    assert len(kept) < len(by_hand), "more of them at once are noticed"
    assert learned.rows_per_s >= OF_BEST * max(kept)

"""Counting what was there at the same time."""

from __future__ import annotations

import pytest

from orch_sidecar.tools.facts.labels import intervals
from orch_sidecar.tools.facts.labels.intervals import Interval
from orch_sidecar.tools.facts.traces.scenarios import uncovered

# Two sequences for four seconds, and one that begins with the last of them and stays three more.
SOME = [Interval(0, 4, 2), Interval(3, 7)]


def test_one_that_ends_when_another_begins_does_not_overlap_it() -> None:
    assert intervals.most(SOME) == 3
    assert intervals.most([Interval(0, 4, 2), Interval(4, 7)]) == 2
    assert intervals.most([]) == 0


def test_share_and_mean_are_of_the_time_in_which_there_was_one() -> None:
    later = [*SOME, Interval(100, 101)]
    assert intervals.share_together(later) == 1 / 8
    assert intervals.time_mean(later, float) == 9 / 8
    assert intervals.share_together([]) == 0


def test_missing_are_those_until_the_last_begins() -> None:
    assert intervals.missing(SOME, 3) == pytest.approx(3 / (3 * 7))
    assert intervals.missing([Interval(5, 5)], 1) == 1


def test_overlapping_ones_began_before_the_end_of_an_earlier_one() -> None:
    assert intervals.overlapping(SOME) == 1
    assert intervals.overlapping(SOME, slack=1) == 0


def test_time_without_others_counts_for_each() -> None:
    assert uncovered([Interval(0, 4), Interval(1, 3)], [Interval(2, 5)]) == 3
    assert uncovered([], SOME) == 0

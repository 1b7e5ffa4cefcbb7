"""Counts what was there at the same time: one sweep over intervals.

Pure. Times are of one clock, in any unit. One that ends when another begins does not overlap it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple


class Interval(NamedTuple):
    """From `start` to `end`, so many sequences."""

    start: float
    end: float
    sequences: int = 1


class Piece(NamedTuple):
    """A part of the time in which nothing changed: how many sequences there were, and intervals."""

    end: float
    length: float
    sequences: int
    intervals: int


def pieces(intervals: Iterable[Interval]) -> Iterator[Piece]:
    """Yields the pieces of time from the first start to the last end; some have no length."""
    changes = sorted(
        change
        for each in intervals
        for change in ((each.start, 1, each.sequences), (each.end, -1, -each.sequences))
    )
    count = sequences = 0
    for (at, one, some), (until, *_) in pairwise(changes):
        count, sequences = count + one, sequences + some
        yield Piece(until, until - at, sequences, count)


def most(intervals: Iterable[Interval]) -> int:
    """Returns the largest number of sequences at once."""
    return max((piece.sequences for piece in pieces(intervals)), default=0)


def time_mean(intervals: Iterable[Interval], of: Callable[[int], float]) -> float:
    """Returns the mean of what a number of intervals is worth, over the time in which there was
    one; 0 without any."""
    found = [piece for piece in pieces(intervals) if piece.intervals]
    length = sum(piece.length for piece in found)
    worth = sum(of(piece.intervals) * piece.length for piece in found)
    return worth / length if length else 0.0


def share_together(intervals: Iterable[Interval]) -> float:
    """Returns for which share of the time in which there was one interval there were several."""
    return time_mean(intervals, lambda count: count > 1)


def missing(intervals: Iterable[Interval], target: float) -> float:
    """Returns which share of `target` sequences over the whole time was not there until the last
    interval began; 1 of a time without a length."""
    known = list(intervals)
    last = max(each.start for each in known)
    length = max(each.end for each in known) - min(each.start for each in known)
    until = (piece for piece in pieces(known) if piece.end <= last)
    lacking = sum(max(0.0, target - piece.sequences) * piece.length for piece in until)
    return lacking / (target * length) if length > 0 else 1.0


def overlapping(intervals: Iterable[Interval], slack: float = 0.0) -> int:
    """Counts the intervals that began before the end of an earlier one, by more than `slack`."""
    count, end = 0, -float("inf")
    for each in sorted(intervals):
        count += each.start < end - slack
        end = max(end, each.end)
    return count

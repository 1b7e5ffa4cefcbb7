"""Estimates figures of one run with 95 % confidence intervals, by sectioning.

Requests that follow each other wait for the same queue and share the same batches, so they are not
independent, and the intervals of independent samples would be too narrow. Sectioning divides the
run into consecutive sections and takes how much the figure of each deviates from that of the whole
(S. Asmussen, P. W. Glynn, Stochastic Simulation, III.5; for quantiles M. K. Nakayama, "Confidence
intervals for quantiles using sectioning when applying variance-reduction techniques", 2014).
A section in which a percentile has too few samples has none, and then there is no interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeVar

from orch_sidecar.tools.facts.labels.figures import percentile

# Between 10 and 30 sections are usual (B. Schmeiser, "Batch size effects in the analysis of
# simulation output", 1982): more of them are too short to be independent.
SECTIONS: Final = 10
# The 97.5th percentile of Student's t with 9 degrees of freedom.
_T: Final = 2.262157

# Of ten independent values, von Neumann's ratio (squared steps over squared deviations) is below
# this in 5 of 100 cases (L. C. Young, "On randomness in ordered sequences", 1941).
_LEAST_RATIO: Final = 1.066

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure. `margin`: half its interval; None where the run is too short for one, or `drifts`:
    its sections follow a trend, as while a queue grows, and a longer run has another figure."""

    value: float
    margin: float | None
    drifts: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """The change from one figure to another, with its interval, None without one.

    Relative changes are shares of the first figure, others are differences.
    """

    value: float
    interval: tuple[float, float] | None

    @property
    def is_shown(self) -> bool:
        """Whether the runs show a change: its interval does not contain 0."""
        return self.interval is not None and not self.interval[0] <= 0 <= self.interval[1]


def of_percentile(values: Sequence[float], p: float) -> Estimate | None:
    """Estimates a percentile of values in the order of their arrival; None without values."""
    whole = percentile(values, p)
    if whole is None:
        return None
    # Below it a section has no sample beyond the percentile.
    least = max(2, math.ceil(100 / (100 - p) - 1e-9))
    if len(values) < SECTIONS * least:
        return Estimate(whole, None)
    found = [percentile(section, p) for section in _sections(values)]
    return _estimate(whole, [each for each in found if each is not None])


def of_share(kept: Sequence[bool]) -> Estimate | None:
    """Estimates the share of requests that are kept, in the order of arrival; None without any."""
    if not kept:
        return None
    whole = sum(kept) / len(kept)
    if len(kept) < 2 * SECTIONS:
        return Estimate(whole, None)
    return _estimate(whole, [sum(section) / len(section) for section in _sections(kept)])


def of_rate(amounts: Sequence[float], seconds: float) -> Estimate:
    """Estimates a rate from the amounts in SECTIONS equal parts of the time."""
    per_s = [SECTIONS * amount / seconds for amount in amounts]
    return _estimate(sum(amounts) / seconds, per_s)


def change(before: Estimate, after: Estimate, *, relative: bool) -> Change | None:
    """Returns the change, None of a figure that is 0 and has no relative one.

    The interval of a ratio is that of the difference of the logarithms (delta method); none of a
    figure whose own interval reaches 0, as its logarithm has no bound.
    """
    known = before.margin is not None and after.margin is not None
    if not relative:
        moved = after.value - before.value
        wide = math.hypot(before.margin or 0.0, after.margin or 0.0)
        return Change(moved, (moved - wide, moved + wide) if known else None)
    if before.value <= 0 or after.value <= 0:
        return None
    ratio = after.value / before.value
    shares = [(each.margin or 0.0) / each.value for each in (before, after)]
    if not known or max(shares) >= 1:
        return Change(ratio - 1, None)
    wide = math.exp(math.hypot(*shares))
    return Change(ratio - 1, (ratio / wide - 1, ratio * wide - 1))


def _estimate(whole: float, sections: Sequence[float]) -> Estimate:
    if _drifts(sections):
        return Estimate(whole, None, drifts=True)
    count = len(sections)
    squares = sum((each - whole) ** 2 for each in sections)
    return Estimate(whole, _T * math.sqrt(squares / (count * (count - 1))))


def _drifts(sections: Sequence[float]) -> bool:
    """Returns whether sections that follow each other are too alike to be independent."""
    mean = sum(sections) / len(sections)
    spread = sum((each - mean) ** 2 for each in sections)
    steps = sum((later - earlier) ** 2 for earlier, later in pairwise(sections))
    return steps < _LEAST_RATIO * spread


def _sections(values: Sequence[_Value]) -> list[Sequence[_Value]]:
    """Divides values into SECTIONS parts whose sizes differ by one at most."""
    bounds = [len(values) * number // SECTIONS for number in range(SECTIONS + 1)]
    return [values[bounds[n] : bounds[n + 1]] for n in range(SECTIONS)]

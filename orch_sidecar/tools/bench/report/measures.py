"""The figures of one run with their 95 % confidence intervals, what it did over time, and the
changes from one run to another.

All by the client's times. The tokens of an answer count as evenly spread between its first and its
last one, as the result has no time of each token; without a first one, from its arrival on.

Intervals are estimated by sectioning. Requests that follow each other wait for the same queue and
share the same batches, so they are not independent, and the intervals of independent samples would
be too narrow. Sectioning divides the run into consecutive sections and takes how much the figure of
each deviates from that of the whole (S. Asmussen, P. W. Glynn, Stochastic Simulation, III.5; for
quantiles M. K. Nakayama, "Confidence intervals for quantiles using sectioning when applying
variance-reduction techniques", 2014). A section in which a percentile has too few samples has none,
and then there is no interval.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Final, TypeVar

from orch_sidecar.tools.arguments import SLO_TIMES
from orch_sidecar.tools.bench.results.result import Result, Status
from orch_sidecar.tools.drawing.texts import NONE, number_text, percent
from orch_sidecar.tools.facts.labels.figures import CompletedRequest, percentile
from orch_sidecar.tools.facts.labels.intervals import Interval
from orch_sidecar.tools.facts.labels.recorded import Call, met_of, waited_for
from orch_sidecar.tools.facts.tables import publication
from orch_sidecar.tools.facts.tables.notes import PERCENTILES
from orch_sidecar.tools.facts.tables.row import Label

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


def of_percentile(values: Sequence[float], p: float) -> Estimate | None:
    """Estimates a percentile of values in the order of their arrival; None without values."""
    # Below it a section has no sample beyond the percentile.
    least = max(2, math.ceil(100 / (100 - p) - 1e-9))
    return _of_sections(values, lambda part: percentile(part, p) or 0.0, least)


def of_share(kept: Sequence[bool]) -> Estimate | None:
    """Estimates the share of requests that are kept, in the order of arrival; None without any."""
    return _of_sections(kept, fmean, 2)


def of_rate(amounts: Sequence[float], seconds: float) -> Estimate:
    """Estimates a rate from the amounts in SECTIONS equal parts of the time."""
    return _estimate(sum(amounts) / seconds, [SECTIONS * each / seconds for each in amounts])


def _of_sections(
    values: Sequence[_Value], figure: Callable[[Sequence[_Value]], float], least: int
) -> Estimate | None:
    """Estimates a figure of values. `least`: the values of a section from which it follows."""
    if len(values) < SECTIONS * least:
        return Estimate(figure(values), None) if values else None
    bounds = [len(values) * number // SECTIONS for number in range(SECTIONS + 1)]
    return _estimate(figure(values), [figure(values[a:b]) for a, b in pairwise(bounds)])


def _estimate(whole: float, sections: Sequence[float]) -> Estimate:
    """Estimates a figure by its deviations in sections, which must be unlike each other enough to
    be independent."""
    mean, count = fmean(sections), len(sections)
    steps = sum((later - earlier) ** 2 for earlier, later in pairwise(sections))
    if steps < _LEAST_RATIO * sum((each - mean) ** 2 for each in sections):
        return Estimate(whole, None, drifts=True)
    squares = sum((each - whole) ** 2 for each in sections)
    return Estimate(whole, _T * math.sqrt(squares / (count * (count - 1))))


Amount = tuple[Interval, float]


def edges_of(completed: Sequence[CompletedRequest], count: int) -> list[float]:
    """Divides the time from the first arrival to the last end; returns the bounds of the parts,
    none without any time."""
    begin_s = min((each.arrived_s for each in completed), default=0.0)
    width_s = (max((each.ended_s for each in completed), default=0.0) - begin_s) / count
    return [begin_s + width_s * number for number in range(count + 1)] if width_s > 0 else []


def spread(amounts: Iterable[Amount], edges: Sequence[float]) -> list[float]:
    """Distributes amounts, each evenly over its time, and returns the sum of each part."""
    sums = [0.0] * (len(edges) - 1)
    for time, amount in amounts:
        first, last = (min(bisect(edges, at), len(sums)) - 1 for at in time[:2])
        for number in range(first, last + 1):
            inside = min(time.end, edges[number + 1]) - max(time.start, edges[number])
            share = 1.0 if first == last else inside / (time.end - time.start)
            sums[number] += share * amount
    return sums


def tokens(completed: Iterable[CompletedRequest]) -> Iterator[Amount]:
    """Yields the tokens of each answer, and the time in which they came."""
    return ((each.generation, float(each.output_tokens)) for each in completed)


@dataclass(frozen=True, slots=True)
class Times:
    """A kind of time, in milliseconds of each request that has it, in the order of arrival.

    `name`: its abbreviation; `title`: in words. `bound_ms`: of the SLO, None without one.
    """

    name: str
    title: str
    values: Sequence[float]
    bound_ms: float | None = None


_SHARE: Final = "%"  # of the requests


@dataclass(frozen=True, slots=True)
class Measure:
    """A figure. `larger_is_better`: what a change means. `early`: of a percentile, MLPerf's
    estimate, None of too few values."""

    name: str
    unit: str
    estimate: Estimate
    larger_is_better: bool = False
    early: float | None = None

    @property
    def is_share(self) -> bool:
        return self.unit == _SHARE

    @property
    def name_and_unit(self) -> str:
        return self.name if self.is_share else f"{self.name}, {self.unit}"

    @property
    def value_text(self) -> str:
        return self._number(self.estimate.value)

    @property
    def text(self) -> str:
        """Its value, with the interval in parentheses where there is one."""
        known = self.estimate.margin is not None
        return f"{self.value_text} ({self.interval_text})" if known else self.value_text

    @property
    def interval_text(self) -> str:
        """Its interval; `-` where the run is too short for one, `drifts` where it is unsteady."""
        value, margin = self.estimate.value, self.estimate.margin
        if margin is None:
            return "drifts" if self.estimate.drifts else NONE
        most = 1.0 if self.is_share else math.inf
        ends = max(0.0, value - margin), min(most, value + margin)
        return " to ".join(map(self._number, ends))

    def _number(self, value: float) -> str:
        return percent(value) if self.is_share else number_text(value)


def served(requests: Iterable[Call]) -> Iterator[CompletedRequest]:
    """Yields the figures of those that were answered, and whose length is known."""
    return (made for each in requests if (made := each.served) is not None)


def measures_of(result: Result) -> dict[str, Measure]:
    """Returns the figures of a run by their names; none without an answer. Raises ValueError.

    Throughput is of all requests, all else of those that somebody waits for.
    """
    answers = list(served(result.calls))
    found = _rate("throughput", "tokens/s", answers, tokens(answers))
    found += _rate("answers", "requests/s", answers, _ends(answers))
    calls, bounds_ms = _waited_for(result), result.scenario.slo_ms
    if bounds_ms and result.status is not Status.INVALID:  # an SLO is kept by what was measured
        share = of_share(met_of(calls, bounds_ms))
        if share is not None and any(call.served for call in calls):
            found.append(Measure("within the SLO", _SHARE, share, True))
        good = (each for each in served(calls) if each.meets(bounds_ms))
        found += _rate("goodput", "requests/s", list(served(calls)), _ends(good))
    for times in times_of(result):
        for at, p in percentiles_of(len(times.values)).items():
            estimate = of_percentile(times.values, p)
            early = publication.estimate(sorted(times.values), p)
            if estimate is not None:
                found.append(Measure(f"{times.name} {at}", "ms", estimate, early=early))
    if result.measurement_type is not Label.OFFLINE:
        rates = [each.output_tokens / each.latency_s for each in served(calls) if each.latency_s]
        if (median := of_percentile(rates, 50.0)) is not None:  # what one user gets
            found.append(Measure("per stream p50", "tokens/s", median, True))
    return {each.name: each for each in found}


def percentiles_of(count: int) -> dict[str, float]:
    """Returns the percentiles that so many values can give: one of them is beyond it at least."""
    return {f"p{p}": p for p in PERCENTILES if p <= 50 or count * (100 - p) >= 100}


def times_of(result: Result) -> list[Times]:
    """Returns the times of answers; none of an offline run, where all wait for all."""
    if result.measurement_type is Label.OFFLINE:
        return []
    calls, found = _waited_for(result), []
    for name, text in SLO_TIMES.items():
        known = (each.times_s[name] for each in served(calls))
        values = [1000 * each_s for each_s in known if each_s is not None]
        short = name if name == "latency" else name.upper()
        found.append(Times(short, text.capitalize(), values, result.scenario.slo_ms.get(name)))
    waits = [each.queue_ms for each in calls if each.served and each.queue_ms is not None]
    found.append(Times("wait", "Wait for a slot, by the sidecar's report", waits))
    return [times for times in found if times.values]


def _waited_for(result: Result) -> Sequence[Call]:
    return waited_for(result.calls, result.scenario.trace)


def _rate(
    name: str, unit: str, answers: Sequence[CompletedRequest], amounts: Iterable[Amount]
) -> list[Measure]:
    """Returns what came in a second of the time in which there were answers."""
    edges = edges_of(answers, SECTIONS)
    if not edges:
        return []
    estimate = of_rate(spread(amounts, edges), edges[-1] - edges[0])
    return [Measure(name, unit, estimate, True)]


def _ends(completed: Iterable[CompletedRequest]) -> Iterator[Amount]:
    return ((Interval(each.ended_s, each.ended_s), 1.0) for each in completed)


@dataclass(frozen=True, slots=True)
class Compared:
    """A figure of two results."""

    before: Measure
    after: Measure

    @property
    def change(self) -> tuple[float | None, tuple[float, float] | None]:
        """The change as a share of the first, None of a figure that is 0; of a share, the
        difference. With its interval, None without one.

        The interval of a ratio is that of the difference of the logarithms (delta method); none of
        a figure whose own interval reaches 0, as its logarithm has no bound.
        """
        before, after = self.before.estimate, self.after.estimate
        known = before.margin is not None and after.margin is not None
        if self.before.is_share:
            moved = after.value - before.value
            wide = math.hypot(before.margin or 0.0, after.margin or 0.0)
            return moved, (moved - wide, moved + wide) if known else None
        if before.value <= 0 or after.value <= 0:
            return None, None
        ratio = after.value / before.value
        shares = [(each.margin or 0.0) / each.value for each in (before, after)]
        if not known or max(shares) >= 1:
            return ratio - 1, None
        wide = math.exp(math.hypot(*shares))
        return ratio - 1, (ratio / wide - 1, ratio * wide - 1)

    @property
    def verdict(self) -> str:
        """Whether the second is better: a finding only where the interval leaves no doubt."""
        change, interval = self.change
        if self.before.estimate.drifts or self.after.estimate.drifts:
            return "unknown: drifts"
        if change is None or interval is None:
            return "unknown: too short"
        if interval[0] <= 0 <= interval[1]:
            return "no difference shown"
        return "better" if (change > 0) is self.before.larger_is_better else "worse"

    @property
    def change_text(self) -> str:
        """The change with its interval."""
        change, interval = self.change
        if change is None:
            return NONE
        if interval is None:
            return self._percent(change)
        low, high = map(self._percent, interval)
        return f"{self._percent(change)} ({low} to {high})"

    def _percent(self, value: float) -> str:
        # A share changes by percentage points: 40 % to 50 % is not 25 %.
        return f"{100 * value:+.1f} {'points' if self.before.is_share else '%'}"


def compared(before: Result, after: Result) -> list[Compared]:
    """Compares the figures that both results have. Raises ValueError."""
    second = measures_of(after)
    return [
        Compared(each, second[name]) for name, each in measures_of(before).items() if name in second
    ]

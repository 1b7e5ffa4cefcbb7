"""The figures of one run with their 95 % confidence intervals, what it did over time, and the
changes from one run to another.

All by the client's times. The tokens of an answer count as evenly spread between its first and its
last one, as the result has no time of each token; without a first one, from its arrival on.

Intervals are estimated by sectioning, which docs/reference/bench.md explains (S. Asmussen,
P. W. Glynn, Stochastic Simulation, III.5; for quantiles M. K. Nakayama, "Confidence intervals for
quantiles using sectioning when applying variance-reduction techniques", 2014).
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress, pairwise
from statistics import fmean
from typing import Final, TypeVar

from orch_sidecar.tools.arguments import SLO_TIMES
from orch_sidecar.tools.bench.results.result import Result, Status
from orch_sidecar.tools.drawing.texts import NONE, number_text, percent
from orch_sidecar.tools.facts.labels.figures import CompletedRequest, percentile
from orch_sidecar.tools.facts.labels.intervals import Interval
from orch_sidecar.tools.facts.labels.recorded import answers, met_of, waited_for
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

_SHARE: Final = "%"  # of the requests
_TIME: Final = "ms"

_Value = TypeVar("_Value")
Amount = tuple[Interval, float]


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
    return of_sections(values, lambda part: percentile(part, p) or 0.0, least)


def of_sections(
    values: Sequence[_Value], figure: Callable[[Sequence[_Value]], float], least: int = 2
) -> Estimate | None:
    """Estimates a figure of values in the order of arrival; None without values.

    `least`: the values of a section from which it follows.
    """
    if len(values) < SECTIONS * least:
        return Estimate(figure(values), None) if values else None
    bounds = [len(values) * number // SECTIONS for number in range(SECTIONS + 1)]
    return estimated(figure(values), [figure(values[a:b]) for a, b in pairwise(bounds)])


def estimated(whole: float, sections: Sequence[float]) -> Estimate:
    """Estimates a figure by its deviations in sections, which must be unlike each other enough to
    be independent."""
    mean, count = fmean(sections), len(sections)
    steps = sum((later - earlier) ** 2 for earlier, later in pairwise(sections))
    if steps < _LEAST_RATIO * sum((each - mean) ** 2 for each in sections):
        return Estimate(whole, None, drifts=True)
    squares = sum((each - whole) ** 2 for each in sections)
    return Estimate(whole, _T * math.sqrt(squares / (count * (count - 1))))


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

    `title`: its name in words. `bound_ms`: of the SLO, None without one.
    """

    title: str
    values: Sequence[float]
    bound_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Measure:
    """A figure. `early`: of a percentile, MLPerf's estimate, None of too few values."""

    name: str
    unit: str
    estimate: Estimate
    early: float | None = None

    @property
    def is_share(self) -> bool:
        return self.unit == _SHARE

    @property
    def name_and_unit(self) -> str:
        return self.name if self.is_share else f"{self.name}, {self.unit}"

    @property
    def texts(self) -> tuple[str, str]:
        """Its value, and its interval: `-` where the run is too short for one, `drifts` where it is
        unsteady."""
        value, margin = self.estimate.value, self.estimate.margin
        number = percent if self.is_share else number_text
        if margin is None:
            return number(value), "drifts" if self.estimate.drifts else NONE
        ends = max(0.0, value - margin), min(1.0 if self.is_share else math.inf, value + margin)
        return number(value), " to ".join(map(number, ends))

    @property
    def text(self) -> str:
        """Its value, with the interval in parentheses where there is one."""
        value, interval = self.texts
        return value if self.estimate.margin is None else f"{value} ({interval})"

    def change(self, after: Measure) -> tuple[float, ...]:
        """Returns the change to the figure of another result as a share of this one, of a share the
        difference, and the ends of its interval, if it has one. Empty for a figure that is 0.

        The interval of a ratio is that of the difference of the logarithms (delta method); none of
        a figure whose own interval reaches 0, as its logarithm has no bound.
        """
        one, other = self.estimate, after.estimate
        known = one.margin is not None and other.margin is not None
        if self.is_share:
            moved, wide = other.value - one.value, math.hypot(one.margin or 0, other.margin or 0)
            return (moved, moved - wide, moved + wide) if known else (moved,)
        if one.value <= 0 or other.value <= 0:
            return ()
        ratio = other.value / one.value
        shares = [(each.margin or 0.0) / each.value for each in (one, other)]
        if not known or max(shares) >= 1:
            return (ratio - 1,)
        wide = math.exp(math.hypot(*shares))
        return ratio - 1, ratio / wide - 1, ratio * wide - 1

    def change_text(self, after: Measure) -> str:
        """Returns the change with its interval; of a share in percentage points: 40 % to 50 % is
        not 25 %."""
        unit = "points" if self.is_share else "%"
        text, *ends = [f"{100 * each:+.1f} {unit}" for each in self.change(after)] or [NONE]
        return f"{text} ({' to '.join(ends)})" if ends else text

    def verdict(self, after: Measure) -> str:
        """Returns whether the other is better: only where the interval leaves no doubt."""
        if self.estimate.drifts or after.estimate.drifts:
            return "unknown: drifts"
        change, *ends = self.change(after) or (0.0,)
        if not ends:
            return "unknown: too short"
        if ends[0] <= 0 <= ends[1]:
            return "no difference shown"
        return "better" if (change < 0) is (self.unit == _TIME) else "worse"


def measures_of(result: Result) -> dict[str, Measure]:
    """Returns the figures of a run by their names; none without an answer. Raises ValueError.

    Throughput is of all requests, all else of those that somebody waits for.
    """
    found: dict[str, Measure] = {}

    def add(name: str, unit: str, estimate: Estimate | None, early: float | None = None) -> None:
        if estimate is not None:
            found[name] = Measure(name, unit, estimate, early)

    made, calls = answers(result.calls), waited_for(result.calls, result.scenario)
    add("throughput", "tokens/s", _rate(made, tokens(made)))
    add("answers", "requests/s", _rate(made, _ends(made)))
    made, met = answers(calls), met_of(result.calls, result.scenario)
    if made and result.status is not Status.INVALID:  # an SLO is kept by what was measured
        add("within the SLO", _SHARE, of_sections(met, fmean))
        if met:
            add("goodput", "requests/s", _rate(made, _ends(answers(compress(calls, met)))))
    for name, times in times_of(result).items():
        for at, p in percentiles_of(len(times.values)).items():
            early = publication.estimate(sorted(times.values), p)
            add(f"{name} {at}", _TIME, of_percentile(times.values, p), early)
    if result.measurement_type is not Label.OFFLINE:
        rates = [each.output_tokens / each.latency_s for each in made if each.latency_s]
        add("per stream p50", "tokens/s", of_percentile(rates, 50.0))  # what one user gets
    return found


def percentiles_of(count: int) -> dict[str, float]:
    """Returns the percentiles that so many values can give: one of them is beyond it at least."""
    return {f"p{p}": p for p in PERCENTILES if p <= 50 or count * (100 - p) >= 100}


def times_of(result: Result) -> dict[str, Times]:
    """Returns the times of answers by their abbreviations; none of an offline run, where all wait
    for all."""
    if result.measurement_type is Label.OFFLINE:
        return {}
    calls, found = waited_for(result.calls, result.scenario), dict[str, Times]()
    for name, text in SLO_TIMES.items():
        known = (each.times_s[name] for each in answers(calls))
        values = [1000 * each_s for each_s in known if each_s is not None]
        short = name if name == "latency" else name.upper()
        found[short] = Times(text.capitalize(), values, result.scenario.slo_ms.get(name))
    waits = [each.queue_ms for each in calls if each.served and each.queue_ms is not None]
    found["wait"] = Times("Wait for a slot, by the sidecar's report", waits)
    return {name: times for name, times in found.items() if times.values}


def _rate(made: Sequence[CompletedRequest], amounts: Iterable[Amount]) -> Estimate | None:
    """Estimates what came in a second of the time in which there were answers."""
    if not (edges := edges_of(made, SECTIONS)):
        return None
    seconds, parts = edges[-1] - edges[0], spread(amounts, edges)
    return estimated(sum(parts) / seconds, [SECTIONS * each / seconds for each in parts])


def _ends(completed: Iterable[CompletedRequest]) -> Iterator[Amount]:
    return ((Interval(each.ended_s, each.ended_s), 1.0) for each in completed)

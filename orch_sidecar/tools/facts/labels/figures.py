"""Computes the figures of completed requests, as `docs/explanation/labels.md` defines them.

Pure. Runs of `orch bench`, traces and files of other tools share them. Percentiles interpolate
between the two nearest ranks (numpy's `linear`). Beside each stands MLPerf's estimate of it, which
allows for few samples (`tables.publication`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from orch_sidecar.tools.facts.labels.intervals import Interval
from orch_sidecar.tools.facts.tables.notes import PERCENTILES, TIMES, time_note
from orch_sidecar.tools.facts.tables.publication import estimate

# Those in the notes. Comparisons use TTFT's 50th and 95th, MLPerf's SingleStream latency's 90th.
LATENCIES: Final[Mapping[str, tuple[int, ...]]] = {
    "ttft": (50, 95),
    "tpot": (50, 95),
    "latency": (50, 90, 95),
}


@dataclass(frozen=True, slots=True)
class CompletedRequest:
    """A request that was answered in full. Times are seconds of one clock, counts are tokens.

    `first_token_s`: None where it was not observed (an answer that was not streamed).
    `output_tokens`: of all its sequences. `longest_output_tokens`: of its longest sequence, None
    of a request with one sequence.
    """

    arrived_s: float
    first_token_s: float | None
    ended_s: float
    input_tokens: int
    output_tokens: int
    longest_output_tokens: int | None = None

    @property
    def latency_s(self) -> float:
        return self.ended_s - self.arrived_s

    @property
    def ttft_s(self) -> float | None:
        return None if self.first_token_s is None else self.first_token_s - self.arrived_s

    @property
    def in_flight(self) -> Interval:
        """From its arrival to its end."""
        return Interval(self.arrived_s, self.ended_s)

    @property
    def generation(self) -> Interval:
        """From its first token to its end; from its arrival where that is not known."""
        first_s = self.arrived_s if self.first_token_s is None else self.first_token_s
        return Interval(first_s, self.ended_s)

    @property
    def sequence_tokens(self) -> int:
        """The tokens of its longest sequence."""
        longest = self.longest_output_tokens
        return self.output_tokens if longest is None else longest

    def meets(self, bounds_ms: Mapping[str, float]) -> bool:
        """Returns whether it met all bounds, by the names of the times; without a known first token
        it misses a TTFT."""
        known_s = self.times_s
        if self.sequence_tokens < 2:
            known_s["tpot"] = 0.0  # it has none
        times = ((known_s[name], bound_ms) for name, bound_ms in bounds_ms.items())
        return all(at_s is not None and 1000 * at_s <= bound_ms for at_s, bound_ms in times)

    @property
    def times_s(self) -> dict[str, float | None]:
        """Its times by the names of the notes."""
        return {"ttft": self.ttft_s, "tpot": self.tpot_s, "latency": self.latency_s}

    @property
    def tpot_s(self) -> float | None:
        if self.first_token_s is None or self.sequence_tokens < 2:
            return None
        return (self.ended_s - self.first_token_s) / (self.sequence_tokens - 1)


def percentile(values: Sequence[float], p: float) -> float | None:
    """Returns the p-th percentile, 0 <= p <= 100, in the unit of the values; None of no values."""
    if not values:
        return None
    ordered = sorted(values)
    rank = (len(ordered) - 1) * p / 100
    below = int(rank)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (rank - below)


@dataclass(frozen=True, slots=True)
class Spread:
    """The distribution of some values, in their own unit.

    `most`: the maximum. `early`: the early-stopping estimates by the names of the percentiles,
    without those that have too few values.
    """

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    most: float
    early: Mapping[str, float]


def spread(values: Sequence[float]) -> Spread | None:
    """Returns the distribution of some values, None without values."""
    if not values:
        return None
    ordered = sorted(values)
    at = [percentile(values, p) for p in PERCENTILES]
    p50, p90, p95, p99 = (each for each in at if each is not None)
    found = ((f"p{p}", estimate(ordered, p)) for p in PERCENTILES)
    early = {name: value for name, value in found if value is not None}
    return Spread(sum(values) / len(values), p50, p90, p95, p99, ordered[-1], early)


def scaling(point: tuple[float, float], base: tuple[float, float]) -> tuple[float, float]:
    """Returns the speed-up of a point over a base, both by their size and tokens/s, and its
    efficiency: the speed-up over the growth of the size, 1 of what is perfectly parallel."""
    speed_up = point[1] / base[1]
    return speed_up, speed_up / (point[0] / base[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """The figures of a set of requests. Seconds, sums of tokens; `times_s`: by the names of the
    notes."""

    requests: int
    window_s: float
    input_tokens: int
    output_tokens: int
    times_s: Mapping[str, Spread | None] = field(default_factory=dict)

    @property
    def tokens_per_s(self) -> float:
        """The throughput."""
        return self.output_tokens / self.window_s

    @property
    def latency_ms(self) -> dict[str, float]:
        """The times by the names of the notes: percentiles, and MLPerf's estimates of them."""
        notes: dict[str, float] = {}
        for name, places in LATENCIES.items():
            if (spread := self.times_s.get(name)) is not None:
                notes |= {time_note(name, at): 1000 * getattr(spread, f"p{at}") for at in places}
                early = {
                    time_note(name, at, early=True): spread.early.get(f"p{at}") for at in places
                }
                notes |= {note: 1000 * at_s for note, at_s in early.items() if at_s is not None}
        return notes


def figures(served: Sequence[CompletedRequest]) -> Totals:
    """Computes the figures. Raises ValueError without a request, or if the window has no length."""
    if not served:
        raise ValueError("no request was answered in full")
    window_s = max(each.ended_s for each in served) - min(each.arrived_s for each in served)
    if window_s <= 0:
        raise ValueError("the window from the first arrival to the last end has no length")
    return Totals(
        requests=len(served),
        window_s=window_s,
        input_tokens=sum(each.input_tokens for each in served),
        output_tokens=sum(each.output_tokens for each in served),
        times_s={
            name: spread([at_s for each in served if (at_s := each.times_s[name]) is not None])
            for name in TIMES
        },
    )

"""How requests came to an engine, as their client states it: the load, declared once.

Pure. A result has it as a part of its scenario; a file of another tool gives as much as it knows,
and traces show its arrivals. The requests must have come as it states, by whatever times are known.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated

from pydantic import Field

from orch_sidecar.tools.facts.labels import thresholds
from orch_sidecar.tools.facts.labels.intervals import Interval, missing, most, pieces
from orch_sidecar.tools.facts.tables import notes as names
from orch_sidecar.tools.facts.tables.notes import TIMES, Arrivals, Loop

# By their names; None: not noted.
Notes = Mapping[str, str | int | float | None]

_Time = Annotated[str, Field(pattern=f"^({'|'.join(TIMES)})$")]
_Finite = Annotated[float, Field(allow_inf_nan=False)]


@dataclass(frozen=True, slots=True)
class TraceDocument:
    """The traces that were replayed. `window_s`: the part, in their own seconds; None: to the end.
    `requests`: of that part. `bulk_clients`: clients with bulk work beside them."""

    name: str
    sha256: str
    requests: int
    window_s: tuple[_Finite, _Finite | None]
    time_factor: _Finite
    length_factor: _Finite
    bulk_clients: int = 0
    bulk_name: str | None = None
    bulk_sha256: str | None = None
    bulk_requests: int = 0

    @property
    def has_bulk(self) -> bool:
        return self.bulk_sha256 is not None or self.bulk_clients > 0

    def __str__(self) -> str:
        from_s, until_s = self.window_s
        digits = self.sha256[: names.TRACE_DIGITS]
        parts = [f"{self.requests} requests of the trace {self.name} ({digits})"]
        if from_s or until_s is not None:
            parts.append(f"from {from_s:g} s" + ("" if until_s is None else f" to {until_s:g} s"))
        parts.append(f"times by {self.time_factor:g}, lengths by {self.length_factor:g}")
        if self.bulk_clients:
            parts.append(f"beside {self.bulk_clients} clients with bulk requests")
        if self.bulk_name is not None:
            parts.append(f"beside {self.bulk_requests} bulk requests of {self.bulk_name}")
        return ", ".join(parts)

    @property
    def notes(self) -> Notes:
        """Which trace was replayed, which part of it, and beside what."""
        from_s, until_s = self.window_s
        return {
            "arrivals": f"{Arrivals.TRACE}:{self.sha256[: names.TRACE_DIGITS]}",
            names.TRACE_WINDOW: f"{from_s:.15g}:{'' if until_s is None else f'{until_s:.15g}'}",
            names.TRACE_TIME: self.time_factor,
            names.TRACE_LENGTHS: self.length_factor,
            names.BULK_CLIENTS: self.bulk_clients or None,
            names.BULK_TRACE: self.bulk_sha256 and self.bulk_sha256[: names.TRACE_DIGITS],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How requests came; what is not stated is None.

    `clients`: the limit of concurrent requests, that of a closed loop and 1 of a single stream.
    `rate_per_s`: mean rate of an open loop. `loadgen`: the version of MLCommons' load generator
    that sent them, None if it did not. `trace`: what was replayed. `slo_ms`: the bounds that a
    request must meet to count as goodput, by the names of the times.
    """

    arrivals: Arrivals
    clients: int | None = None
    rate_per_s: _Finite | None = None
    burstiness: _Finite | None = None
    seed: int | None = None
    slo_ms: Mapping[_Time, _Finite] = field(default_factory=dict)
    loadgen: str | None = None
    trace: TraceDocument | None = None

    @property
    def one_by_one(self) -> bool:
        """Whether each request waited for the answer before."""
        return self.arrivals is Arrivals.ONE_BY_ONE or self.clients == 1

    @property
    def looped(self) -> int | None:
        """The clients of a closed loop, also of one beside a trace; None without one."""
        if self.trace is not None:
            return self.trace.bulk_clients
        return self.clients if self.arrivals.loop is Loop.CLOSED else None

    @property
    def text(self) -> str:
        """Describes how requests arrive."""
        name = self.arrivals.replace("_", " ")
        if self.trace is not None:
            return str(self.trace)
        if self.arrivals is Arrivals.CLOSED_LOOP:
            return f"{name} of {self.clients}"
        if self.rate_per_s is None:
            return name
        shape = "" if self.burstiness is None else f" of burstiness {self.burstiness:g}"
        return f"{name} arrivals{shape} at {self.rate_per_s:.4g}/s"

    @property
    def notes(self) -> Notes:
        """How a row notes it, but for the SLO, which is beside what came of it."""
        return {
            "loadgen": self.loadgen,
            "arrivals": self.arrivals.value,
            "rate_per_s": self.rate_per_s,
            "burstiness": self.burstiness,
            "at_once": self.clients,
            **({} if self.trace is None else self.trace.notes),
            "seed": self.seed,
        }


def contradictions(
    load: Load,
    looped: Sequence[Interval],
    scheduled: Sequence[Interval],
    *,
    seen_by_engine: Sequence[Interval] = (),
    may_pause: bool = True,
    exact: bool = False,
) -> Iterator[str]:
    """Yields how the requests of a run came otherwise.

    `looped`: those that a closed loop has sent, if there is one. All its clients begin at once,
    none sends a request before its last one has ended, and each has one in flight, unless it
    `may_pause`. `scheduled`: those that came at once or by a schedule, if there is one, from their
    arrivals to their ends, infinite where they are not known; `exact`: from when they were due.
    """
    if load.looped is not None and looped:
        clients, at_once = load.looped, most(looped)
        lacking = missing(looped, clients) if len(looped) > clients > 0 else 0.0
        if (largest := max(at_once, most(seen_by_engine))) > clients:
            yield f"at_once is {clients}, {largest} requests were in flight at once"
        elif at_once < (1 - thresholds.LACKING) * min(clients, len(looped)):
            yield f"at_once is {clients}, at most {at_once} requests were in flight at once"
        if lacking > thresholds.LACKING and not may_pause:
            yield f"at_once is {clients}, of which {lacking:.0%} had no request in flight"
    if len(scheduled) > 1:
        yield from _of_schedule(load, scheduled, exact=exact)


def _of_schedule(load: Load, requests: Sequence[Interval], *, exact: bool) -> Iterator[str]:
    """Yields how requests came one after the other, as answers ended, or at another rate; of a
    schedule whose gaps are not known, nothing."""
    arrived_s = sorted(each.start for each in requests)
    gaps = [later - earlier for earlier, later in pairwise(arrived_s)]
    rate, total, count, wrong = load.rate_per_s, sum(gaps), len(gaps), False
    if load.arrivals is Arrivals.AT_ONCE:
        ended_s = max((each.end for each in requests if each.end < math.inf), default=math.inf)
        if total > thresholds.LACKING * (ended_s - arrived_s[0]):
            yield f"arrivals is {load.arrivals}, the requests came within {total:.3g} s"
    elif load.arrivals in (Arrivals.POISSON, Arrivals.GAMMA) and total > 0:
        came, likely = _came_as_answers_ended(load, requests, arrived_s, exact=exact)
        if came > likely and _log_chance(likely, came) < math.log(thresholds.UNLIKELY):
            text = f"{came} requests came as answers ended, by chance {likely:.3g} would"
            yield f"arrivals is {load.arrivals}, {text}"
    if rate is None:
        return
    if load.arrivals is Arrivals.CONSTANT:
        slack_s = thresholds.ROUNDING_S + thresholds.CLOCK_RATE / rate
        of_all_s = thresholds.WINDOW_S + thresholds.WINDOW_SHARE * total
        each = any(abs(gap - 1 / rate) > slack_s for gap in gaps)
        wrong = each if exact else abs(total - count / rate) > of_all_s
    elif load.arrivals in (Arrivals.POISSON, Arrivals.GAMMA):
        shape = count * (load.burstiness or 1.0)
        wrong = _log_chance(shape * total * rate / count, shape) < math.log(thresholds.UNLIKELY)
    if wrong:
        yield f"rate_per_s is {rate:g}: {count + 1} requests came within {total:.6g} s"


def _came_as_answers_ended(
    load: Load, requests: Sequence[Interval], arrived_s: Sequence[float], *, exact: bool
) -> tuple[int, float]:
    """Counts the requests that came within `FOLLOWED` of the mean gap after the end of an answer,
    each after another one, and returns how many by random gaps would, at most.

    A Poisson process does not know when answers end (PASTA): in a time that is chosen by what was
    before it, requests come at its rate. The time here is that in which one would be counted. With
    gamma-distributed gaps they come at up to the rate times their shape; where that is below 1, at
    any rate just after another one, and in each such time no more than if it began there. A
    constant or traced schedule may be in step with its answers.
    """
    noted_s = thresholds.RECORDED_S if exact else thresholds.CLIENT_LATE_S
    gap_s, shape = (arrived_s[-1] - arrived_s[0]) / (len(arrived_s) - 1), load.burstiness or 1.0
    waits, came, place = list[Interval](), 0, 0
    for end_s in sorted(each.end for each in requests):
        if (place := bisect_left(arrived_s, end_s, place)) == len(arrived_s):
            break
        until_s = min(arrived_s[place], end_s + thresholds.FOLLOWED * gap_s)
        waits.append(Interval(end_s - noted_s, until_s))  # one before it may be noted after it
        followed = until_s == arrived_s[place]
        came, place = came + followed, place + followed
    if shape >= 1:
        waited_s = sum(piece.length for piece in pieces(waits) if piece.intervals)
        return came, shape * waited_s / gap_s
    # The chance of a gap no longer than x, in its mean over its shape, is below this.
    short = (shape * (thresholds.FOLLOWED + noted_s / gap_s)) ** shape / math.gamma(shape + 1)
    return came, -len(waits) * math.log1p(-short) if short < 1 else math.inf


def _log_chance(total: float, shape: float) -> float:
    """Returns Chernoff's bound of the chance, as a logarithm, that gamma-distributed gaps of that
    shape in all, which is their expectation, are together as far from it as `total`."""
    return shape - total + shape * math.log(total / shape) if total > 0 else -math.inf

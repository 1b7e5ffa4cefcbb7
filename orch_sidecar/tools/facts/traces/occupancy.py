"""Which sequences were in the engines of a scenario, and when.

Pure. Knows what spans tell: those of the engine for what it finished, those of the sidecar for
what was given up. More than they tell of may have been there; a step that had more in it than
were there by them says so.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from orch_sidecar.tools.facts.traces.requests import Decode, Outcome, Traffic
from orch_sidecar.tools.facts.traces.scenarios import Scenario

# Longer than an abort takes to the scheduler, or a step.
_GIVEN_UP_WITHIN_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Stay:
    """Sequences in an engine. `own`: of the scenario. `gone_ns`: when they surely were out."""

    start_ns: int
    end_ns: int
    gone_ns: int
    sequences: int
    own: bool


def stays(scenario: Scenario, traffic: Traffic) -> list[Stay]:
    """All that is told of the scenario's engines."""
    engines = {decode.engine for decode in scenario.decodes}
    pools = {decode.pool for decode in scenario.decodes}
    ids = {
        (request.trace_id, request.span_id)
        for request in (*scenario.requests, *scenario.before, *scenario.after)
    }

    def was_there(decode: Decode) -> bool:
        if decode.engine is None or None in engines:
            return decode.pool in pools
        return decode.engine in engines

    def stay(decode: Decode, *, own: bool) -> Stay:
        return Stay(decode.start_ns, decode.end_ns, decode.end_ns, 1, own)

    found = [stay(decode, own=False) for decode in traffic.strays if was_there(decode)]
    for request in traffic.requests:
        own = (request.trace_id, request.span_id) in ids
        found += [stay(decode, own=own) for decode in request.decodes if was_there(decode)]
        if request.pool == scenario.key.pool:
            # vLLM makes no span for what was given up, and worked on it all the same.
            ended = request.dispatched[:-1] if request.decodes else request.dispatched
            found += [
                Stay(start, end, end + _GIVEN_UP_WITHIN_NS, request.sequences, own)
                for start, end in ended
            ]
    return found


def of_others(scenario: Scenario, there: list[Stay]) -> int:
    """How many sequences of others were there while its requests were served."""
    served = scenario.ended(Outcome.SERVED)
    start_ns = min(request.start_ns for request in served)
    end_ns = max(request.end_ns for request in served)
    return sum(
        stay.sequences
        for stay in there
        if not stay.own and stay.end_ns >= start_ns and stay.start_ns <= end_ns
    )


def with_unseen(scenario: Scenario, there: list[Stay]) -> int:
    """How many of its sequences had a step with more in it than were there by what is told."""
    begun = _Running([(stay.start_ns, stay.sequences) for stay in there])
    gone = _Running([(stay.gone_ns, stay.sequences) for stay in there])
    return sum(
        decode.batch_max > begun.until(decode.end_ns) - gone.before(decode.start_ns)
        for decode in scenario.decodes
        if decode.batch_max is not None
    )


class _Running:
    """How many there were, at times."""

    def __init__(self, changes: list[tuple[int, int]]) -> None:
        changes.sort()
        self._times = [time for time, _ in changes]
        self._totals = list(accumulate((count for _, count in changes), initial=0))

    def until(self, time_ns: int) -> int:
        return self._totals[bisect_right(self._times, time_ns)]

    def before(self, time_ns: int) -> int:
        return self._totals[bisect_left(self._times, time_ns)]

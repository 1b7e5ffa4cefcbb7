"""Determines which sequences occupied the engines of a scenario, and when.

Pure. Spans of the engine show the sequences that it completed, spans of the sidecar those that
were aborted. More may have been there than was traced; a step with a larger batch than the traced
sequences account for shows it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from orch_sidecar.tools.facts.traces.requests import Outcome, Traffic
from orch_sidecar.tools.facts.traces.scenarios import Scenario
from orch_sidecar.tools.facts.traces.sequence import EngineSequence

# Longer than an abort takes to reach the scheduler, and than a step.
ABORT_WITHIN_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Sequences in an engine. `in_scenario`: they are the scenario's own.

    `released_ns`: when they had certainly left the engine.
    """

    start_ns: int
    end_ns: int
    released_ns: int
    sequences: int
    in_scenario: bool


def engine_ahead_ns(scenario: Scenario) -> int:
    """Returns by how much the engine's clock is ahead of the sidecar's at least, negative behind.

    It is the smallest difference by which all sequences lie within their requests; 0 where none
    is needed, or there is none. Hosts that keep their clocks by NTP differ by some milliseconds,
    which is as long as the pause between two runs.
    """
    ahead: list[int] = []
    behind: list[int] = []
    for request in scenario.ended(Outcome.SERVED):
        for each in request.sequences:
            ahead.append(each.end_ns - request.closed_ns)
            behind.append(each.start_ns - request.start_ns)
    least, most = max(ahead, default=0), min(behind, default=0)
    if least > most:
        return 0
    return least if least > 0 else min(most, 0)


def engine_occupancies(scenario: Scenario, traffic: Traffic) -> list[Occupancy]:
    """Returns all traced occupancies of the scenario's engines, by the clock of the sidecar."""
    engines = {sequence.engine for sequence in scenario.sequences}
    pools = {sequence.pool for sequence in scenario.sequences}
    ids = {
        (request.trace_id, request.span_id)
        for request in (*scenario.requests, *scenario.before, *scenario.after)
    }

    def shares_engine(sequence: EngineSequence) -> bool:
        if sequence.engine is None or None in engines:
            return sequence.pool in pools
        return sequence.engine in engines

    sequences = [(sequence, False) for sequence in traffic.orphans]
    aborted: list[Occupancy] = []
    for request in traffic.requests:
        own = (request.trace_id, request.span_id) in ids
        sequences += [(sequence, own) for sequence in request.sequences]
        if request.pool == scenario.key.pool:
            # vLLM exports no span for an aborted request, although it has worked on it.
            aborted += [
                Occupancy(
                    each.start_ns,
                    each.end_ns,
                    each.end_ns + ABORT_WITHIN_NS,
                    request.requested_sequences,
                    own,
                )
                for each in request.aborted
            ]
    ahead_ns = engine_ahead_ns(scenario)
    completed = (
        Occupancy(
            sequence.start_ns - ahead_ns,
            sequence.end_ns - ahead_ns,
            sequence.end_ns - ahead_ns,
            1,
            own,
        )
        for sequence, own in sequences
        if shares_engine(sequence)
    )
    return [*completed, *aborted]


def foreign_sequences(scenario: Scenario, occupancies: list[Occupancy]) -> int:
    """Counts the sequences of others that occupied the engines while the scenario was served."""
    served = scenario.ended(Outcome.SERVED)
    start_ns = min(request.start_ns for request in served)
    end_ns = max(request.end_ns for request in served)
    return sum(
        each.sequences
        for each in occupancies
        if not each.in_scenario and each.end_ns >= start_ns and each.start_ns <= end_ns
    )


def sequences_beside_untraced(scenario: Scenario, occupancies: list[Occupancy]) -> int:
    """Counts the sequences of the scenario that shared a step with untraced ones.

    Such a step has a larger batch than the traced occupancies account for.
    """
    started = _Cumulative([(each.start_ns, each.sequences) for each in occupancies])
    released = _Cumulative([(each.released_ns, each.sequences) for each in occupancies])
    ahead_ns = engine_ahead_ns(scenario)
    return sum(
        sequence.batch_max
        > started.until(sequence.end_ns - ahead_ns) - released.before(sequence.start_ns - ahead_ns)
        for sequence in scenario.sequences
        if sequence.batch_max is not None
    )


class _Cumulative:
    """Cumulative counts over time."""

    def __init__(self, changes: list[tuple[int, int]]) -> None:
        changes.sort()
        self._times = [time for time, _ in changes]
        self._totals = list(accumulate((count for _, count in changes), initial=0))

    def until(self, time_ns: int) -> int:
        return self._totals[bisect_right(self._times, time_ns)]

    def before(self, time_ns: int) -> int:
        return self._totals[bisect_left(self._times, time_ns)]

"""What the spans of a scenario show of its load and its batches, for the judge.

Pure. Spans also show what kept an offline batch small: sequences were queued in the engine although
it had a slot for them, or waited for admission while fewer than the slots were dispatched, and the
batch had all that were not queued. Whether that was memory, spans do not show.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import chain

from orch_sidecar.tools.facts.labels.intervals import Interval, most
from orch_sidecar.tools.facts.labels.observation import Batches, Observation, RequestCounts
from orch_sidecar.tools.facts.labels.thresholds import QUEUED_STEPS
from orch_sidecar.tools.facts.tables.row import Label
from orch_sidecar.tools.facts.traces.counters import decode_window
from orch_sidecar.tools.facts.traces.requests import Outcome
from orch_sidecar.tools.facts.traces.scenarios import Scenario
from orch_sidecar.tools.facts.traces.sequence import EngineSequence


def observation_of(scenario: Scenario) -> Observation:
    """Returns what the spans of a scenario with sequences show."""
    served, found = scenario.ended(Outcome.SERVED), scenario.sequences
    window = decode_window(found)
    largest = max((each.batch_max for each in found if each.batch_max is not None), default=0)
    seen = Observation(
        label=Label(scenario.key.measurement_type),
        slots=frozenset(each.slots for each in found),
        batches=Batches(window.steps, largest, window.mean),
        counts=RequestCounts(sent=len(scenario.requests), answered=len(served)),
        in_flight=[
            Interval(each.start_ns, each.end_ns, each.requested_sequences)
            for each in scenario.requests
            if each.outcome is not Outcome.REFUSED
        ],
        decoding=[
            Interval(min(each.first_ns for each in own), max(each.end_ns for each in own))
            for own in (request.sequences for request in served)
            if own
        ],
        in_engine=[Interval(each.start_ns, each.end_ns) for each in found],
    )
    return replace(seen, batch_limited_by=_limited_by(scenario, largest, seen.target))


def _limited_by(scenario: Scenario, largest: int, target: int) -> str | None:
    """Returns where sequences waited while the batch was below the target; None: nowhere."""
    dispatched = [
        Interval(attempt.start_ns, attempt.end_ns, each.requested_sequences)
        for each in scenario.requests
        for attempt in each.attempts
    ]
    waiting = [
        Interval(start_ns, end_ns, each.requested_sequences)
        for each in scenario.requests
        for start_ns, end_ns in each.waited
    ]
    at_once, queued = most(dispatched), most(_queued(scenario.sequences))
    if largest >= target or largest + queued < min(at_once, target):
        return None
    if at_once >= target:
        return "engine" if queued else None
    return "admission" if most(chain(dispatched, waiting)) >= target else None


def _queued(sequences: Iterable[EngineSequence]) -> list[Interval]:
    """Returns when sequences waited in the engine for longer than its steps take."""
    return [
        Interval(each.start_ns, each.start_ns + round(each.queue_s * 1e9))
        for each in sequences
        if each.queue_s > QUEUED_STEPS * each.step_s
    ]

"""What the spans of a scenario show of its load, its batches, and of others, for the judge.

Pure. Spans of the engine show the sequences that it completed, spans of the sidecar those that were
aborted. A client can leave no spans: its `traceparent` is unsampled, or it calls the engine
directly. But the engine numbers all requests that enter it, and counts the sequences of each decode
step, and its spans have both.

Spans also show what kept an offline batch small: sequences were queued in the engine although it
had a slot for them, or waited for admission while fewer than the slots were dispatched, and the
batch had all that were not queued. Whether that was memory, spans do not show.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Final, NamedTuple

from orch_sidecar.tools.facts.labels.intervals import Interval, most, uncovered
from orch_sidecar.tools.facts.labels.observation import (
    Batches,
    Beside,
    Observation,
)
from orch_sidecar.tools.facts.labels.thresholds import QUEUED_STEPS
from orch_sidecar.tools.facts.tables.row import Label
from orch_sidecar.tools.facts.traces.requests import Outcome, Request, Traffic
from orch_sidecar.tools.facts.traces.scenarios import Scenario
from orch_sidecar.tools.facts.traces.sequence import UNCOUNTED_STEPS, EngineSequence

# Longer than an abort takes to reach the scheduler, and than a step.
_ABORT_WITHIN_NS: Final = 1_000_000_000
_INTERACTIVE: Final = "interactive"


def observation_of(scenario: Scenario, traffic: Traffic) -> Observation:
    """Returns what the spans of a scenario show, all of whose sequences state their engine, of
    which there is one at least. `traffic`: all requests."""
    served, found = scenario.ended(Outcome.SERVED), scenario.sequences
    answered = [each.sequences for each in served if each.sequences]
    seen = Observation(
        label=Label(str(scenario.key.measurement_type)),
        slots=frozenset(each.engine.slots_total for each in found),
        batches=batches_of(found),
        sent=len(scenario.requests),
        answered=len(answered),
        beside=_beside(scenario, traffic),
        in_flight=[
            Interval(each.start_ns, each.end_ns, each.requested_sequences)
            for each in scenario.requests
            if each.outcome is not Outcome.REFUSED
        ],
        running=[
            Interval(min(each.slot_ns for each in own), max(each.end_ns for each in own))
            for own in answered
        ],
        in_engine=[Interval(each.start_ns, each.end_ns) for each in found],
    )
    limited_by = _limited_by(scenario, seen.batches.largest, seen.target)
    seen = replace(seen, batch_limited_by=limited_by)
    return _counted(seen, scenario, traffic) if seen.beside.engines == 1 else seen


def batches_of(sequences: Sequence[EngineSequence]) -> Batches:
    """Returns the decode-only steps from the first of these sequences of one engine to the last."""
    largest = max(each.batch_max for each in sequences)
    steps = max(each.engine.decode_steps_total for each in sequences) - min(
        each.engine.decode_steps_total - each.steps for each in sequences
    )
    decoded = max(each.engine.decode_sequences_total for each in sequences) - min(
        # Before its own steps, the sum of whose batches is this.
        each.engine.decode_sequences_total - round(each.steps * each.batch_mean)
        for each in sequences
    )
    return Batches(steps, largest, decoded / steps if steps else 0.0)


def prefix_hit_ratio(sequences: Sequence[EngineSequence]) -> float | None:
    """Returns which share of the prompt tokens that were looked up in the window was cached.

    0 where none was looked up; None where it is not known how many were before it.
    """
    known = [each.engine for each in sequences]
    before = [(at.queries_before, at.hits_before) for at in known]
    if any(None in each for each in before):
        return None
    first_queries, first_hits = (min(each or 0 for each in of) for of in zip(*before, strict=True))
    queries = max(at.queries for at in known) - first_queries
    return (max(at.hits for at in known) - first_hits) / queries if queries > 0 else 0.0


def _counted(seen: Observation, scenario: Scenario, traffic: Traffic) -> Observation:
    """Adds what the counters of its one engine show: the requests that it accepted, those of them
    that are traced, and the steps that the traced sequences can have been in.

    Requests of others that entered before the window have no number in it, but are in its steps.
    """
    epoch = scenario.sequences[0].epoch
    first = min(numbers(epoch, scenario.sequences))
    last = max(each.engine.requests_total for each in scenario.sequences)
    attempts = (attempt for request in traffic.requests for attempt in request.attempts)
    traced = numbers(epoch, chain(traffic.orphans, *(each.sequences for each in attempts)))
    aborted = aborted_in(scenario, traffic)
    cut = (
        sequence
        for request in (*scenario.before, *scenario.after)
        for sequence in request.sequences
        if sequence.epoch == epoch
    )
    in_steps = sum(map(_most_steps, chain(scenario.sequences, cut)))
    in_steps += sum(request.requested_sequences * seen.batches.steps for request, _ in aborted)
    sent = sum(first <= number <= last for number in traced)
    sent += sum(without_span for _, without_span in aborted)
    return replace(seen, accepted=last - first + 1, sent=sent, in_steps=in_steps)


def numbers(epoch: str | None, sequences: Iterable[EngineSequence]) -> set[int]:
    """Returns the numbers of the requests of these sequences in an engine."""
    stated = (each.stated for each in sequences)
    found = {each.request_number for each in stated if each is not None and each.epoch == epoch}
    return {number for number in found if number is not None}


def aborted_in(scenario: Scenario, traffic: Traffic) -> list[tuple[Request, bool]]:
    """Returns the requests whose attempts were aborted in the engine within the window.

    A request for each attempt, and whether the engine has made no span for it.
    """
    ahead_ns = engine_ahead_ns(scenario)
    start_ns = min(each.start_ns for each in scenario.sequences) - ahead_ns
    end_ns = max(each.end_ns for each in scenario.sequences) - ahead_ns
    return [
        (request, not attempt.sequences)
        for request in traffic.requests
        if request.pool == scenario.key.pool
        for attempt in request.aborted
        if attempt.start_ns <= end_ns and attempt.end_ns + _ABORT_WITHIN_NS >= start_ns
    ]


def _most_steps(each: EngineSequence) -> int:
    """Returns the largest number of decode steps that a sequence can have been in.

    Each generated a token, but for the steps beyond its end; its first token came from a prefill.
    """
    in_steps = each.steps + UNCOUNTED_STEPS
    speculative = each.engine.tokens_per_step > 1
    return (in_steps if speculative else min(in_steps, each.output_tokens)) + each.discarded_steps


def engine_ahead_ns(scenario: Scenario) -> int:
    """Returns by how much the engine's clock is ahead of the sidecar's at least, negative behind.

    It is the smallest difference by which all sequences lie within their requests; 0 where none
    is needed, or there is none. Hosts that keep their clocks by NTP differ by some milliseconds,
    which is as long as the pause between two runs.
    """
    served = [(request, each) for request in scenario.ended(Outcome.SERVED)
              for each in request.sequences]  # fmt: skip
    least = max((each.end_ns - request.closed_ns for request, each in served), default=0)
    largest = min((each.start_ns - request.start_ns for request, each in served), default=0)
    if least > largest:
        return 0
    return least if least > 0 else min(largest, 0)


def _beside(scenario: Scenario, traffic: Traffic) -> Beside:
    requests, served = scenario.requests, scenario.ended(Outcome.SERVED)
    found = _stays(scenario, traffic)
    start_ns, end_ns = served[0].start_ns, max(each.end_ns for each in served)
    others = (each for each in found if not each.own)
    return Beside(
        engines=len({each.epoch for each in scenario.sequences}),
        shared=sum(each.coalesced or each.coalesced_leader for each in requests),
        divided=sum(bool(each.parts) for each in requests),
        online=sum(each.service_class == _INTERACTIVE for each in requests),
        foreign=sum(
            each.sequences for each in others if each.end_ns >= start_ns and each.start_ns <= end_ns
        ),
        unseen=_beside_unseen(scenario, found),
        waited_s=_waited_alone_ns(scenario, traffic) / 1e9,
        took_s=sum(each.end_ns - each.start_ns for each in served) / 1e9,
    )


class _Stay(NamedTuple):
    """Sequences in an engine. `released_ns`: when they had certainly left it."""

    start_ns: int
    end_ns: int
    released_ns: int
    sequences: int
    own: bool


def _stays(scenario: Scenario, traffic: Traffic) -> list[_Stay]:
    """Returns who was in the scenario's engines, as traced, by the clock of the sidecar."""
    engines = {sequence.epoch for sequence in scenario.sequences}
    own = {
        (request.trace_id, request.span_id)
        for request in (*scenario.requests, *scenario.before, *scenario.after)
    }
    completed = [(sequence, False) for sequence in traffic.orphans]
    found: list[_Stay] = []
    for request in traffic.requests:
        is_own = (request.trace_id, request.span_id) in own
        completed += [(sequence, is_own) for sequence in request.sequences]
        # vLLM exports no span for an aborted request, although it has worked on it.
        for each in request.aborted if request.pool == scenario.key.pool else ():
            left_ns, count = each.end_ns + _ABORT_WITHIN_NS, request.requested_sequences
            found.append(_Stay(each.start_ns, each.end_ns, left_ns, count, is_own))
    ahead_ns = engine_ahead_ns(scenario)
    for sequence, is_own in completed:
        if sequence.epoch in engines:
            end_ns = sequence.end_ns - ahead_ns
            found.append(_Stay(sequence.start_ns - ahead_ns, end_ns, end_ns, 1, is_own))
    return found


def _beside_unseen(scenario: Scenario, found: Sequence[_Stay]) -> int:
    """Counts the sequences of the scenario that shared a step with untraced ones: such a step has
    more sequences than were traced at the time."""
    started = sorted(each.start_ns for each in found for _ in range(each.sequences))
    released = sorted(each.released_ns for each in found for _ in range(each.sequences))
    ahead_ns = engine_ahead_ns(scenario)
    return sum(
        each.batch_max
        > bisect_right(started, each.end_ns - ahead_ns)
        - bisect_left(released, each.start_ns - ahead_ns)
        for each in scenario.sequences
    )


def _waited_alone_ns(scenario: Scenario, traffic: Traffic) -> float:
    """Returns how long requests waited for admission while none that is traced was dispatched.

    Somebody else had its slot, whose request may have left no span: a request that came before the
    first of these has no number among theirs.
    """
    busy = [
        Interval(attempt.start_ns, attempt.end_ns + _ABORT_WITHIN_NS * (attempt in request.aborted))
        for request in traffic.requests
        if request.pool == scenario.key.pool
        for attempt in request.attempts
    ]
    served = scenario.ended(Outcome.SERVED)
    return uncovered((Interval(*waited) for each in served for waited in each.waited), busy)


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
    queued_for_steps = [  # for longer than the engine's steps take
        Interval(each.start_ns, each.start_ns + round(each.queue_s * 1e9))
        for each in scenario.sequences
        if each.queue_s > QUEUED_STEPS * each.step_s
    ]
    at_once, queued = most(dispatched), most(queued_for_steps)
    if largest >= target or largest + queued < min(at_once, target):
        return None
    if at_once >= target:
        return "engine" if queued else None
    return "admission" if most(chain(dispatched, waiting)) >= target else None

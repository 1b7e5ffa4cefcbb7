"""What the spans of a scenario show of its load, its batches, and of others, for the judge.

Pure. Spans of the engine show the sequences that it completed, spans of the sidecar those that were
aborted. A client can leave no spans: its `traceparent` is unsampled, or it calls the engine
directly. But the engine numbers all requests that enter it, and counts the sequences of each decode
step, and its spans have both.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

from orch_sidecar.tools.facts.labels.intervals import Interval, uncovered
from orch_sidecar.tools.facts.labels.observation import Batches, Beside, Observation
from orch_sidecar.tools.facts.labels.thresholds import QUEUED_STEPS
from orch_sidecar.tools.facts.tables.row import Label
from orch_sidecar.tools.facts.traces.requests import (
    UNCOUNTED_STEPS,
    Attempt,
    EngineSequence,
    Outcome,
    Request,
)
from orch_sidecar.tools.facts.traces.traffic import Scenario
from vllm_plugin.contracts.profile import INTERACTIVE

# vLLM's API server finds stop strings; the engine generates until the abort reaches it. With
# asynchronous scheduling two steps are under way when one is found, and a third may begin before
# the engine knows. The last token allows for one of them.
_STOPPING_STEPS: Final = 2
# Longer than an abort takes to reach the scheduler, and than a step.
_ABORT_WITHIN_NS: Final = 1_000_000_000


def observation_of(scenario: Scenario) -> Observation:
    """Returns what the spans of a scenario show, all of whose sequences state their engine, of
    which there is one at least."""
    found, batches = scenario.sequences, batches_of(scenario.sequences)
    answered = [each.sequences for each in scenario.served if each.sequences]
    return Observation(
        label=Label(str(scenario.key.measurement_type)),
        slots=frozenset(each.engine.slots_total for each in found),
        batches=batches,
        answered=len(answered),
        beside=_beside(scenario),
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
        dispatched=[
            Interval(attempt.start_ns, attempt.end_ns, each.requested_sequences)
            for each in scenario.requests
            for attempt in each.attempts
        ],
        waiting=[
            Interval(*waited, each.requested_sequences)
            for each in scenario.requests
            for waited in each.waited
        ],
        queued=[  # for longer than the engine's steps take
            Interval(each.start_ns, each.start_ns + round(each.queue_s * 1e9))
            for each in found
            if each.queue_s > QUEUED_STEPS * each.step_s
        ],
        **_counts(scenario, batches),
    )


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


def _counts(scenario: Scenario, batches: Batches) -> dict[str, Any]:
    """Returns what the counters of its engine show, if it is one: the requests that it accepted,
    those of them that are traced, and the steps that the traced sequences can have been in.

    Requests of others that entered before the window have no number in it, but are in its steps.
    """
    found, traffic = scenario.sequences, scenario.traffic
    if len({each.epoch for each in found}) > 1:
        return {"sent": len(scenario.requests)}
    epoch, aborted = found[0].epoch, aborted_in(scenario)
    first = min(numbers(epoch, found))
    last = max(each.engine.requests_total for each in found)
    attempts = (attempt.sequences for _, attempt in traffic.attempts)
    traced = numbers(epoch, chain(traffic.orphans, *attempts))
    outside = (each.sequences for each in (*scenario.before, *scenario.after))
    cut = (each for each in chain(*outside) if each.epoch == epoch)
    in_steps = sum(map(_most_steps, chain(found, cut)))
    return {
        "accepted": last - first + 1,
        "sent": sum(first <= number <= last for number in traced)
        + sum(not attempt.sequences for _, attempt in aborted),
        "in_steps": in_steps
        + sum(request.requested_sequences * batches.steps for request, _ in aborted),
    }


def numbers(epoch: str | None, sequences: Iterable[EngineSequence]) -> set[int]:
    """Returns the numbers of the requests of these sequences in an engine."""
    stated = (each.stated for each in sequences)
    found = {each.request_number for each in stated if each is not None and each.epoch == epoch}
    return {number for number in found if number is not None}


def aborted_in(scenario: Scenario) -> list[tuple[Request, Attempt]]:
    """Returns the attempts that were aborted in the engine within the window, with their
    requests."""
    ahead_ns = scenario.engine_ahead_ns
    start_ns = min(each.start_ns for each in scenario.sequences) - ahead_ns
    end_ns = max(each.end_ns for each in scenario.sequences) - ahead_ns
    return [
        (request, each)
        for request, each in scenario.attempts
        if each.aborted
        if each.start_ns <= end_ns and each.end_ns + _ABORT_WITHIN_NS >= start_ns
    ]


def _most_steps(each: EngineSequence) -> int:
    """Returns the largest number of decode steps that a sequence can have been in.

    Each generated a token, but for the steps beyond its end; its first token came from a prefill.
    """
    in_steps = each.steps + UNCOUNTED_STEPS
    speculative = each.engine.tokens_per_step > 1
    most = in_steps if speculative else min(in_steps, each.output_tokens)
    return most + _STOPPING_STEPS * each.stopped


class _Stay(NamedTuple):
    """Sequences in an engine. `released_ns`: when they had certainly left it."""

    start_ns: int
    end_ns: int
    released_ns: int
    sequences: int
    own: bool


def _stays(scenario: Scenario) -> list[_Stay]:
    """Returns who was in the scenario's engines, as traced, by the clock of the sidecar."""
    traffic, engines = scenario.traffic, {sequence.epoch for sequence in scenario.sequences}
    own = {each.link for each in (*scenario.requests, *scenario.before, *scenario.after)}
    completed = [(sequence, False) for sequence in traffic.orphans]
    completed += [(of, each.link in own) for each in traffic.requests for of in each.sequences]
    shifted = (
        (each.start_ns - scenario.engine_ahead_ns, each.end_ns - scenario.engine_ahead_ns, is_own)
        for each, is_own in completed
        if each.epoch in engines
    )
    found = [_Stay(start_ns, end_ns, end_ns, 1, is_own) for start_ns, end_ns, is_own in shifted]
    # vLLM exports no span for an aborted request, although it has worked on it.
    return found + [
        _Stay(
            *(each.start_ns, each.end_ns, each.end_ns + _ABORT_WITHIN_NS),
            *(request.requested_sequences, request.link in own),
        )
        for request, each in scenario.attempts
        if each.aborted
    ]


def _beside(scenario: Scenario) -> Beside:
    requests, served, found = scenario.requests, scenario.served, _stays(scenario)
    start_ns, end_ns = served[0].start_ns, max(each.end_ns for each in served)
    others = (each for each in found if not each.own)
    return Beside(
        engines=len({each.epoch for each in scenario.sequences}),
        shared=sum(each.coalesced or each.coalesced_leader for each in requests),
        divided=sum(bool(each.parts) for each in requests),
        online=sum(each.service_class == INTERACTIVE for each in requests),
        foreign=sum(
            each.sequences for each in others if each.end_ns >= start_ns and each.start_ns <= end_ns
        ),
        unseen=_beside_unseen(scenario, found),
        waited_s=_waited_alone_ns(scenario) / 1e9,
        took_s=sum(each.end_ns - each.start_ns for each in served) / 1e9,
    )


def _beside_unseen(scenario: Scenario, found: Sequence[_Stay]) -> int:
    """Counts the sequences of the scenario that shared a step with untraced ones: such a step has
    more sequences than were traced at the time."""
    started = sorted(each.start_ns for each in found for _ in range(each.sequences))
    released = sorted(each.released_ns for each in found for _ in range(each.sequences))
    ahead_ns = scenario.engine_ahead_ns
    return sum(
        each.batch_max
        > bisect_right(started, each.end_ns - ahead_ns)
        - bisect_left(released, each.start_ns - ahead_ns)
        for each in scenario.sequences
    )


def _waited_alone_ns(scenario: Scenario) -> float:
    """Returns how long requests waited for admission while none that is traced was dispatched.

    Somebody else had its slot, whose request may have left no span: a request that came before the
    first of these has no number among theirs.
    """
    busy = [
        Interval(each.start_ns, each.end_ns + _ABORT_WITHIN_NS * each.aborted)
        for _, each in scenario.attempts
    ]
    waited = (Interval(*each) for request in scenario.served for each in request.waited)
    return uncovered(waited, busy)

"""Finds the objections to making a row of a scenario.

Pure. A label is earned by the steps that the engine ran: one sequence per step for single-stream,
several for the others, and no traffic of others at the time. What the spans do not show counts as
not satisfied.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from orch_sidecar.tools.facts.labels.intervals import Interval, uncovered
from orch_sidecar.tools.facts.labels.judge import judge
from orch_sidecar.tools.facts.labels.objection import Objection, Reason, count_requests
from orch_sidecar.tools.facts.labels.thresholds import UNEXPLAINED_WAIT
from orch_sidecar.tools.facts.tables.row import Label
from orch_sidecar.tools.facts.traces.contradictions import contradictions
from orch_sidecar.tools.facts.traces.counters import counter_objections
from orch_sidecar.tools.facts.traces.occupancy import (
    ABORT_WITHIN_NS,
    engine_occupancies,
    foreign_sequences,
    sequences_beside_untraced,
)
from orch_sidecar.tools.facts.traces.requests import Outcome, Request, Traffic
from orch_sidecar.tools.facts.traces.scenarios import Scenario
from orch_sidecar.tools.facts.traces.supply import observation_of

_INTERACTIVE: Final = "interactive"


def objections(scenario: Scenario, traffic: Traffic) -> list[Objection]:
    """Returns all objections to a scenario. `traffic`: all requests, including its own."""
    label, served = scenario.key.measurement_type, scenario.ended(Outcome.SERVED)
    if label not in (Label.SINGLE_STREAM, Label.BATCHED_ONLINE, Label.OFFLINE):
        detail = f"measurement_type is {label!r}, which is not the label of a measurement"
        return [Objection(Reason.UNKNOWN_LABEL, detail)]
    if not served:
        return [Objection(Reason.NOTHING_SERVED, "no request was answered")]
    return [
        *_incomplete(scenario, served, traffic),
        *contradictions(scenario, served),
        *(
            judge(observation_of(scenario)) if scenario.sequences else ()
        ),  # else `_incomplete` objects
        *(_waits(scenario, traffic) if label == Label.SINGLE_STREAM else ()),
        *_other_traffic(scenario, traffic),
        *counter_objections(scenario, traffic),
    ]


def _incomplete(
    scenario: Scenario, served: tuple[Request, ...], traffic: Traffic
) -> Iterator[Objection]:
    """Finds requests and sequences whose spans are missing."""
    unended = [
        each
        for each in traffic.unfinished
        if each.pool in (None, scenario.key.pool)
        and each.start_ns <= scenario.end_ns
        and (each.end_ns is None or each.end_ns >= scenario.start_ns)
    ]
    if unended:
        detail = "not ended, or without a server span, when the traces were read"
        yield Objection(Reason.NOT_ENDED, f"{count_requests(len(unended))}: {detail}")
    # A coalesced request has no sequence of its own.
    alone = [request for request in served if not request.coalesced]
    missing = sum(not request.sequences for request in alone)
    if missing:
        detail = "no span of the engine (it is not traced, or has not exported its spans yet)"
        yield Objection(
            Reason.ENGINE_NOT_TRACED, f"{missing} of {count_requests(len(served))}: {detail}"
        )
    partly = sum(0 < len(request.sequences) < request.requested_sequences for request in alone)
    if partly:
        detail = "fewer spans of the engine than sequences"
        yield Objection(Reason.ENGINE_NOT_TRACED, f"{count_requests(partly)}: {detail}")


def _waits(scenario: Scenario, traffic: Traffic) -> Iterator[Objection]:
    """Finds requests of a single stream that waited for admission while none had been dispatched.

    Somebody else had its slot, whose request may have left no span: a request that came before the
    first of these has no number among theirs. What waited for it is no time of this engine alone.
    """
    busy = [
        Interval(attempt.start_ns, attempt.end_ns + ABORT_WITHIN_NS * (attempt in request.aborted))
        for request in traffic.requests
        if request.pool == scenario.key.pool
        for attempt in request.attempts
    ]
    served = scenario.ended(Outcome.SERVED)
    total_ns = sum(request.end_ns - request.start_ns for request in served)
    waits = [Interval(*waited) for request in served for waited in request.waited]
    waited_ns = uncovered(waits, busy)
    if waited_ns > UNEXPLAINED_WAIT * total_ns:
        detail = (
            f"requests waited {waited_ns / 1e9:.3f} s for admission while none that is traced was "
            f"dispatched, {waited_ns / total_ns:.0%} of their latencies: others had it"
        )
        yield Objection(Reason.OTHER_TRAFFIC, detail)


def _other_traffic(scenario: Scenario, traffic: Traffic) -> Iterator[Objection]:
    """Finds traffic that shared the engines, and shared generations."""
    shared = sum(request.coalesced or request.coalesced_leader for request in scenario.requests)
    if shared:
        detail = "a generation was shared, its tokens would count several times"
        yield Objection(Reason.COALESCED, f"{count_requests(shared)}: {detail}")
    divided = sum(bool(request.parts) for request in scenario.requests)
    if divided:
        detail = "ran in parts: its times are those of several requests to the engine"
        yield Objection(Reason.DIVIDED, f"{count_requests(divided)}: {detail}")
    if scenario.key.measurement_type == Label.OFFLINE:
        online = sum(each.service_class == _INTERACTIVE for each in scenario.requests)
        if online:
            detail = f"{count_requests(online)} of class {_INTERACTIVE}"
            yield Objection(Reason.ONLINE_TRAFFIC, detail)
    found = engine_occupancies(scenario, traffic)
    if others := foreign_sequences(scenario, found):
        detail = f"foreign sequences in the same engine at the time: {others}"
        yield Objection(Reason.OTHER_TRAFFIC, detail)
    if unseen := sequences_beside_untraced(scenario, found):
        detail = (
            f"sequences that shared a step with untraced ones (tracing must not sample): {unseen}"
        )
        yield Objection(Reason.UNSEEN_TRAFFIC, detail)
    engines = {sequence.engine for sequence in scenario.sequences}
    if len(engines) > 1:
        detail = f"{len(engines)} engines served it: it was restarted, or there are several"
        yield Objection(Reason.ENGINE_CHANGED, detail)

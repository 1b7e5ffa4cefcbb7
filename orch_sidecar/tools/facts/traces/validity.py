"""What speaks against making a fact of a scenario.

Pure. A label is earned by the steps that the engine really ran: one sequence a step for
single-stream, several for the others, and nobody else in the engine meanwhile. What cannot be
seen counts as not so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from orch_sidecar.tools.facts.tables.row import Label
from orch_sidecar.tools.facts.traces.occupancy import of_others, stays, with_unseen
from orch_sidecar.tools.facts.traces.requests import Decode, Outcome, Request, Traffic
from orch_sidecar.tools.facts.traces.scenarios import Scenario

_INTERACTIVE: Final = "interactive"


class Reason(StrEnum):
    """Why a scenario makes no fact."""

    UNKNOWN_LABEL = "unknown_label"
    NOTHING_SERVED = "nothing_served"
    NOT_ENDED = "not_ended"
    ENGINE_NOT_TRACED = "engine_not_traced"
    NO_STEPS = "no_steps"
    CONTRADICTION = "contradiction"
    COALESCED = "coalesced"
    BATCH_ABOVE_ONE = "batch_above_one"
    OVERLAP = "overlap"
    NEVER_BATCHED = "never_batched"
    ONLINE_TRAFFIC = "online_traffic"
    OTHER_TRAFFIC = "other_traffic"
    UNSEEN_TRAFFIC = "unseen_traffic"
    ENGINE_CHANGED = "engine_changed"
    NOT_SAID = "not_said"  # what a row must have, and neither spans nor options say
    UNSOUND_ROW = "unsound_row"


@dataclass(frozen=True, slots=True)
class Objection:
    """One reason, and in words what was seen."""

    reason: Reason
    says: str


def objections(scenario: Scenario, traffic: Traffic) -> list[Objection]:
    """All that speaks against a scenario. `traffic`: all there was, this scenario's included."""
    label, served = scenario.key.measurement_type, scenario.ended(Outcome.SERVED)
    if label not in (Label.SINGLE_STREAM, Label.BATCHED_ONLINE, Label.OFFLINE):
        says = f"measurement_type is {label!r}, which is no label of a measurement"
        return [Objection(Reason.UNKNOWN_LABEL, says)]
    if not served:
        return [Objection(Reason.NOTHING_SERVED, "no request was answered")]
    return [
        *_untold(scenario, served, traffic),
        *_contradictions(scenario, served),
        *_steps(scenario, Label(label)),
        *_company(scenario, traffic),
    ]


def _untold(
    scenario: Scenario, served: tuple[Request, ...], traffic: Traffic
) -> Iterator[Objection]:
    """What happened and was not told."""
    unended = [
        each
        for each in traffic.unfinished
        if each.pool in (None, scenario.key.pool)
        and each.start_ns <= scenario.end_ns
        and (each.end_ns is None or each.end_ns >= scenario.start_ns)
    ]
    if unended:
        says = "not ended, or not told of in full, when the traces were read"
        yield Objection(Reason.NOT_ENDED, f"{_requests(len(unended))}: {says}")
    # One that shares a decode has no sequence of its own.
    alone = [request for request in served if not request.coalesced]
    missing = sum(not request.decodes for request in alone)
    if missing:
        says = "no span of the engine (it was not traced, or its spans have yet to come)"
        yield Objection(Reason.ENGINE_NOT_TRACED, f"{missing} of {_requests(len(served))}: {says}")
    partly = sum(0 < len(request.decodes) < request.sequences for request in alone)
    if partly:
        says = "fewer spans of the engine than sequences"
        yield Objection(Reason.ENGINE_NOT_TRACED, f"{_requests(partly)}: {says}")


def _contradictions(scenario: Scenario, served: tuple[Request, ...]) -> Iterator[Objection]:
    """What sidecar and engine say differently of the same request."""

    def contradiction(count: int, says: str) -> Iterator[Objection]:
        if count:
            yield Objection(Reason.CONTRADICTION, f"{_requests(count)}: {says}")

    label = scenario.key.measurement_type
    others = {decode.measurement_type for decode in scenario.decodes} - {label}
    yield from contradiction(
        sum(any(decode.measurement_type != label for decode in each.decodes) for each in served),
        f"the sidecar says {label}, the engine {', '.join(sorted(map(str, others)))}",
    )
    told = [each for each in served if each.decodes]
    yield from contradiction(
        sum(each.input_tokens not in (None, each.decoded_input_tokens) for each in told),
        "the sidecar counts other input tokens than the engine",
    )
    yield from contradiction(
        sum(each.output_tokens not in (None, each.decoded_output_tokens) for each in told),
        "the sidecar counts other output tokens than the engine",
    )
    backwards = [each for each in served if each.end_ns < each.start_ns]
    yield from contradiction(len(backwards), "the end comes before the start")


def _steps(scenario: Scenario, label: Label) -> Iterator[Objection]:
    """Whether the label is what the engine's steps say."""
    decodes = scenario.decodes
    if not decodes:
        return  # said already
    batches = [decode.batch_max for decode in decodes if decode.batch_max is not None]
    if not batches:
        says = "no span of the engine tells of its steps, which takes the plugin and two tokens"
        yield Objection(Reason.NO_STEPS, says)
    elif label is Label.SINGLE_STREAM and max(batches) > 1:
        beside = sum(batch > 1 for batch in batches)
        says = f"{beside} of {len(decodes)} sequences shared a step, up to {max(batches)} at once"
        yield Objection(Reason.BATCH_ABOVE_ONE, says)
    elif label is not Label.SINGLE_STREAM and max(batches) == 1:
        says = f"no step had more than one of its sequences ({len(decodes)})"
        yield Objection(Reason.NEVER_BATCHED, says)
    if label is Label.SINGLE_STREAM and (overlaps := _overlaps(decodes)):
        says = f"{overlaps} of {len(decodes)} sequences came while another was in the engine"
        yield Objection(Reason.OVERLAP, says)


def _overlaps(decodes: tuple[Decode, ...]) -> int:
    count, end_ns = 0, 0
    for decode in sorted(decodes, key=lambda each: each.start_ns):
        count += decode.start_ns < end_ns
        end_ns = max(end_ns, decode.end_ns)
    return count


def _company(scenario: Scenario, traffic: Traffic) -> Iterator[Objection]:
    """Who else was served meanwhile, and by whom."""
    shared = sum(request.coalesced or request.led for request in scenario.requests)
    if shared:
        says = "a decode was shared, its tokens would count several times"
        yield Objection(Reason.COALESCED, f"{_requests(shared)}: {says}")
    if scenario.key.measurement_type == Label.OFFLINE:
        online = sum(each.service_class == _INTERACTIVE for each in scenario.requests)
        if online:
            says = f"{_requests(online)} of class {_INTERACTIVE}"
            yield Objection(Reason.ONLINE_TRAFFIC, says)
    there = stays(scenario, traffic)
    if others := of_others(scenario, there):
        says = f"sequences of others in the same engine meanwhile: {others}"
        yield Objection(Reason.OTHER_TRAFFIC, says)
    if unseen := with_unseen(scenario, there):
        says = "in a step with more than were traced (traces must not be sampled)"
        yield Objection(Reason.UNSEEN_TRAFFIC, f"sequences {says}: {unseen}")
    engines = {decode.engine for decode in scenario.decodes}
    if len(engines) > 1:
        says = f"{len(engines)} engines decoded: it was replaced, or there are several"
        yield Objection(Reason.ENGINE_CHANGED, says)


def _requests(count: int) -> str:
    return "1 request" if count == 1 else f"{count} requests"

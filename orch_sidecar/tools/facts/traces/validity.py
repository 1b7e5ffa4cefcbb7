"""Finds what is missing of the spans of a scenario, and where sidecar and engine contradict.

Pure. Two processes report about each request, and the engine reports tokens, steps and times: no
one of them can be altered, or come from elsewhere, without another that disagrees. Whether the
label was earned is decided by `labels.judge`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from orch_sidecar.tools.drawing.texts import counted
from orch_sidecar.tools.facts.labels.judge import Objection, Reason, judge
from orch_sidecar.tools.facts.labels.observation import Batches
from orch_sidecar.tools.facts.labels.thresholds import CLOCK_RATE, CLOCKS_AGREE_S, ROUNDING_S
from orch_sidecar.tools.facts.tables.row import PROFILE_LABELS, Label
from orch_sidecar.tools.facts.traces.observed import aborted_in, numbers, observation_of
from orch_sidecar.tools.facts.traces.requests import Outcome, Request, Traffic
from orch_sidecar.tools.facts.traces.scenarios import Scenario
from orch_sidecar.tools.facts.traces.sequence import UNCOUNTED_STEPS, EngineSequence


def objections(scenario: Scenario, traffic: Traffic) -> list[Objection]:
    """Returns all objections to a scenario. `traffic`: all requests, including its own."""
    label, served = scenario.key.measurement_type, scenario.ended(Outcome.SERVED)
    if label not in (Label.SINGLE_STREAM, Label.BATCHED_ONLINE, Label.OFFLINE):
        detail = f"measurement_type is {label!r}, which is not the label of a measurement"
        return [Objection(Reason.UNKNOWN_LABEL, detail)]
    if not served:
        return [Objection(Reason.NOTHING_SERVED, "no request was answered")]
    found = [*_incomplete(scenario, served, traffic)]
    sequences = scenario.sequences
    stated = [each.stated for each in sequences]
    if without := sum(each is None or each.request_number is None for each in stated):
        detail = "lack counters or settings of the engine, so that nobody knows who else was in it"
        found.append(
            Objection(Reason.NOT_COUNTED, f"{without} of {len(sequences)} sequences {detail}")
        )
    if without or not sequences:
        return found
    seen = observation_of(scenario, traffic)
    found += (*_contradictions(scenario, served), *_counts(scenario, traffic, seen.batches))
    return [*found, *judge(seen)]


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
        yield Objection(Reason.NOT_ENDED, f"{counted(len(unended), 'request')}: {detail}")
    # A coalesced request has no sequence of its own.
    alone = [request for request in served if not request.coalesced]
    if not alone:
        yield Objection(Reason.COALESCED, "no request has a generation of its own")
    missing = sum(not request.sequences for request in alone)
    if missing:
        detail = "no span of the engine (it is not traced, or has not exported its spans yet)"
        yield Objection(
            Reason.ENGINE_NOT_TRACED, f"{missing} of {counted(len(served), 'request')}: {detail}"
        )
    partly = sum(0 < len(request.sequences) < request.requested_sequences for request in alone)
    if partly:
        detail = "fewer spans of the engine than sequences"
        yield Objection(Reason.ENGINE_NOT_TRACED, f"{counted(partly, 'request')}: {detail}")


def _contradictions(scenario: Scenario, served: tuple[Request, ...]) -> Iterator[Objection]:
    """Finds contradictions about the requests that were answered."""
    label, profile = scenario.key.measurement_type, scenario.key.profile
    engine = {(str(each.measurement_type), str(each.profile)) for each in scenario.sequences}
    if others := sorted(engine - {(label, str(profile))}):
        detail = f"the sidecar reports {label} (profile {profile}), the engine"
        stated = ", ".join(f"{other} (profile {of})" for other, of in others)
        yield Objection(Reason.CONTRADICTION, f"{detail} {stated}")
    for contradicts, text in _CHECKS:
        if count := sum(map(contradicts, served)):
            yield Objection(Reason.CONTRADICTION, f"{counted(count, 'request')}: {text}")
    named = None if profile is None else PROFILE_LABELS.get(profile)
    if named is not None and named != label:
        detail = f"the profile {profile} is {named}: a measurement of it cannot be {label}"
        yield Objection(Reason.CONTRADICTION, detail)
    yield from _clocks(served)


def _counts(scenario: Scenario, traffic: Traffic, batches: Batches) -> Iterator[Objection]:
    """Finds numbers that a request cannot have, and steps that cannot have had as many sequences as
    were counted."""
    found = scenario.sequences
    for engine in {each.epoch for each in found}:
        # An attempt has one number, and no other attempt has it: a copied span shows here.
        attempts = [
            numbers(engine, attempt.sequences)
            for request in traffic.requests
            for attempt in request.attempts
        ]
        wrong = sum(map(len, attempts)) - len(set().union(*attempts))
        wrong += sum(len(each) > 1 for each in attempts)
        if wrong:
            detail = "the engine numbers each request once, these spans have a number of another"
            yield Objection(Reason.CONTRADICTION, f"{counted(wrong, 'request')}: {detail}")
    largest = batches.largest + sum(
        request.requested_sequences for request, _ in aborted_in(scenario, traffic)
    )
    decoded, uncounted = round(batches.steps * batches.mean), UNCOUNTED_STEPS * len(found)
    if not batches.steps <= decoded <= batches.steps * largest + uncounted:
        detail = f"the engine counted {decoded} sequences in {batches.steps} decode steps"
        yield Objection(Reason.CONTRADICTION, f"{detail} of up to {largest}")


def _clocks(served: tuple[Request, ...]) -> Iterator[Objection]:
    """Finds clocks of sidecar and engine that differ."""
    apart_ns = [
        max(each.end_ns - attempt.end_ns, attempt.start_ns - each.start_ns)
        for request in served
        for attempt in request.attempts
        for each in attempt.sequences
    ]
    if far := [each / 1e9 for each in apart_ns if each > CLOCKS_AGREE_S * 1e9]:
        detail = f"lie outside of their requests by up to {max(far):.3f} s"
        remedy = "set the clocks of sidecar and engine by NTP, and measure again"
        yield Objection(Reason.CONTRADICTION, f"{len(far)} of its sequences {detail}: {remedy}")


def _too_many_tokens(each: EngineSequence) -> bool:
    steps = each.engine.engine_steps + UNCOUNTED_STEPS
    return each.output_tokens > steps * each.engine.tokens_per_step


def _other_tokens(request: Request) -> bool:
    """Returns whether sidecar and engine generated other numbers of tokens.

    A step of speculative decoding may generate tokens beyond a stop string: vLLM's statistics have
    them, its answers have not.
    """
    if not request.sequences or request.output_tokens is None:
        return False
    surplus = sum(each.engine.tokens_per_step - 1 for each in request.sequences if each.stopped)
    return not 0 <= request.engine_output_tokens - request.output_tokens <= surplus


def _impossible_counts(each: EngineSequence) -> bool:
    return (
        each.steps > each.engine.engine_steps
        or each.steps > each.engine.decode_steps_total
        or not 0 < (each.engine.request_number or 0) <= each.engine.requests_total
        or each.engine.tokens_per_step < 1
    )


def _other_speculation(each: EngineSequence) -> bool:
    return (each.engine.conditions["speculative"] == "none") != (each.engine.tokens_per_step == 1)


def _impossible_hits(each: EngineSequence) -> bool:
    at = each.engine
    if at.hits_before is None or at.queries_before is None:
        return False
    return not 0 <= at.hits - at.hits_before <= at.queries - at.queries_before


def _too_short(request: Request) -> bool:
    """Returns whether the answer came sooner than the engine had generated it.

    The last event of a stream can be missed where it is cut: that costs a step.
    """
    took_s = (request.end_ns - request.start_ns) / 1e9
    return any(
        took_s < each.inference_s * (1 - CLOCK_RATE) - each.step_s - ROUNDING_S
        or took_s < each.decode_s * (1 - CLOCK_RATE) - each.step_s - ROUNDING_S
        for each in request.sequences
    )


def _tokens_out_of_order(request: Request) -> bool:
    first_ns = request.start_ns if request.first_byte_ns is None else request.first_byte_ns
    closed_ns = request.closed_ns + round(ROUNDING_S * 1e9)
    return not request.start_ns <= first_ns <= request.end_ns <= closed_ns


def _any(check: Callable[[EngineSequence], bool]) -> Callable[[Request], bool]:
    return lambda request: any(map(check, request.sequences))


_CHECKS: Final[tuple[tuple[Callable[[Request], bool], str], ...]] = (
    (
        lambda each: (
            bool(each.sequences)
            and not each.parts  # one prompt may be that of several parts
            and each.input_tokens not in (None, each.engine_input_tokens)
        ),
        "sidecar and engine report different input tokens",
    ),
    (_other_tokens, "sidecar and engine report different output tokens"),
    (lambda each: each.closed_ns < each.start_ns, "the end is before the start"),
    (
        lambda each: each.closed_ns >= each.start_ns and _tokens_out_of_order(each),
        "the first token is after the last one, or one of them outside of the request",
    ),
    (
        lambda each: len(each.sequences) > each.requested_sequences,
        "more sequences in the engine than were requested",
    ),
    (_any(_too_many_tokens), "more tokens than the engine's steps can have generated"),
    (_any(_impossible_counts), "counts of the engine that contradict each other"),
    (
        _any(_other_speculation),
        "tokens per step that the engine's speculative decoding does not generate",
    ),
    (_any(_impossible_hits), "more hits in the prefix cache than prompt tokens looked up in it"),
    (_too_short, "the answer took less time than the engine took to generate it"),
)

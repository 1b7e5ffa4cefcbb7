"""Judges a traced scenario: its row, or the objections to one.

Pure. Two processes report about each request, and the engine reports tokens, steps and times: no
one of them can be altered, or come from elsewhere, without another that disagrees. So first what
is missing of the spans, and where they contradict each other; whether the label was earned is
decided by `labels.judge`. The figures are those of `labels.figures`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from math import inf
from statistics import median
from typing import Final

from orch_sidecar.tools.drawing.texts import counted
from orch_sidecar.tools.facts.labels import intervals
from orch_sidecar.tools.facts.labels.figures import CompletedRequest, figures
from orch_sidecar.tools.facts.labels.intervals import Interval
from orch_sidecar.tools.facts.labels.judge import Objection, Reason, judge, objections_of
from orch_sidecar.tools.facts.labels.load import Load, Notes
from orch_sidecar.tools.facts.labels.measured import (
    Model,
    Run,
    Source,
    name_model,
    row_of,
)
from orch_sidecar.tools.facts.labels.observation import Observation
from orch_sidecar.tools.facts.labels.thresholds import (
    CLOCK_RATE,
    CLOCKS_AGREE_S,
    LACKING,
    ROUNDING_S,
)
from orch_sidecar.tools.facts.tables import notes as names
from orch_sidecar.tools.facts.tables.notes import Arrivals
from orch_sidecar.tools.facts.tables.row import PROFILE_LABELS, Label, Row, is_path
from orch_sidecar.tools.facts.traces.observed import (
    aborted_in,
    numbers,
    observation_of,
    prefix_hit_ratio,
)
from orch_sidecar.tools.facts.traces.requests import (
    UNCOUNTED_STEPS,
    EngineSequence,
    Outcome,
    Request,
)
from orch_sidecar.tools.facts.traces.traffic import Scenario

# Fewer requests that follow others, or fewer in all, show no kind of arrivals.
LEAST: Final = 10
# A client sends its next request within this share of an answer's time, or these seconds.
_PAUSE_SHARE: Final = 0.05
_PAUSE_S: Final = 0.05
# Of a closed loop some clients pause longer, or leave before the others.
_CLOSED_SHARE: Final = 0.9


def judge_scenario(scenario: Scenario, source: Source) -> Row | list[Objection]:
    """Returns the row of a scenario that earned its label, or the objections.

    `source`: its tag is what was read, as `jaeger:orch-sidecar`; that of the row adds the scenario.
    """
    found, model = objections(scenario), _model(scenario, source)
    if model.objection is not None and scenario.sequences:
        reason = Reason.NOT_SAID if is_path(model.id) else Reason.CONTRADICTION
        found.append(Objection(reason, f"the model {model.id!r}: {model.objection}"))
    if found:
        return found
    try:
        return _row(scenario, model, source)
    except ValueError as error:
        return [Objection(Reason.UNSOUND_ROW, str(error))]


def objections(scenario: Scenario) -> list[Objection]:
    """Returns all objections to a scenario."""
    label = scenario.key.measurement_type
    if label not in (Label.SINGLE_STREAM, Label.BATCHED_ONLINE, Label.OFFLINE):
        detail = f"measurement_type is {label!r}, which is not the label of a measurement"
        return [Objection(Reason.UNKNOWN_LABEL, detail)]
    if not scenario.served:
        return [Objection(Reason.NOTHING_SERVED, "no request was answered")]
    found = [*_incomplete(scenario)]
    if not scenario.sequences or any(each.reason is Reason.NOT_COUNTED for each in found):
        return found
    seen = observation_of(scenario)
    contradictions = (*_contradictions(scenario), *_counts(scenario, seen))
    found += (Objection(Reason.CONTRADICTION, detail) for detail in contradictions)
    return [*found, *judge(seen)]


def _incomplete(scenario: Scenario) -> list[Objection]:
    """Finds requests and sequences whose spans are missing, or lack what is needed."""
    served, found = scenario.served, scenario.sequences
    # A coalesced request has no sequence of its own.
    alone = [request for request in served if not request.coalesced]
    unended = sum(
        each.pool in (None, scenario.key.pool)
        and each.start_ns <= scenario.end_ns
        and (each.end_ns is None or each.end_ns >= scenario.start_ns)
        for each in scenario.traffic.unfinished
    )
    missing = sum(not request.sequences for request in alone)
    partly = sum(0 < len(request.sequences) < request.requested_sequences for request in alone)
    uncounted = sum(each.stated is None or each.stated.request_number is None for each in found)
    return objections_of(
        (Reason.NOT_ENDED, unended, f"{counted(unended, 'request')}: not ended, or without a "
         "server span, when the traces were read"),
        (Reason.COALESCED, not alone, "no request has a generation of its own"),
        (Reason.ENGINE_NOT_TRACED, missing, f"{missing} of {counted(len(served), 'request')}: no "
         "span of the engine (it is not traced, or has not exported its spans yet)"),
        (Reason.ENGINE_NOT_TRACED, partly,
         f"{counted(partly, 'request')}: fewer spans of the engine than sequences"),
        (Reason.NOT_COUNTED, uncounted, f"{uncounted} of {len(found)} sequences lack counters or "
         "settings of the engine, so that nobody knows who else was in it"),
    )  # fmt: skip


def _contradictions(scenario: Scenario) -> Iterator[str]:
    """Finds contradictions about the requests that were answered."""
    label, profile, served = scenario.key.measurement_type, scenario.key.profile, scenario.served
    engine = {(str(each.measurement_type), str(each.profile)) for each in scenario.sequences}
    if others := sorted(engine - {(label, str(profile))}):
        stated = ", ".join(f"{other} (profile {of})" for other, of in others)
        yield f"the sidecar reports {label} (profile {profile}), the engine {stated}"
    found = Counter(text for each in served for text in _impossible(each))
    found += Counter(
        text for each in served for text in {*chain(*map(_impossible_in_engine, each.sequences))}
    )
    yield from (f"{counted(count, 'request')}: {text}" for text, count in sorted(found.items()))
    named = PROFILE_LABELS.get(profile or "", label)
    if named != label:
        yield f"the profile {profile} is {named}: a measurement of it cannot be {label}"
    apart_ns = (
        max(each.end_ns - attempt.end_ns, attempt.start_ns - each.start_ns)
        for request in served
        for attempt in request.attempts
        for each in attempt.sequences
    )
    if far := [each / 1e9 for each in apart_ns if each > CLOCKS_AGREE_S * 1e9]:
        detail = f"lie outside of their requests by up to {max(far):.3f} s"
        remedy = "set the clocks of sidecar and engine by NTP, and measure again"
        yield f"{len(far)} of its sequences {detail}: {remedy}"


def _counts(scenario: Scenario, seen: Observation) -> Iterator[str]:
    """Finds numbers that a request cannot have, and steps that cannot have had as many sequences as
    were counted."""
    found, batches = scenario.sequences, seen.batches
    for engine in {each.epoch for each in found}:
        # An attempt has one number, and no other attempt has it: a copied span shows here.
        attempts = [numbers(engine, each.sequences) for _, each in scenario.traffic.attempts]
        wrong = sum(map(len, attempts)) - len(set().union(*attempts))
        wrong += sum(len(each) > 1 for each in attempts)
        if wrong:
            detail = "the engine numbers each request once, these spans have a number of another"
            yield f"{counted(wrong, 'request')}: {detail}"
    largest = batches.largest + sum(each.requested_sequences for each, _ in aborted_in(scenario))
    decoded, uncounted = round(batches.steps * batches.mean), UNCOUNTED_STEPS * len(found)
    if not batches.steps <= decoded <= batches.steps * largest + uncounted:
        detail = f"the engine counted {decoded} sequences in {batches.steps} decode steps"
        yield f"{detail} of up to {largest}"


def _impossible(request: Request) -> Iterator[str]:
    """Yields where sidecar and engine contradict each other, or themselves, about a request."""
    sequences, start_ns, end_ns = request.sequences, request.start_ns, request.end_ns
    # One prompt may be that of several parts.
    prompts = None if request.parts or not sequences else request.input_tokens
    if prompts not in (None, request.engine_input_tokens):
        yield "sidecar and engine report different input tokens"
    # A step of speculative decoding may generate tokens beyond a stop string: vLLM's statistics
    # have them, its answers have not.
    surplus = sum(each.engine.tokens_per_step - 1 for each in sequences if each.stopped)
    answered = None if not sequences else request.output_tokens
    if answered is not None and not 0 <= request.engine_output_tokens - answered <= surplus:
        yield "sidecar and engine report different output tokens"
    first_ns = start_ns if request.first_byte_ns is None else request.first_byte_ns
    if request.closed_ns < start_ns:
        yield "the end is before the start"
    elif not start_ns <= first_ns <= end_ns <= request.closed_ns + ROUNDING_S * 1e9:
        yield "the first token is after the last one, or one of them outside of the request"
    if len(sequences) > request.requested_sequences:
        yield "more sequences in the engine than were requested"
    # The last event of a stream can be missed where it is cut: that costs a step.
    least_s = (
        max(each.inference_s, each.decode_s) * (1 - CLOCK_RATE) - each.step_s - ROUNDING_S
        for each in sequences
    )
    if (end_ns - start_ns) / 1e9 < max(least_s, default=-inf):
        yield "the answer took less time than the engine took to generate it"


def _impossible_in_engine(each: EngineSequence) -> Iterator[str]:
    """Yields what the engine cannot have counted of a sequence."""
    at = each.engine
    if each.output_tokens > (at.engine_steps + UNCOUNTED_STEPS) * at.tokens_per_step:
        yield "more tokens than the engine's steps can have generated"
    if (
        each.steps > min(at.engine_steps, at.decode_steps_total)
        or not 0 < (at.request_number or 0) <= at.requests_total
        or at.tokens_per_step < 1
    ):
        yield "counts of the engine that contradict each other"
    if (at.conditions["speculative"] == "none") != (at.tokens_per_step == 1):
        yield "tokens per step that the engine's speculative decoding does not generate"
    if at.hits_before is None or at.queries_before is None:
        return
    if not 0 <= at.hits - at.hits_before <= at.queries - at.queries_before:
        yield "more hits in the prefix cache than prompt tokens looked up in it"


def _model(scenario: Scenario, given: Source) -> Model:
    """Returns the model, by the names that the engine serves, and what it loaded."""
    requested = str(scenario.key.model)
    engines = [each.stated for each in scenario.sequences if each.stated is not None]
    served = sorted({requested, *(each.served_as for each in engines)})
    loaded = sorted({each.weights for each in engines})
    return name_model(given.model_id or requested, given.model_name, served, loaded)


def _row(scenario: Scenario, model: Model, source: Source) -> Row:
    """Returns the row. Raises ValueError for a window without a length, and as `row_of`."""
    seen, completed = observation_of(scenario), _completed(scenario)
    arrivals = arrivals_of(completed, seen.label)
    ends = ("before", scenario.before), ("after", scenario.after)
    cut = ",".join(end for end, requests in ends if requests)
    # Those that were not served; their tokens are not in the figure.
    others = (Outcome.CANCELLED, Outcome.REFUSED)
    run = Run(
        model=str(scenario.key.model),
        totals=figures(completed),
        load=None if arrivals is None else Load(arrivals=arrivals),
        named={"scenario": scenario.name, "run": scenario.key.run},
        failed=len(scenario.ended(Outcome.FAILED)),
        outcomes={outcome.value: len(scenario.ended(outcome)) or None for outcome in others},
        doubts={names.CUT: cut or None},
    )
    reported, settings = scenario.sequences[0].engine.columns, _settings(scenario, seen)
    engine = replace(reported, batches=seen.batches, settings=settings)
    return row_of(run, seen.label, engine, model, f"{source.tag}/{scenario.name}")


def arrivals_of(requests: Sequence[CompletedRequest], label: Label) -> Arrivals | None:
    """Returns how requests arrived; None where they do not show it, and where the label implies
    it.

    In a closed loop each request but the first of each client follows the end of another one
    without a pause; by a schedule it does not. What a few requests show is by chance, and unknown.
    """
    if label is Label.SINGLE_STREAM or len(requests) < LEAST:
        return None
    arrived = sorted(each.arrived_s for each in requests)
    ended = sorted(each.ended_s for each in requests)
    if arrived[-1] - arrived[0] <= LACKING * (ended[-1] - arrived[0]):
        return Arrivals.AT_ONCE
    clients = intervals.most(each.in_flight for each in requests)
    follow = [arrived[number] - ended[number - clients] for number in range(clients, len(arrived))]
    if len(follow) < LEAST:
        return None
    pause_s = max(_PAUSE_S, _PAUSE_SHARE * median(each.latency_s for each in requests))
    if sum(each <= pause_s for each in follow) >= _CLOSED_SHARE * len(follow):
        return Arrivals.CLOSED_LOOP
    return Arrivals.OPEN_LOOP if label is Label.BATCHED_ONLINE else None


def _completed(scenario: Scenario) -> list[CompletedRequest]:
    """Converts the answered requests, in seconds since the first one, which keeps nanoseconds.

    The first token is the first byte of a streamed answer, which is when the client can see it.
    First tokens of some answers do not represent all of them.
    """

    def since(at_ns: int) -> float:
        return (at_ns - scenario.start_ns) / 1e9

    streamed = all(each.first_byte_ns is not None for each in scenario.served)
    return [
        CompletedRequest(
            arrived_s=since(each.start_ns),
            first_token_s=since(each.first_byte_ns or 0) if streamed else None,
            ended_s=since(each.end_ns),
            input_tokens=each.engine_input_tokens,
            output_tokens=each.engine_output_tokens  # where the sidecar does not know them
            if each.output_tokens is None
            else each.output_tokens,
            longest_output_tokens=each.longest_output_tokens,
        )
        for each in scenario.served
    ]


def _settings(scenario: Scenario, seen: Observation) -> Notes:
    """Returns the notes about the engine: what limited its batch, and how it was configured."""
    together = [
        Interval(min(of.first_ns for of in own), max(of.end_ns for of in own))
        for each in scenario.served
        if (own := each.sequences)
    ]
    several = any(each.requested_sequences > 1 for each in scenario.served)
    return {
        "batch_limited_by": seen.limited_by if seen.label is Label.OFFLINE else None,
        names.BATCH_REQUESTS: intervals.time_mean(together, float) if several else None,
        "profile": scenario.key.profile,
        **scenario.sequences[0].engine.conditions,
        names.PREFIX_HIT_RATIO: prefix_hit_ratio(scenario.sequences),
    }

"""Judges a traced scenario: its row, or the objections to one.

Pure. Two processes report about each request, and the engine reports tokens, steps and times: no
one of them can be altered, or come from elsewhere, without another that disagrees. So first what
is missing of the spans, and where they contradict each other; whether the label was earned is
decided by `labels.judge`. The figures are those of `labels.figures`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from statistics import median
from typing import Final

from orch_sidecar.tools.drawing.texts import counted
from orch_sidecar.tools.facts.labels import intervals, thresholds
from orch_sidecar.tools.facts.labels.figures import CompletedRequest, figures
from orch_sidecar.tools.facts.labels.intervals import Interval
from orch_sidecar.tools.facts.labels.judge import Objection, Reason, judge, objections_of
from orch_sidecar.tools.facts.labels.load import Load
from orch_sidecar.tools.facts.labels.measured import Model, Source, name_model, row_of
from orch_sidecar.tools.facts.labels.observation import Run
from orch_sidecar.tools.facts.tables import notes as names
from orch_sidecar.tools.facts.tables.notes import Arrivals
from orch_sidecar.tools.facts.tables.row import MEANINGS, PROFILE_LABELS, Label, Row, is_path
from orch_sidecar.tools.facts.traces.requests import UNCOUNTED_STEPS, EngineLabels, Outcome, Request
from orch_sidecar.tools.facts.traces.scenarios import Scenario, growth, numbers

# With one of these objections, nothing is left to be judged.
_NEEDED: Final = {Reason.UNKNOWN_LABEL, Reason.NOTHING_SERVED, Reason.NOT_COUNTED}


def judge_scenario(scenario: Scenario, source: Source) -> Row | list[Objection]:
    """Returns the row of a scenario that earned its label, or all objections.

    `source`: its tag is what was read, as `jaeger:orch-sidecar`; that of the row adds the scenario.
    """
    found, requested = _incomplete(scenario), str(scenario.key.model)
    if scenario.sequences and not _NEEDED & {each.reason for each in found}:
        rules = _contradictions(scenario)
        found += objections_of(*((Reason.CONTRADICTION, *rule) for rule in rules))
        found += [*judge(scenario.observation), *objections_of(*scenario.others)]
    engines = [each.engine for each in scenario.sequences if each.engine.epoch]
    served = sorted({requested, *(each.served_as for each in engines)})
    loaded = sorted({each.weights for each in engines})
    model = name_model(source.model_id or requested, source.model_name, served, loaded)
    if model.objection is not None and scenario.sequences:
        reason = Reason.NOT_SAID if is_path(model.id) else Reason.CONTRADICTION
        found.append(Objection(reason, f"the model {model.id!r}: {model.objection}"))
    if found:
        return found
    try:
        return _row(scenario, model, source)
    except ValueError as error:
        return [Objection(Reason.UNSOUND_ROW, str(error))]


def _incomplete(scenario: Scenario) -> list[Objection]:
    """Finds what is missing: a label, answers, or spans of them, or what these need."""
    label, served, found = scenario.key.measurement_type, scenario.served, scenario.sequences
    if label not in MEANINGS or not served:
        detail = f"measurement_type is {label!r}, which is not the label of a measurement"
        return objections_of(
            (Reason.UNKNOWN_LABEL, label not in MEANINGS, detail),
            (Reason.NOTHING_SERVED, label in MEANINGS, "no request was answered"),
        )
    # A coalesced request has no sequence of its own.
    alone = [request for request in served if not request.coalesced]
    end_ns = max(each.end_ns for each in scenario.requests)
    unended = sum(
        pool in (None, scenario.key.pool) and time.start <= end_ns and time.end >= scenario.start_ns
        for pool, time in scenario.traffic.unfinished
    )
    missing = sum(not request.sequences for request in alone)
    partly = sum(0 < len(request.sequences) < request.requested_sequences for request in alone)
    uncounted = sum(each.engine.request_number is None for each in found)
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


def _contradictions(scenario: Scenario) -> list[tuple[object, str]]:
    """Compares what sidecar and engine say: whether they contradict each other, or themselves."""
    label, profile, served = scenario.key.measurement_type, scenario.key.profile, scenario.served
    engine = {(str(each.measurement_type), str(each.profile)) for each in scenario.sequences}
    others = sorted(engine - {(label, str(profile))})
    stated = ", ".join(f"{other} (profile {of})" for other, of in others)
    impossible = Counter(text for each in served for text in _impossible(each))
    named = PROFILE_LABELS.get(profile or "", label)
    apart_s = [
        max(each.end_ns - attempt.end_ns, attempt.start_ns - each.start_ns) / 1e9
        for request in served
        for attempt in request.attempts
        for each in attempt.sequences
    ]
    far = sum(each > thresholds.CLOCKS_AGREE_S for each in apart_s)
    # An attempt has one number, and no other attempt has it: a copied span shows here.
    attempts = [numbers(scenario.engines, at.sequences) for _, at in scenario.traffic.attempts]
    wrong = sum(map(len, attempts)) - len(set().union(*attempts))
    wrong += sum(len(each) > 1 for each in attempts)
    batches = scenario.observation.batches
    largest = batches.largest + sum(each.requested_sequences for each, _ in scenario.aborted)
    decoded = round(batches.steps * batches.mean)
    most = batches.steps * largest + UNCOUNTED_STEPS * len(scenario.sequences)
    return [
        (others, f"the sidecar reports {label} (profile {profile}), the engine {stated}"),
        *((count, f"{counted(count, 'request')}: {text}")
          for text, count in sorted(impossible.items())),
        (named != label,
         f"the profile {profile} is {named}: a measurement of it cannot be {label}"),
        (far, f"{far} of its sequences lie outside of their requests by up to "
         f"{max(apart_s, default=0.0):.3f} s: set the clocks of sidecar and engine by NTP, and "
         "measure again"),
        (wrong, f"{counted(wrong, 'request')}: the engine numbers each request once, these spans "
         "have a number of another"),
        (not batches.steps <= decoded <= most,
         f"the engine counted {decoded} sequences in {batches.steps} decode steps of up to "
         f"{largest}"),
    ]  # fmt: skip


def _impossible(request: Request) -> set[str]:
    """Returns what cannot be of a request, and what the engine cannot have counted of it."""
    sequences, start_ns, end_ns = request.sequences, request.start_ns, request.end_ns
    # One prompt may be that of several parts.
    prompts = None if request.parts or not sequences else request.input_tokens
    # A step of speculative decoding may generate tokens beyond a stop string: vLLM's statistics
    # have them, its answers have not.
    surplus = sum(each.engine.tokens_per_step - 1 for each in sequences if each.stopped)
    answered = request.output_tokens if sequences else None
    first_ns = start_ns if request.first_byte_ns is None else request.first_byte_ns
    last_ns = request.closed_ns + thresholds.ROUNDING_S * 1e9
    backwards = request.closed_ns < start_ns
    # The last event of a stream can be missed where it is cut: that costs a step.
    least_s = (
        max(each.inference_s, each.decode_s) * (1 - thresholds.CLOCK_RATE)
        - each.step_s
        - thresholds.ROUNDING_S
        for each in sequences
    )
    rules = [
        (prompts not in (None, request.engine_input_tokens),
         "sidecar and engine report different input tokens"),
        (answered is not None and not 0 <= request.engine_output_tokens - answered <= surplus,
         "sidecar and engine report different output tokens"),
        (backwards, "the end is before the start"),
        (not backwards and not start_ns <= first_ns <= end_ns <= last_ns,
         "the first token is after the last one, or one of them outside of the request"),
        (len(sequences) > request.requested_sequences,
         "more sequences in the engine than were requested"),
        ((end_ns - start_ns) / 1e9 < max(least_s, default=-inf),
         "the answer took less time than the engine took to generate it"),
    ]  # fmt: skip
    for each in sequences:
        at = each.engine
        hits_before, queries_before = at.hits_before, at.queries_before
        rules += (
            (each.output_tokens > (at.engine_steps + UNCOUNTED_STEPS) * at.tokens_per_step,
             "more tokens than the engine's steps can have generated"),
            (each.steps > min(at.engine_steps, at.decode_steps_total)
             or not 0 < (at.request_number or 0) <= at.requests_total or at.tokens_per_step < 1,
             "counts of the engine that contradict each other"),
            ((at.conditions["speculative"] == "none") != (at.tokens_per_step == 1),
             "tokens per step that the engine's speculative decoding does not generate"),
            (hits_before is not None and queries_before is not None
             and not 0 <= at.hits - hits_before <= at.queries - queries_before,
             "more hits in the prefix cache than prompt tokens looked up in it"),
        )  # fmt: skip
    return {text for applies, text in rules if applies}


def _row(scenario: Scenario, model: Model, source: Source) -> Row:
    """Returns the row. Raises ValueError for a window without a length, and as `row_of`."""
    seen, served, key = scenario.observation, scenario.served, scenario.key
    # First tokens of some answers do not represent all of them.
    streamed = all(each.first_byte_ns is not None for each in served)
    completed = [_completed(each, scenario.start_ns, streamed=streamed) for each in served]
    arrivals = arrivals_of(completed, seen.label)
    ended = Counter(each.outcome for each in scenario.requests)
    ends = ("before", scenario.before), ("after", scenario.after)
    cut = ",".join(end for end, requests in ends if requests)
    run = Run(
        model=str(key.model),
        totals=figures(completed),
        load=None if arrivals is None else Load(arrivals=arrivals),
        named={"scenario": scenario.name, "run": key.run},
        failed=ended[Outcome.FAILED],
        # Their tokens are not in the figure.
        outcomes={each: ended[each] or None for each in (Outcome.CANCELLED, Outcome.REFUSED)},
        doubts={names.CUT: cut or None},
    )
    # From its first token to its last.
    decoding = [
        Interval(min(of.first_ns for of in own), max(of.end_ns for of in own))
        for each in served
        if (own := each.sequences)
    ]
    several = any(each.requested_sequences > 1 for each in served)
    engines = [each.engine for each in scenario.sequences]
    # What limited its batch, and how it was configured.
    settings = {
        "batch_limited_by": seen.limited_by if seen.label is Label.OFFLINE else None,
        names.BATCH_REQUESTS: intervals.time_mean(decoding, float) if several else None,
        "profile": key.profile,
        **engines[0].conditions,
        names.PREFIX_HIT_RATIO: _prefix_hit_ratio(engines),
    }
    engine = replace(engines[0].reported, batches=seen.batches, settings=settings)
    return row_of(run, seen.label, engine, model, f"{source.tag}/{scenario.name}")


def _prefix_hit_ratio(engines: Sequence[EngineLabels]) -> float | None:
    """Returns which share of the prompt tokens that were looked up in the window was cached.

    0 where none was looked up; None where it is not known how many were before it.
    """
    queries = [(at.queries_before, at.queries) for at in engines if at.queries_before is not None]
    hits = [(at.hits_before, at.hits) for at in engines if at.hits_before is not None]
    if not len(queries) == len(hits) == len(engines):
        return None
    looked_up = growth(queries)
    return growth(hits) / looked_up if looked_up > 0 else 0.0


def _completed(request: Request, since_ns: int, *, streamed: bool) -> CompletedRequest:
    """Converts an answered request, in seconds since a moment, which keeps nanoseconds.

    The first token is the first byte of a streamed answer, which is when the client can see it.
    """
    times_ns = request.start_ns, request.first_byte_ns or 0, request.end_ns
    arrived_s, first_s, ended_s = ((at_ns - since_ns) / 1e9 for at_ns in times_ns)
    lengths, answered = [each.output_tokens for each in request.sequences], request.output_tokens
    return CompletedRequest(
        arrived_s=arrived_s,
        first_token_s=first_s if streamed else None,
        ended_s=ended_s,
        input_tokens=request.engine_input_tokens,
        # By the engine where the sidecar does not know them.
        output_tokens=request.engine_output_tokens if answered is None else answered,
        longest_output_tokens=max(lengths) if len(lengths) > 1 else None,
    )


def arrivals_of(requests: Sequence[CompletedRequest], label: Label) -> Arrivals | None:
    """Returns how requests arrived; None where they do not show it, and where the label implies
    it.

    In a closed loop each request but the first of each client follows the end of another one
    without a pause; by a schedule it does not.
    """
    if label is Label.SINGLE_STREAM or len(requests) < thresholds.SHOWN_ARRIVALS:
        return None
    arrived = sorted(each.arrived_s for each in requests)
    ended = sorted(each.ended_s for each in requests)
    if arrived[-1] - arrived[0] <= thresholds.LACKING * (ended[-1] - arrived[0]):
        return Arrivals.AT_ONCE
    clients = intervals.most(each.in_flight for each in requests)
    follow = [arrived[number] - ended[number - clients] for number in range(clients, len(arrived))]
    if len(follow) < thresholds.SHOWN_ARRIVALS:
        return None
    latency_s = median(each.latency_s for each in requests)
    pause_s = max(thresholds.PAUSE_S, thresholds.PAUSE_SHARE * latency_s)
    if sum(each <= pause_s for each in follow) >= thresholds.CLOSED_SHARE * len(follow):
        return Arrivals.CLOSED_LOOP
    return Arrivals.OPEN_LOOP if label is Label.BATCHED_ONLINE else None

"""Makes a row anew from its evidence, and compares it with the row that is stated.

Pure. What the engine signed gives the engine's columns, its settings and batches; what the client
recorded gives the load, the outcomes, and, computed again from each of its requests, the figures.
The client's times are then held against the engine's. By the engine's clock throughput is the
generated tokens of its finished sequences over the time from the first arrival to the last end. A
client measures at the far end of a network, so its window is a little longer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby, islice
from typing import Final

from orch_sidecar.tools.facts.labels import thresholds
from orch_sidecar.tools.facts.labels.figures import CompletedRequest, Totals, percentile
from orch_sidecar.tools.facts.labels.intervals import Interval
from orch_sidecar.tools.facts.labels.judge import judge
from orch_sidecar.tools.facts.labels.load import Load, loop_contradictions, schedule_contradictions
from orch_sidecar.tools.facts.labels.measured import (
    Model,
    engine_between,
    name_model,
    row_of,
)
from orch_sidecar.tools.facts.labels.observation import Observation
from orch_sidecar.tools.facts.labels.recorded import RecordedRun, seen_by_client
from orch_sidecar.tools.facts.signing.proof import Proof
from orch_sidecar.tools.facts.tables import notes as names
from orch_sidecar.tools.facts.tables.notes import Arrivals, Loop
from orch_sidecar.tools.facts.tables.row import COLUMNS, Label, Row
from orch_sidecar.tools.facts.tables.table import row_fields

# A note has six digits after a rounding to three or four decimals.
_DIGITS: Final = 1e-5
_DECIMALS: Final = {
    **{"_ms": 0.003, names.BATCH_MEAN: 0.001, "_ratio": 0.001, "window_s": 0.001},
    **{names.GOODPUT_SHARE: 1e-4, "throughput_tokens_per_sec": 1e-4},
}
_ABSENT: Final = "absent"

# What nobody but the client states: how it sent its requests, and what it saw of the answers.
_CLIENTS: Final = (*Load(arrivals=Arrivals.TRACE).notes, *names.REPLAYED, names.CLIENT_BOTTLENECK)
_SEEN: Final = ("ttft_", "tpot_", "latency_", "goodput_")


def client_measured(row: Row) -> list[str]:
    """Returns the notes of a row that are the client's word. That it was no bottleneck is, too."""
    found = [name for name in row.notes if name.startswith(_SEEN) or name in _CLIENTS]
    return list(dict.fromkeys([*found, names.CLIENT_BOTTLENECK]))


def contradictions(row: Row, run: RecordedRun, proof: Proof) -> list[str]:
    """Returns where a row does not follow from its evidence, empty if it does. Raises ValueError
    for a run without figures, or with those of a row that no table would take."""
    state, tag, seen = proof.before.snapshot, f"orch-bench:{proof.before.run}", run.run
    model = name_model(run.model_id, run.model_name, state.models, [state.weights])
    anew = row_of(seen, run.measurement_type, engine_between(proof.states), model, tag)
    return [
        *(each.detail for each in judge(observation_of(row.measurement_type, run, proof))),
        *_other_model(run, model, state.models),
        *_differences(row, anew, seen.totals.window_s),
        *_left_out(run),
        *_by_the_engine(seen.totals, proof),
        *impossible_times(run, proof),
    ]


def observation_of(label: Label, run: RecordedRun, proof: Proof) -> Observation:
    """Returns what the engine signed of a run, and how its client states that it sent it."""
    complete = all(call.fate == "answered" for call in run.calls)
    # Of fewer some were aborted, or are still running: their tokens are in no leaf.
    finished = complete or len(proof.requests) >= proof.states.grew("requests_total")
    return seen_by_client(
        *(label, run.load, run.calls, proof.states),
        counted=not run.counted_by_events,
        output_tokens=proof.totals.output_tokens if finished else None,
        input_tokens=proof.totals.input_tokens if complete else None,
        in_flight=[each.in_flight for each in proof.requests],
        running=[each.running for each in proof.requests],
        in_engine=[Interval(leaf.arrived_s, leaf.ended_s) for leaf in proof.leaves],
        clock_slack=proof.adjusted_s + thresholds.ROUNDING_S,
    )


def _differences(row: Row, anew: Row, window_s: float) -> Iterator[str]:
    """Yields the columns and notes that are not what the evidence gives."""
    stated, given = _stated(row), _stated(anew)
    for name in {**given, **stated}:
        there, here = stated.get(name, _ABSENT), given.get(name, _ABSENT)
        if there != here and not _rounded(name, there, here, window_s):
            yield f"{name} is {there}, the evidence gives {here}"


def _stated(row: Row) -> dict[str, str]:
    """Returns the columns of a row and its notes."""
    columns = dict(zip(COLUMNS, row_fields(row), strict=True))
    del columns["scenario_notes"]
    return columns | {f"the note {name}": text for name, text in row.notes.items()}


def _rounded(name: str, stated: str, value: str, window_s: float) -> bool:
    """Returns whether both are one number, of which more is known than it has digits."""
    decimals = next((least for end, least in _DECIMALS.items() if name.endswith(end)), None)
    if decimals is None or _ABSENT in (stated, value):
        return False
    slack = decimals + (_DIGITS + thresholds.RECORDED_S / window_s) * float(value)
    return abs(float(stated) - float(value)) <= slack


def _left_out(run: RecordedRun) -> Iterator[str]:
    """Yields what is missing of the client's requests: figures without the slowest are better."""
    answered = [call for call in run.calls if call.fate == "answered"]
    if others := {call.fate for call in run.calls} - {"answered", "refused", "failed"}:
        yield f"requests of a complete run are answered, refused or failed, not {min(others):.80}"
    if unknown := sum(call.served is None for call in answered):
        yield f"{unknown} answers have no length, or no end"
    # All tokens of a short one may have come with its end.
    long = [
        call.first_s for call in answered if (call.output_tokens or 0) > thresholds.LAST_STEP_TOKENS
    ]
    if 0 < (unknown := long.count(None)) < len(long):
        yield f"{unknown} of {len(long)} answers have no first token"


def _other_model(run: RecordedRun, model: Model, served_as: Sequence[str]) -> Iterator[str]:
    if run.model not in served_as:
        yield f"the model {run.model!r} is not one that the engine served"
    if model.objection is not None:
        yield f"model_id is {run.model_id!r}: {model.objection}"


def _by_the_engine(whole: Totals, proof: Proof) -> Iterator[str]:
    """Compares the client's figures with those by the engine's clock and counters."""
    engine = proof.totals
    if engine.requests < whole.requests:
        yield (
            f"{whole.requests} requests were answered, the engine's finished sequences are of "
            f"{engine.requests}: each request must have an id of its own"
        )
    if whole.output_tokens < engine.output_tokens * (1 - thresholds.FAILED_SHARE):
        yield (
            f"the answers have {whole.output_tokens} generated tokens, the engine's finished "
            f"sequences {engine.output_tokens}: it served others, too"
        )
    longest_s = engine.window_s * (1 + thresholds.WINDOW_SHARE) + thresholds.WINDOW_S
    fastest = engine.tokens_per_s * (1 + thresholds.WINDOW_SHARE)
    slowest = engine.output_tokens / longest_s if engine.requests == whole.requests else 0.0
    if not slowest * (1 - _DIGITS) <= whole.tokens_per_s <= fastest:
        by_engine = f"by the engine {engine.tokens_per_s:.6g}"
        yield f"throughput is {whole.tokens_per_s:.6g} tokens/s, {by_engine}"
    shortest_s = engine.window_s * (1 - thresholds.WINDOW_SHARE) - thresholds.ROUNDING_S
    if whole.window_s < shortest_s:
        yield f"window_s is {whole.window_s:g}, by the engine {engine.window_s:.6g}"
    if whole.window_s > proof.between_s:
        apart = f"the statements are {proof.between_s:.6g} s apart"
        yield f"window_s is {whole.window_s:g}, {apart}"


# Of a request.
_Time = Callable[[CompletedRequest], float | None]


def impossible_times(run: RecordedRun, proof: Proof) -> Iterator[str]:
    """Yields what of a client's requests cannot be, beside what the engine signed of them.

    Nobody signed which answer was which finished request, but every answer was one. So, whatever
    the assignment, and in each group of requests with the same numbers of tokens:

    - tokens: each answer has the prompt and generated tokens of a request of its own;
    - order: the k-th request came to the engine after the k-th was sent, and the k-th first token
      and the k-th end were seen after the engine's k-th. The clocks differ by one number, for all;
    - lengths: the k-th shortest TTFT and latency are no less than the engine's k-th shortest.

    What a client may have seen of an answer earlier than the engine's last token is its last step,
    as a token without text at the end makes no event.
    """
    yield from _arrivals(run, proof)
    seen = list(_seen(run))
    sent = [call.sent_s for call in run.calls if call.sent_s is not None]
    requests = [each.earliest for each in proof.requests]
    missing = Counter(map(_tokens, seen)) - Counter(map(_tokens, requests))
    for (prompt, generated), count in sorted(missing.items())[:1]:
        yield (
            f"{count} more answers of {prompt} prompt and {generated} generated tokens were "
            "recorded than the engine finished"
        )
    if missing:
        return
    slack_s = proof.adjusted_s + thresholds.CLOCK_RATE * proof.totals.window_s
    slack_s += thresholds.ROUNDING_S + thresholds.NOTED_LATE_S
    groups = [(sent, seen, requests)]
    if len(seen) == len(requests):
        # Of a failed request nobody knows which of the engine's it was: no group is whole then.
        pairs = zip(_by_tokens(seen), _by_tokens(requests), strict=True)
        groups += [([each.arrived_s for each in here], here, there) for here, there in pairs]
    problems = (problem for group in groups for problem in _impossible(*group, slack_s))
    yield from islice(problems, 1)


def _seen(run: RecordedRun) -> Iterator[CompletedRequest]:
    """Yields the answers as their client saw them, each from when it was due and sent."""
    for call in run.calls:
        if (served := call.served) is not None:
            sent_s = served.arrived_s if call.sent_s is None else call.sent_s
            yield replace(served, arrived_s=max(served.arrived_s, sent_s))


def _tokens(request: CompletedRequest) -> tuple[int, int]:
    return request.input_tokens, request.output_tokens


def _by_tokens(requests: Sequence[CompletedRequest]) -> Iterator[list[CompletedRequest]]:
    for _, group in groupby(sorted(requests, key=_tokens), _tokens):
        yield list(group)


# What a client sees of an answer, and after how long.
_MOMENTS: Final[tuple[tuple[str, str, _Time, _Time], ...]] = (
    ("began to come", "TTFT", lambda each: each.first_token_s, lambda each: each.ttft_s),
    ("ended", "latency", lambda each: each.ended_s, lambda each: each.latency_s),
)


def _impossible(
    sent: Sequence[float],
    seen: Sequence[CompletedRequest],
    requests: Sequence[CompletedRequest],
    slack_s: float,
) -> Iterator[str]:
    """Yields why no difference of the clocks explains the order of times, and too short ones."""
    came, went = sorted(each.arrived_s for each in requests), sorted(sent)
    if len(went) < len(came):
        yield f"the engine finished {len(came)} requests, of which {len(went)} were sent"
        return
    latest = min((there - here for there, here in zip(came, went, strict=False)), default=0.0)
    for text, name, at, took in _MOMENTS:
        here, there = _known(at, seen), _known(at, requests)
        pairs = zip(there, here, strict=False)
        early_s = max((engine_s - client_s for engine_s, client_s in pairs), default=0.0) - latest
        if len(here) == len(seen) and here and early_s > slack_s:
            yield (
                f"answers {text} {early_s:.3f} s before the engine had made them, wherever its "
                "clock stood when they were sent"
            )
        for client_s, engine_s in zip(_known(took, seen), _known(took, requests), strict=False):
            if client_s < engine_s * (1 - thresholds.CLOCK_RATE) - thresholds.ROUNDING_S:
                yield f"a {name} is {client_s:.4g} s, the engine alone took {engine_s:.4g} s"


def _known(time: _Time, requests: Sequence[CompletedRequest]) -> list[float]:
    return sorted(at for each in requests if (at := time(each)) is not None)


def _arrivals(run: RecordedRun, proof: Proof) -> Iterator[str]:
    """Compares the load that is stated with when requests were due, sent and in flight."""
    load, scheduled = run.load, [call for call in run.calls if call.due_s is not None]
    kind, clients = load.arrivals, load.clients
    beside = [call.in_flight for call in run.calls if call.due_s is None]
    if load.trace is not None:
        clients = load.trace.bulk_clients
    elif kind.loop is Loop.CLOSED and scheduled:
        yield f"arrivals is {kind}, the client's requests had a schedule"
    if not (kind.loop is Loop.CLOSED or scheduled):
        yield f"arrivals is {kind}, the client's requests had no schedule"
    if (known := [each for each in beside if each is not None]) and clients is not None:
        spans = [] if scheduled else [each.in_flight for each in proof.requests]
        # An end that was noted late is no overlap.
        inside = [Interval(at, max(at, end - thresholds.NOTED_LATE_S)) for at, end, _ in spans]
        # A busy machine's clients pause, and the row notes that.
        yield from loop_contradictions(clients, known, inside, may_pause=bool(run.bottleneck))
    times = ((call.due_s, call.sent_s) for call in scheduled)
    late = [sent_s - due_s for due_s, sent_s in times if due_s is not None and sent_s is not None]
    late_s, most_s = percentile(late, 99) or 0.0, float(thresholds.CLIENT_LATE_S)
    if kind is Arrivals.AT_ONCE:
        most_s = max(most_s, thresholds.CLIENT_LATE_SHARE * proof.totals.window_s)
    if late_s > most_s + thresholds.ROUNDING_S and not run.bottleneck:
        yield f"requests were sent {late_s:.3f} s late (p99), and no client_bottleneck is noted"
    due_s = sorted(each.due_s or 0.0 for each in scheduled)
    ended_s = [call.ended_s for call in run.calls if call.ended_s is not None]
    # The load generator that is not ours states when it has issued a request.
    yield from schedule_contradictions(load, due_s, ended_s, exact=load.loadgen is None)

"""Makes a row anew from its evidence, and compares it with the row that is stated.

Pure. `docs/reference/evidence.md` has what is compared with what. A client measures at the far end
of a network, so its window is a little longer than the engine's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, groupby, islice
from math import inf
from operator import attrgetter, sub
from typing import Final

from orch_sidecar.tools.facts.labels import thresholds
from orch_sidecar.tools.facts.labels.figures import CompletedRequest, Totals, percentile
from orch_sidecar.tools.facts.labels.intervals import Interval
from orch_sidecar.tools.facts.labels.judge import judge
from orch_sidecar.tools.facts.labels.load import Load
from orch_sidecar.tools.facts.labels.load import contradictions as load_contradictions
from orch_sidecar.tools.facts.labels.measured import Model, engine_between, name_model, row_of
from orch_sidecar.tools.facts.labels.observation import Observation, observed
from orch_sidecar.tools.facts.labels.recorded import RecordedRun
from orch_sidecar.tools.facts.signing.proof import Proof
from orch_sidecar.tools.facts.tables import notes as names
from orch_sidecar.tools.facts.tables.notes import Arrivals, Loop
from orch_sidecar.tools.facts.tables.row import COLUMNS, MEANINGS, Label, Row
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
    if run.measurement_type not in MEANINGS:
        raise ValueError(f"the client's result is of no label: {run.measurement_type}")
    model = name_model(run.model_id, run.model_name, state.models, [state.weights])
    anew = row_of(seen, run.measurement_type, engine_between(proof.states), model, tag)
    return [
        *(each.detail for each in judge(observation_of(row.measurement_type, run, proof))),
        *(text for applies, text in _rules(run, model, seen.totals, proof) if applies),
        *differences(row, anew, seen.totals.window_s),
        *impossible_times(run, proof),
    ]


def observation_of(label: Label, run: RecordedRun, proof: Proof) -> Observation:
    """Returns what the engine signed of a run, and how its client states that it sent it."""
    answered = [call for call in run.calls if call.fate == "answered"]
    complete, states = len(answered) == len(run.calls), proof.states
    # Of fewer some were aborted, or are still running: their tokens are in no leaf.
    finished = complete or len(proof.requests) >= states.grew("requests_total")
    return observed(
        label,
        states,
        load=run.load,
        sent=sum(call.reached for call in run.calls),
        answered=len(answered),
        output_tokens=proof.totals.output_tokens if finished else None,
        input_tokens=proof.totals.input_tokens if complete else None,
        in_flight=[each.in_flight for each in proof.requests],
        running=[each.running for each in proof.requests],
        in_engine=[Interval(leaf.arrived_s, leaf.ended_s) for leaf in proof.leaves],
        clock_slack=proof.adjusted_s + thresholds.ROUNDING_S,
    )


def differences(row: Row, anew: Row, window_s: float | None = None) -> Iterator[str]:
    """Yields the columns and notes that are not what the evidence gives. `window_s`: of a row that
    was made anew of recorded times, whose numbers were rounded otherwise."""
    stated, given = (
        dict(zip(COLUMNS, row_fields(each), strict=True))
        | {f"the note {name}": text for name, text in each.notes.items()}
        | {"scenario_notes": ""}
        for each in (row, anew)
    )
    for name in {**given, **stated}:
        there, here = stated.get(name, _ABSENT), given.get(name, _ABSENT)
        if there != here and not (window_s and _rounded(name, there, here, window_s)):
            yield f"{name} is {there:.80}, the evidence gives {here:.80}"


def _rounded(name: str, stated: str, value: str, window_s: float) -> bool:
    """Returns whether both are one number, of which more is known than it has digits."""
    decimals = next((least for end, least in _DECIMALS.items() if name.endswith(end)), None)
    if decimals is None or _ABSENT in (stated, value):
        return False
    slack = decimals + (_DIGITS + thresholds.RECORDED_S / window_s) * float(value)
    return abs(float(stated) - float(value)) <= slack


def _rules(
    run: RecordedRun, model: Model, whole: Totals, proof: Proof
) -> tuple[tuple[object, str], ...]:
    """Compares the client's model, answers, tokens and window with what the engine signed: whether
    something is wrong, and what it is. Figures without the slowest requests are better."""
    answered = [call for call in run.calls if call.fate == "answered"]
    others = {call.fate for call in run.calls} - {"answered", "refused", "failed"}
    unknown = sum(call.served is None for call in answered)
    # All tokens of a short one may have come with its end.
    long = [call for call in answered if (call.output_tokens or 0) > thresholds.LAST_STEP_TOKENS]
    cut = sum(call.first_s is None for call in long)
    engine, share, longest_s = proof.totals, 1 + thresholds.WINDOW_SHARE, proof.between_s
    if engine.requests == whole.requests:
        longest_s = min(longest_s, engine.window_s * share + thresholds.WINDOW_S)
    return (
        (run.model not in proof.before.snapshot.models,
         f"the model {run.model!r} is not one that the engine served"),
        (model.objection, f"model_id is {run.model_id!r}: {model.objection}"),
        (others, "requests of a complete run are answered, refused or failed, not "
         f"{min(others, default=''):.80}"),
        (unknown, f"{unknown} answers have no length, or no end"),
        (0 < cut < len(long), f"{cut} of {len(long)} answers have no first token"),
        (whole.output_tokens < engine.output_tokens * (1 - thresholds.FAILED_SHARE),
         f"the answers have {whole.output_tokens} generated tokens, the engine's finished "
         f"sequences {engine.output_tokens}: it served others, too"),
        (not engine.window_s / share <= whole.window_s <= longest_s,
         f"window_s is {whole.window_s:g}, by the engine {engine.window_s:.6g} of the "
         f"{proof.between_s:.6g} s between its statements"),
    )  # fmt: skip


def impossible_times(run: RecordedRun, proof: Proof) -> Iterator[str]:
    """Yields what of a client's requests cannot be, beside what the engine signed of them.

    Nobody signed which answer was which finished request, but every answer was one: whatever the
    assignment, tokens, order and lengths must fit, in each group of requests with the same numbers
    of tokens, too. The clocks differ by one number, for all.
    """
    yield from _arrivals(run, proof)
    requests = [each.earliest for each in proof.requests]
    sent = [call.sent_s for call in run.calls if call.sent_s is not None]
    seen = [  # from when they were due and sent
        replace(made, arrived_s=max(made.arrived_s, call.sent_s or 0.0))
        for call in run.calls
        if (made := call.served) is not None
    ]
    missing = Counter(map(_TOKENS, seen)) - Counter(map(_TOKENS, requests))
    for (prompt, generated), count in sorted(missing.items())[:1]:
        yield (
            f"{count} more answers of {prompt} prompt and {generated} generated tokens were "
            "recorded than the engine finished"
        )
    if len(sent) < len(requests):
        yield f"the engine finished {len(requests)} requests, of which {len(sent)} were sent"
    elif not missing:
        groups = [(sent, seen, requests)]
        if len(seen) == len(requests):
            # Of a failed request nobody knows which of the engine's it was: no group is whole then.
            by_client, by_engine = (
                [list(group) for _, group in groupby(sorted(each, key=_TOKENS), _TOKENS)]
                for each in (seen, requests)
            )
            pairs = zip(by_client, by_engine, strict=True)
            groups += [([each.arrived_s for each in here], here, there) for here, there in pairs]
        slack_s = proof.adjusted_s + thresholds.CLOCK_RATE * proof.totals.window_s
        slack_s += thresholds.ROUNDING_S + thresholds.NOTED_LATE_S
        yield from islice(chain.from_iterable(_impossible(*each, slack_s) for each in groups), 1)


_TOKENS: Final = attrgetter("input_tokens", "output_tokens")
# What a client sees of an answer, and the names of its time, and of how long it took.
_MOMENTS: Final = (
    ("began to come", "first_token_s", "TTFT", "ttft_s"),
    ("ended", "ended_s", "latency", "latency_s"),
)


def _impossible(
    sent: Sequence[float],
    seen: Sequence[CompletedRequest],
    requests: Sequence[CompletedRequest],
    slack_s: float,
) -> Iterator[str]:
    """Yields why no difference of the clocks explains the order of times, and too short ones."""
    latest = min(map(sub, _known("arrived_s", requests), sorted(sent)), default=0.0)
    for text, at, name, took in _MOMENTS:
        here = _known(at, seen)
        early_s = max(map(sub, _known(at, requests), here), default=0.0) - latest
        if 0 < len(here) == len(seen) and early_s > slack_s:
            yield (
                f"answers {text} {early_s:.3f} s before the engine had made them, wherever its "
                "clock stood when they were sent"
            )
        for client_s, engine_s in zip(_known(took, seen), _known(took, requests), strict=False):
            if client_s < engine_s * (1 - thresholds.CLOCK_RATE) - thresholds.ROUNDING_S:
                yield f"a {name} is {client_s:.4g} s, the engine alone took {engine_s:.4g} s"


def _known(time: str, requests: Sequence[CompletedRequest]) -> list[float]:
    return sorted(at for each in requests if (at := getattr(each, time)) is not None)


def _arrivals(run: RecordedRun, proof: Proof) -> Iterator[str]:
    """Compares the load that is stated with when requests were due, sent and in flight."""
    load, kind, closed = run.load, run.load.arrivals, run.load.arrivals.loop is Loop.CLOSED
    scheduled = [
        Interval(call.due_s, inf if call.ended_s is None else call.ended_s)
        for call in run.calls
        if call.due_s is not None
    ]
    if closed is bool(scheduled):
        yield f"arrivals is {kind}, the client's requests had {'a' if closed else 'no'} schedule"
    times = ((call.due_s, call.sent_s) for call in run.calls)
    late = [sent_s - due_s for due_s, sent_s in times if due_s is not None and sent_s is not None]
    late_s, most_s = percentile(late, 99) or 0.0, float(thresholds.CLIENT_LATE_S)
    if kind is Arrivals.AT_ONCE:
        most_s = max(most_s, thresholds.CLIENT_LATE_SHARE * proof.totals.window_s)
    if late_s > most_s + thresholds.ROUNDING_S and not run.bottleneck:
        yield f"requests were sent {late_s:.3f} s late (p99), and no client_bottleneck is noted"
    # An end that was noted late is no overlap.
    spans = [] if scheduled else [each.in_flight for each in proof.requests]
    yield from load_contradictions(
        load,
        [each for call in run.calls if call.due_s is None and (each := call.in_flight) is not None],
        scheduled,
        seen_by_engine=[
            Interval(at, max(at, end - thresholds.NOTED_LATE_S)) for at, end, _ in spans
        ],
        may_pause=bool(run.bottleneck),  # a busy machine's clients do, and the row notes that
        exact=load.loadgen is None,  # that load generator states when it has issued a request
    )

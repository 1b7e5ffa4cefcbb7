"""Makes a row anew from its evidence, and compares it with the row that is stated.

Pure. What the engine signed gives the engine's columns, its settings and batches; what the client
recorded gives the load, the outcomes, and, computed again from each of its requests, the figures.
The client's times are then held against the engine's (`matching`). By the engine's clock throughput
is the generated tokens of its finished sequences over the time from the first arrival to the last
end. A client measures at the far end of a network, so its window is a little longer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from orch_sidecar.tools.facts.labels import measured
from orch_sidecar.tools.facts.labels.figures import Totals, figures
from orch_sidecar.tools.facts.labels.intervals import Interval
from orch_sidecar.tools.facts.labels.judge import judge
from orch_sidecar.tools.facts.labels.measured import Measured
from orch_sidecar.tools.facts.labels.model import Model, name_model
from orch_sidecar.tools.facts.labels.observation import Observation, RequestCounts, observed
from orch_sidecar.tools.facts.labels.recorded import RecordedRun
from orch_sidecar.tools.facts.labels.thresholds import (
    FAILED_SHARE,
    ROUNDING_S,
    WINDOW_S,
    WINDOW_SHARE,
)
from orch_sidecar.tools.facts.signing.matching import impossible_times
from orch_sidecar.tools.facts.signing.proof import Proof
from orch_sidecar.tools.facts.tables import notes as names
from orch_sidecar.tools.facts.tables.row import COLUMNS, Label, Row, parse_notes

# A recorded time is rounded to a microsecond, a note to six digits after a rounding to three or
# four decimals.
_TIME_S: Final = 2e-6
_DIGITS: Final = 1e-5
_DECIMALS: Final = {"_ms": 0.003, names.BATCH_MEAN: 0.001, "_ratio": 0.001, "window_s": 0.001}

# What nobody but the client states: how it sent its requests, and what it saw of the answers.
_CLIENTS: Final = ("ttft_", "tpot_", "latency_", "goodput_", "arrivals", "rate_", "burstiness")
_CLIENTS_TOO: Final = (*names.REPLAYED, "at_once", "seed", names.CLIENT_BOTTLENECK)


def client_measured(row: Row) -> list[str]:
    """Returns the notes of a row that are the client's word."""
    stated = parse_notes(row.scenario_notes)
    return [name for name in stated if name.startswith(_CLIENTS) or name in _CLIENTS_TOO]


def contradictions(row: Row, run: RecordedRun, proof: Proof) -> list[str]:
    """Returns where a row does not follow from its evidence, empty if it does."""
    try:
        rebuilt = _rebuilt(run, proof)
        anew = rebuilt.row()
    except ValueError as error:
        return [f"of the client's requests: {error}"]
    return [
        *(each.detail for each in judge(observation_of(row.measurement_type, run, proof))),
        *_other_model(run, proof),
        *_differences(row, anew, rebuilt.totals.window_s),
        *_goodput(row, run),
        *_by_the_engine(rebuilt.totals, proof),
        *impossible_times(run, proof),
    ]


def observation_of(label: Label, run: RecordedRun, proof: Proof) -> Observation:
    """Returns what the engine signed of a run, and how its client states that it sent it."""
    answered = [call for call in run.calls if call.fate == "answered"]
    complete = len(answered) == len(run.calls)
    counts = RequestCounts(
        sent=sum(call.fate != "refused" for call in run.calls),
        answered=len(answered),
        output_tokens=proof.generated_tokens if complete else None,
        input_tokens=sum(each.prompt_tokens for each in proof.requests) if complete else None,
    )
    seen = observed(
        label,
        proof.states,
        counts,
        in_flight=[each.in_flight for each in proof.requests],
        arrivals=run.scenario.arrivals,
        at_once=run.scenario.clients,
    )
    return replace(
        seen,
        decoding=[each.decoding for each in proof.requests],
        in_engine=[Interval(leaf.arrived_s, leaf.ended_s) for leaf in proof.leaves],
        clock_slack=proof.adjusted_s + ROUNDING_S,
    )


def _rebuilt(run: RecordedRun, proof: Proof) -> Measured:
    """Returns what a row of this run states. Raises ValueError for a run without figures."""
    state, whole = proof.before.snapshot, figures(run.served)
    some = [served for call in run.of_class if (served := call.served) is not None]
    latencies = measured.latency_notes(figures(some).times_s, 1000) if some else {}
    model = _model(run, proof)
    return Measured(
        label=run.measurement_type,
        engine=measured.engine_of(state),
        model_id=model.id,
        model_name=model.name,
        totals=whole,
        source_tag=f"orch-bench:{proof.before.run}",
        batches=proof.states.batches,
        load=run.load,
        latency_ms=latencies,
        outcomes=run.outcomes,
        settings=measured.settings_of(state, proof.states.prefix_hit_ratio),
        doubts=run.doubts,
        served_as=run.engine.model,
        given=model.given,
    )


def _differences(row: Row, anew: Row, window_s: float) -> Iterator[str]:
    """Yields the columns and notes that are not what the evidence gives."""
    for name in COLUMNS:
        stated, value = getattr(row, name), getattr(anew, name)
        if name == "throughput_tokens_per_sec":
            rounding = 1e-4 + (_DIGITS + _TIME_S / window_s) * value
            if abs(stated - value) > rounding:
                yield f"throughput is {stated:.6g} tokens/s, the evidence gives {value:.6g}"
        elif name != "scenario_notes" and stated != value:
            yield f"{name} is {stated!r}, the evidence gives {value!r}"
    notes, known = parse_notes(row.scenario_notes), parse_notes(anew.scenario_notes)
    for name in {**known, **notes}:
        there, here = notes.get(name, "absent"), known.get(name, "absent")
        if name in names.SLOS and there == "absent":
            continue  # rows of earlier releases do not note the SLO
        if name != names.GOODPUT_SHARE and there != here and not _rounded(name, there, here):
            yield f"the note {name} is {there}, the evidence gives {here}"


def _rounded(name: str, stated: str, value: str) -> bool:
    """Returns whether two notes are one number of which more is known than they have digits."""
    decimals = next((least for end, least in _DECIMALS.items() if name.endswith(end)), None)
    if decimals is None or "absent" in (stated, value):
        return False
    return abs(float(stated) - float(value)) <= decimals + _DIGITS * float(value)


def _goodput(row: Row, run: RecordedRun) -> Iterator[str]:
    """Compares the goodput with the requests; one at a bound may be on either side of it."""
    stated, calls, bounds = parse_notes(row.scenario_notes), run.of_class, run.scenario.slo_ms
    if not bounds:
        if names.GOODPUT_SHARE in stated:
            yield f"{names.GOODPUT_SHARE} is {stated[names.GOODPUT_SHARE]}, there was no SLO"
        return
    served = [served for call in calls if (served := call.served) is not None]
    least, most = (
        sum(each.meets(bounds, slack_s) for each in served) / max(1, len(calls))
        for slack_s in (-_TIME_S, _TIME_S)
    )
    share = stated.get(names.GOODPUT_SHARE)
    if share is None or not least - 1e-4 <= float(share) <= most + 1e-4:
        yield f"{names.GOODPUT_SHARE} is {share or 'absent'}, the evidence gives {most:.4g}"


def _model(run: RecordedRun, proof: Proof) -> Model:
    state, known = proof.before.snapshot, run.engine
    return name_model(known.model_id, known.model_name, state.models, [state.weights])


def _other_model(run: RecordedRun, proof: Proof) -> Iterator[str]:
    if run.engine.model not in proof.before.snapshot.models:
        yield f"the model {run.engine.model!r} is not one that the engine served"
    if (objection := _model(run, proof).objection) is not None:
        yield f"model_id is {run.engine.model_id!r}: {objection}"


def _by_the_engine(whole: Totals, proof: Proof) -> Iterator[str]:
    """Compares the client's figures with those by the engine's clock and counters."""
    requests, tokens = whole.requests, whole.output_tokens
    if len(proof.requests) < requests:
        yield (
            f"{requests} requests were answered, the engine's finished sequences are of "
            f"{len(proof.requests)}: each request must have an id of its own"
        )
    if tokens < proof.generated_tokens * (1 - FAILED_SHARE):
        yield (
            f"the answers have {tokens} generated tokens, the engine's finished sequences "
            f"{proof.generated_tokens}: it served others, too"
        )
    longest_s = proof.window_s * (1 + WINDOW_SHARE) + WINDOW_S
    fastest = proof.tokens_per_s * (1 + WINDOW_SHARE)
    slowest = proof.generated_tokens / longest_s if len(proof.requests) == requests else 0.0
    if not slowest * (1 - _DIGITS) <= whole.tokens_per_s <= fastest:
        by_engine = f"by the engine {proof.tokens_per_s:.6g}"
        yield f"throughput is {whole.tokens_per_s:.6g} tokens/s, {by_engine}"
    if whole.window_s < proof.window_s * (1 - WINDOW_SHARE) - ROUNDING_S:
        yield f"window_s is {whole.window_s:g}, by the engine {proof.window_s:.6g}"
    if whole.window_s > proof.between_s:
        apart = f"the statements are {proof.between_s:.6g} s apart"
        yield f"window_s is {whole.window_s:g}, {apart}"

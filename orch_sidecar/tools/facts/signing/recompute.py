"""Recomputes a row from what an engine signed, and holds the row's columns and notes against it.

Pure. By the engine's clock: throughput is the generated tokens of its finished sequences over the
time from the first arrival to the last end, and a batch is that of its decode-only steps. A client
measures at the far end of a network, so its window is a little longer: it may exceed the engine's
by WINDOW_SHARE and WINDOW_S, and never the time between the two statements. Latencies only the
client saw: `client_times` has their bounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from orch_sidecar.tools.facts.labels.intervals import Interval
from orch_sidecar.tools.facts.labels.judge import judge
from orch_sidecar.tools.facts.labels.observation import Observation, RequestCounts
from orch_sidecar.tools.facts.labels.served_model import is_given, model_objection
from orch_sidecar.tools.facts.labels.thresholds import (
    FAILED_SHARE,
    ROUNDING_S,
    WINDOW_S,
    WINDOW_SHARE,
)
from orch_sidecar.tools.facts.signing.client_times import time_contradictions
from orch_sidecar.tools.facts.signing.proof import Proof
from orch_sidecar.tools.facts.tables import notes as names
from orch_sidecar.tools.facts.tables.notes import Arrivals, arrivals_of
from orch_sidecar.tools.facts.tables.row import Label, Row, format_engine, last_part, parse_notes

# Notes have six significant digits.
_ROUNDING: Final = 1e-5

_CLIENT_NOTES: Final = ("ttft_", "tpot_", "latency_", "goodput_")


@dataclass(frozen=True, slots=True)
class Recomputed:
    """The figures of a run by the engine's clock and counters."""

    tokens_per_s: float
    window_s: float
    sequences: int
    generated_tokens: int
    batch_mean: float
    batch_max: int
    prefix_hit_ratio: float


def recompute(proof: Proof) -> Recomputed:
    """Returns the figures of a run whose window has a length, else raises ValueError."""
    if proof.window_s <= 0:
        raise ValueError("the finished sequences took no time")
    batches = proof.states.batches
    return Recomputed(
        tokens_per_s=proof.generated_tokens / proof.window_s,
        window_s=proof.window_s,
        sequences=len(proof.leaves),
        generated_tokens=proof.generated_tokens,
        batch_mean=batches.mean,
        batch_max=batches.largest,
        prefix_hit_ratio=proof.states.prefix_hit_ratio,
    )


def client_measured(row: Row) -> list[str]:
    """Returns the notes of a row that only the client can have measured."""
    return [name for name in parse_notes(row.scenario_notes) if name.startswith(_CLIENT_NOTES)]


def contradictions(row: Row, proof: Proof, found: Recomputed) -> list[str]:
    """Returns where a row does not follow from what the engine signed, empty if it does."""
    notes = parse_notes(row.scenario_notes)
    try:
        return [
            *_identity(row, notes, proof),
            *(each.detail for each in judge(observation_of(row.measurement_type, notes, proof))),
            *_batch(row, notes, found),
            *_tokens(row, notes, proof),
            *_throughput(row, notes, proof, found),
            *time_contradictions(notes, proof),
        ]
    except ValueError as error:
        return [f"a note is not a number: {error}"]


def _identity(row: Row, notes: Mapping[str, str], proof: Proof) -> Iterator[str]:
    engine = proof.before.snapshot
    signed = {
        "engine": format_engine(engine.engine, engine.engine_version),
        "precision": engine.precision,
        "gpu": engine.gpu,
        "gpu_count": engine.gpu_count,
        "source_tag": f"orch-bench:{proof.before.run}",
    }
    for name, value in signed.items():
        if getattr(row, name) != value:
            yield f"{name} is {getattr(row, name)!r}, the engine signed {value!r}"
    served = notes.get("served_as", row.model_id)
    if served not in engine.models:
        yield f"the model {served!r} is not one that the engine served"
    if (objection := model_objection(row.model_id, engine)) is not None:
        yield f"model_id is {row.model_id!r}: {objection}"
    own = {
        "model_id": is_given(row.model_id, engine),
        "model_name": row.model_name != last_part(row.model_id),
    }
    given = notes.get(names.GIVEN, "").split(",")
    for name, by_user in own.items():
        if by_user and name not in given:
            yield f"{name} is {getattr(row, name)!r}, the user's: the note given must name it"
    if notes.get("profile", engine.profile) != engine.profile:
        yield f"the note profile is {notes['profile']}, the engine signed {engine.profile}"
    noted = {names.DATA_PARALLEL: "1", **notes}  # as in the engine's: without the note it is 1
    for name, stated in {names.DATA_PARALLEL: 1, **engine.conditions.notes}.items():
        if noted.get(name) != str(stated):
            yield f"the note {name} is {noted.get(name)}, the engine signed {stated}"
    for name in notes.keys() & {names.LOADED, *names.SETTINGS} - engine.conditions.notes.keys():
        yield f"the note {name} is {notes[name]}, the engine signed none"


def observation_of(label: Label, notes: Mapping[str, str], proof: Proof) -> Observation:
    """Returns what the engine signed of a run, and how its client states that it sent it."""
    answered = int(notes.get("requests", "0"))
    failed = int(notes.get("failed", "0"))
    complete = not failed and "refused" not in notes
    counts = RequestCounts(
        sent=answered + failed,
        answered=answered,
        output_tokens=proof.generated_tokens if complete else None,
        input_tokens=sum(each.prompt_tokens for each in proof.requests) if complete else None,
    )
    stated = arrivals_of(notes)
    return Observation(
        label=label,
        slots=frozenset({proof.before.snapshot.slots_total}),
        batches=proof.states.batches,
        counts=counts,
        states=proof.states,
        in_flight=[each.in_flight for each in proof.requests],
        decoding=[each.decoding for each in proof.requests],
        in_engine=[Interval(leaf.arrived_s, leaf.ended_s) for leaf in proof.leaves],
        clock_slack=proof.adjusted_s + ROUNDING_S,
        arrivals=None if stated is None else Arrivals(stated),
        at_once=int(notes["at_once"]) if "at_once" in notes else None,
    )


def _batch(row: Row, notes: Mapping[str, str], found: Recomputed) -> Iterator[str]:
    column = max(1, round(found.batch_mean))
    if row.batch != column:
        yield f"batch is {row.batch}, by the engine's steps {column}"
    for name, value in (
        (names.BATCH_MEAN, found.batch_mean),
        (names.BATCH_MAX, found.batch_max),
        (names.PREFIX_HIT_RATIO, found.prefix_hit_ratio),
    ):
        # Means and ratios are rounded to three digits after the point.
        if name not in notes or abs(float(notes[name]) - value) > 0.001 + _ROUNDING * value:
            yield f"the note {name} is {notes.get(name)}, by the engine's counters {value:.6g}"


def _tokens(row: Row, notes: Mapping[str, str], proof: Proof) -> Iterator[str]:
    requests = int(notes.get("requests", "0"))
    if len(proof.requests) < requests:
        yield (
            f"{requests} requests were answered, the engine's finished sequences are of "
            f"{len(proof.requests)}: each request must have an id of its own"
        )
        return
    if requests * (row.output_tokens + 0.5) < proof.generated_tokens * (1 - FAILED_SHARE):
        yield (
            f"{requests} requests of {row.output_tokens} generated tokens are fewer than the "
            f"{proof.generated_tokens} of the engine's finished sequences: it served others, too"
        )
    counts = {
        "output_tokens": sorted(each.generated_tokens for each in proof.requests),
        "input_tokens": sorted(each.prompt_tokens for each in proof.requests),
    }
    for name, tokens in counts.items():
        column = getattr(row, name)
        if len(tokens) == requests:
            if abs(sum(tokens) / requests - column) > 0.5:
                yield f"{name} is {column}, by the engine {sum(tokens) / requests:.6g}"
            continue
        # Some failed at the client, and any of them may be those.
        least, most = sum(tokens[:requests]) / requests, sum(tokens[-requests:]) / requests
        if not least - 0.5 <= column <= most + 0.5:
            yield (
                f"{name} is {column}, of {requests} requests of the engine it was {least:.6g} to "
                f"{most:.6g}"
            )


def _throughput(
    row: Row, notes: Mapping[str, str], proof: Proof, found: Recomputed
) -> Iterator[str]:
    claimed, tokens = row.throughput_tokens_per_sec, found.generated_tokens
    if claimed > found.tokens_per_s * (1 + WINDOW_SHARE):
        yield f"throughput is {claimed:.6g} tokens/s, by the engine {found.tokens_per_s:.6g}"
    longest_s = found.window_s * (1 + WINDOW_SHARE) + WINDOW_S
    alone = len(proof.requests) == int(notes.get("requests", "0"))
    if alone and claimed < tokens / longest_s * (1 - _ROUNDING):
        yield f"throughput is {claimed:.6g} tokens/s, by the engine {found.tokens_per_s:.6g}"
    if "window_s" in notes:
        window_s = float(notes["window_s"])
        if window_s < found.window_s * (1 - WINDOW_SHARE) - 0.001:
            yield f"window_s is {window_s:g}, by the engine {found.window_s:.6g}"
        if window_s > proof.between_s:
            yield f"window_s is {window_s:g}, the statements are {proof.between_s:.6g} s apart"

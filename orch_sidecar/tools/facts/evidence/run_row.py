"""Converts the run of another tool, and the evidence for its label, to a row or a rejection.

Pure. A file alone proves nothing about the engine: its row is `to_be_confirmed`, and the label
that the file claims becomes a note. With snapshots of the engine from both ends of the run,
`verdict` judges; a run that did not earn its label is rejected.

The column `batch` is the mean number of sequences in a decode step, rounded, as the engine counted
it. Without snapshots it is unknown, and the tool's
concurrency limit (`--max-concurrency`) does not replace it: a limit is not an observation. The
row then has the largest number of answers that overlapped by the tool's own times, with the note
`batch_is=overlap`; a file without these times and with a limit above one is rejected.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from orch_sidecar.tools.facts.evidence.freshness import staleness
from orch_sidecar.tools.facts.evidence.measured import (
    ACCEPTANCE_LENGTH,
    MeasuredRun,
    Rejection,
)
from orch_sidecar.tools.facts.labels.figures import overlap
from orch_sidecar.tools.facts.labels.judge import judge
from orch_sidecar.tools.facts.labels.observation import RequestCounts, States, observed
from orch_sidecar.tools.facts.labels.served_model import is_given, model_objection
from orch_sidecar.tools.facts.tables.agreement.publication import shortfalls
from orch_sidecar.tools.facts.tables.notes import (
    BATCH_MAX,
    BATCH_MEAN,
    GIVEN,
    PREFIX_HIT_RATIO,
    PRELIMINARY,
)
from orch_sidecar.tools.facts.tables.row import (
    Label,
    Row,
    format_engine,
    format_notes,
    is_path,
    last_part,
)


@dataclass(frozen=True, slots=True)
class DeclaredEngine:
    """The engine as the user declares it: `engine` is its name and version."""

    engine: str
    precision: str
    gpu: str
    gpu_count: int


@dataclass(frozen=True, slots=True)
class Source:
    """The origin of a figure, and the names of its model.

    `model_id`: None for the name in the file; `model_name`: None for the last part of the id.
    """

    tag: str
    model_id: str | None = None
    model_name: str | None = None


def to_row(
    measured: MeasuredRun, known: States | DeclaredEngine, source: Source
) -> Row | Rejection:
    """Converts a run to a row. Raises ValueError for text that cannot be part of a note."""
    model_id = source.model_id or measured.model
    if isinstance(known, States):
        return _proven(measured, known, source, model_id)
    if is_path(model_id):
        return Rejection("model", model_id, "is a path: name the model with --model-id")
    return _claimed(measured, known, source, model_id)


def _proven(
    measured: MeasuredRun, states: States, source: Source, model_id: str
) -> Row | Rejection:
    engine = states.before
    label = measured.claim
    if label is None or label is Label.TO_BE_CONFIRMED:
        label = Label(engine.measurement_type)
    wrong = model_objection(model_id, engine)
    if wrong is not None:
        return Rejection("model", model_id, wrong)
    reasons = _objections(measured, states, label)
    if reasons:
        return Rejection("measurement_type", label.value, "; ".join(reasons))
    batches = states.batches
    notes: dict[str, str | int | float] = {
        "profile": engine.profile,
        BATCH_MEAN: batches.mean,
        BATCH_MAX: batches.largest,
        **engine.conditions.notes,
        PREFIX_HIT_RATIO: states.prefix_hit_ratio,
    }
    named = source.model_name not in (None, last_part(model_id))
    given = {"model_id": is_given(model_id, engine), "model_name": named}
    if any(given.values()):
        notes[GIVEN] = ",".join(name for name, by_user in given.items() if by_user)
    if measured.at_once is not None and batches.largest > measured.at_once:
        # Requests for several sequences: no file has the length of the longest, by which TPOT
        # divides.
        latency_ms = {
            name: value for name, value in measured.latency_ms.items() if not _is_tpot(name)
        }
        measured = replace(measured, latency_ms=latency_ms)
    if label is Label.OFFLINE:
        measured = replace(measured, latency_ms={})  # they only show the queue's length
    if shortfalls(label, measured.requests, measured.window_s):
        notes[PRELIMINARY] = "yes"
    known = DeclaredEngine(
        engine=format_engine(engine.engine, engine.engine_version),
        precision=engine.precision,
        gpu=engine.gpu,
        gpu_count=engine.gpu_count,
    )
    batching = "off" if label is Label.SINGLE_STREAM else "on"
    batch = max(1, round(batches.mean))
    return _row(measured, known, source, model_id, label, batch, batching, notes)


def _is_tpot(note: str) -> bool:
    return note.startswith("tpot_")


def _objections(measured: MeasuredRun, states: States, label: Label) -> list[str]:
    counts = RequestCounts(
        sent=measured.requests + measured.failed,
        answered=measured.requests,
        # No file contains what a failed request generated.
        output_tokens=None if measured.failed else measured.output_tokens,
        input_tokens=None if measured.failed else measured.input_tokens,
    )
    seen = observed(
        label,
        states,
        counts,
        in_flight=[each.in_flight for each in measured.served],
        arrivals=measured.arrivals,
        at_once=measured.at_once,
    )
    reasons = [each.detail for each in judge(seen)]
    reasons += staleness(measured, states.before, states.after)
    if ACCEPTANCE_LENGTH in measured.notes and states.before.conditions.speculative == "none":
        reasons.append("the file is of speculative decoding, which the engine does not do")
    return reasons


def _claimed(
    measured: MeasuredRun, known: DeclaredEngine, source: Source, model_id: str
) -> Row | Rejection:
    batch = 1 if measured.at_once == 1 else overlap(measured.served)
    if not batch:
        limit = "no limit" if measured.at_once is None else str(measured.at_once)
        rule = (
            "is a limit, not a measured batch: save the tool's detailed results, or give "
            "--capabilities-before and --capabilities-after"
        )
        return Rejection("max_concurrency", limit, rule)
    notes: dict[str, str | int | float] = {
        "claim": "none" if measured.claim is None else measured.claim,
        "batch_is": "overlap",
        GIVEN: "engine,precision,gpu,gpu_count",
    }
    label = Label.TO_BE_CONFIRMED
    return _row(measured, known, source, model_id, label, batch, "unknown", notes)


def _row(
    measured: MeasuredRun,
    known: DeclaredEngine,
    source: Source,
    model_id: str,
    label: Label,
    batch: int,
    batching: str,
    more: dict[str, str | int | float],
) -> Row:
    input_tokens = round(measured.input_tokens / measured.requests)
    output_tokens = round(measured.output_tokens / measured.requests)
    notes: dict[str, str | int | float] = {
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        "batching": batching,
        "tool": measured.tool,
        "arrivals": measured.arrivals,
    }
    if measured.rate_per_s is not None:
        notes["rate_per_s"] = measured.rate_per_s
    if measured.at_once is not None:
        notes["at_once"] = measured.at_once
    notes |= {"requests": measured.requests, "window_s": round(measured.window_s, 3)}
    notes |= {name: round(value, 3) for name, value in measured.latency_ms.items()}
    if measured.failed:
        notes["failed"] = measured.failed
    notes |= measured.notes
    notes |= more
    return Row(
        model_id=model_id,
        model_name=source.model_name or last_part(model_id),
        engine=known.engine,
        precision=known.precision,
        gpu=known.gpu,
        gpu_count=known.gpu_count,
        batch=batch,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        throughput_tokens_per_sec=measured.tokens_per_s,
        measurement_type=label,
        scenario_notes=format_notes(notes),
        source_tag=source.tag,
    )

"""A measured run of another tool, and what proves its label, as a row; or why it becomes none.

Pure. A tool's file alone proves nothing about the engine: its row is `to_be_confirmed`, with the
file's claim among the notes. With the engine's own state at both ends of the run, `verdict`
judges; what it objects to becomes no row at all.

The column `batch` is what the engine counted. Without its state nobody knows, and the limit that
the load had (`--max-concurrency`) is none: it says what was allowed, not what happened. The row
has then the most answers that were under way at once by the tool's own times, and says so
(`batch_is=overlap`); a file that does not have them, and allowed more than one, becomes no row.
"""

from __future__ import annotations

from dataclasses import dataclass

from orch_sidecar.tools.facts.evidence.measured import MeasuredRun, Rejection, contradiction
from orch_sidecar.tools.facts.evidence.snapshot import Snapshot
from orch_sidecar.tools.facts.evidence.verdict import (
    RequestCounts,
    batches_between,
    judge,
    shortfalls,
)
from orch_sidecar.tools.facts.tables.row import Label, Row, format_engine, format_notes


@dataclass(frozen=True, slots=True)
class Given:
    """What somebody says of the engine: `engine` is its name and version."""

    engine: str
    precision: str
    gpu: str
    gpu_count: int


@dataclass(frozen=True, slots=True)
class Proof:
    """The engine before the first request of a run and after its last answer."""

    before: Snapshot
    after: Snapshot


@dataclass(frozen=True, slots=True)
class Source:
    """Where a figure is from, and what the model is called there. `model_id`: None for the name
    that the file has; `model_name`: None for the last part of the id."""

    tag: str
    model_id: str | None = None
    model_name: str | None = None


def fact(measured: MeasuredRun, known: Proof | Given, source: Source) -> Row | Rejection:
    """The row. Raises ValueError for a text in it that no note may be."""
    model_id = source.model_id or measured.model
    # A path means nothing on any other machine.
    if model_id.startswith(("/", "~", ".")):
        return Rejection("model", model_id, "is a path: say what model it is, by --model-id")
    if isinstance(known, Proof):
        return _proven(measured, known, source, model_id)
    return _claimed(measured, known, source, model_id)


def _proven(measured: MeasuredRun, proof: Proof, source: Source, model_id: str) -> Row | Rejection:
    engine = proof.before
    label = measured.claim
    if label is None or label is Label.TO_BE_CONFIRMED:
        label = Label(engine.measurement_type)
    # Who says what the model is called has said that it is that one.
    if source.model_id is None and model_id not in engine.models:
        rule = f"the engine serves {', '.join(engine.models)}: say what model it is, by --model-id"
        return Rejection("model", model_id, rule)
    reasons = _objections(measured, proof, label)
    if reasons:
        return Rejection("measurement_type", label.value, "; ".join(reasons))
    batches = batches_between(proof.before, proof.after)
    notes: dict[str, str | int | float] = {"profile": engine.profile, "batch_mean": batches.mean}
    if shortfalls(label, measured.requests, measured.window_s):
        notes["preliminary"] = "yes"
    known = Given(
        engine=format_engine(engine.engine, engine.engine_version),
        precision=engine.precision,
        gpu=engine.gpu,
        gpu_count=engine.gpu_count,
    )
    batching = "off" if label is Label.SINGLE_STREAM else "on"
    return _row(measured, known, source, model_id, label, batches.largest, batching, notes)


def _objections(measured: MeasuredRun, proof: Proof, label: Label) -> list[str]:
    own = RequestCounts(
        sent=measured.requests + measured.failed,
        answered=measured.requests,
        # What a failed request generated is in no file.
        output_tokens=None if measured.failed else measured.output_tokens,
    )
    # A file without a claim has a load all the same.
    load = contradiction(label, measured.arrivals, measured.at_once)
    of_load = [] if load is None else [load]
    return judge(label, proof.before, proof.after, own) + of_load


def _claimed(measured: MeasuredRun, known: Given, source: Source, model_id: str) -> Row | Rejection:
    batch = 1 if measured.at_once == 1 else measured.overlap
    if not batch:
        limit = "no limit" if measured.at_once is None else str(measured.at_once)
        rule = "is no batch that was measured: save details, or give the engine's capabilities"
        return Rejection("max_concurrency", limit, rule)
    notes: dict[str, str | int | float] = {
        "claim": "none" if measured.claim is None else measured.claim,
        "batch_is": "overlap",
        "given": "engine,precision,gpu,gpu_count",
    }
    label = Label.TO_BE_CONFIRMED
    return _row(measured, known, source, model_id, label, batch, "unknown", notes)


def _row(
    measured: MeasuredRun,
    known: Given,
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
        model_name=source.model_name or model_id.rpartition("/")[2],
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

"""Converts the run of another tool, and the evidence for its label, to a row or a rejection.

Pure. A file alone proves nothing about the engine: its row is `to_be_confirmed`, and the label
that the file claims becomes a note. With states of the engine from both ends of the run it is
judged (`labels.judge`); a run that did not earn its label is rejected.

Without states the batch is unknown, and the tool's concurrency limit (`--max-concurrency`) does not
replace it: a limit is not an observation. The row then has the largest number of answers that
overlapped by the tool's own times, with the note `batch_is=overlap`; a file without these times and
with a limit above one is rejected.
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
from orch_sidecar.tools.facts.labels.measured import (
    Engine,
    Measured,
    Notes,
    engine_of,
    settings_of,
)
from orch_sidecar.tools.facts.labels.model import name_model
from orch_sidecar.tools.facts.labels.observation import RequestCounts, States, observed
from orch_sidecar.tools.facts.tables.row import Label, Row, is_path, last_part


@dataclass(frozen=True, slots=True)
class Source:
    """The origin of a figure, and the names of its model.

    `model_id`: None for the name in the file; `model_name`: None for the last part of the id.
    """

    tag: str
    model_id: str | None = None
    model_name: str | None = None


def to_row(measured: MeasuredRun, known: States | Engine, source: Source) -> Row | Rejection:
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
    model = name_model(model_id, source.model_name, engine.models, [engine.weights])
    if model.objection is not None:
        return Rejection("model", model_id, model.objection)
    reasons = _objections(measured, states, label)
    if reasons:
        return Rejection("measurement_type", label.value, "; ".join(reasons))
    doubled = measured.at_once is not None and states.batches.largest > measured.at_once
    if doubled:
        # Requests for several sequences: no file has the length of the longest, by which TPOT
        # divides.
        known = measured.latency_ms.items()
        latency_ms = {name: value for name, value in known if not name.startswith("tpot_")}
        measured = replace(measured, latency_ms=latency_ms)
    return replace(
        _measured(measured, source, model_id, engine_of(engine)),
        label=label,
        batches=states.batches,
        settings=settings_of(engine, states.prefix_hit_ratio),
        given=model.given,
    ).row()


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
    measured: MeasuredRun, known: Engine, source: Source, model_id: str
) -> Row | Rejection:
    batch = 1 if measured.at_once == 1 else overlap(measured.served)
    if not batch:
        limit = "no limit" if measured.at_once is None else str(measured.at_once)
        rule = (
            "is a limit, not a measured batch: save the tool's detailed results, or give "
            "--capabilities-before and --capabilities-after"
        )
        return Rejection("max_concurrency", limit, rule)
    made = _measured(measured, source, model_id, known)
    return replace(made, overlap=batch, given=("engine", "precision", "gpu", "gpu_count")).row()


def _measured(measured: MeasuredRun, source: Source, model_id: str, engine: Engine) -> Measured:
    load: Notes = {"tool": measured.tool, "arrivals": measured.arrivals}
    for name, value in (("rate_per_s", measured.rate_per_s), ("at_once", measured.at_once)):
        if value is not None:
            load[name] = value
    return Measured(
        label=Label.TO_BE_CONFIRMED,
        claim=measured.claim,
        engine=engine,
        model_id=model_id,
        model_name=source.model_name or last_part(model_id),
        requests=measured.requests,
        input_tokens=measured.input_tokens,
        output_tokens=measured.output_tokens,
        window_s=measured.window_s,
        tokens_per_s=measured.tokens_per_s,
        source_tag=source.tag,
        batches=None,
        load=load,
        latency_ms=measured.latency_ms,
        outcomes={**({"failed": measured.failed} if measured.failed else {}), **measured.notes},
    )

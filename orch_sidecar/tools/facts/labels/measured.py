"""The row of a run, in one way for all sources.

Pure. Knows no source: `orch bench`, traces, signed evidence and the files of other tools fill it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from orch_sidecar.tools.facts.labels.load import Notes
from orch_sidecar.tools.facts.labels.observation import Batches, Run, States
from orch_sidecar.tools.facts.labels.snapshot import Snapshot
from orch_sidecar.tools.facts.tables import notes as names
from orch_sidecar.tools.facts.tables.publication import MIN_QUERIES, shortfalls
from orch_sidecar.tools.facts.tables.row import (
    MEANINGS,
    Label,
    Row,
    format_engine,
    format_notes,
    is_path,
    last_part,
)
from orch_sidecar.tools.facts.tables.table import check_row


@dataclass(frozen=True, slots=True)
class Model:
    """A model in a row. `given`: the columns that are the user's. `objection`: why it cannot have
    that id; None if it can."""

    id: str
    name: str
    given: Sequence[str]
    objection: str | None = None


def name_model(
    model_id: str, name: str | None, served_as: Sequence[str], loaded: Sequence[str]
) -> Model:
    """Returns a model that is served by some names, or loaded. `name`: None for the last part of
    its id. Another id would be a claim, unless the engine knows its model by paths only, which mean
    nothing on another machine."""
    known = [each for each in (*served_as, *loaded) if not is_path(each)]
    objection = None
    if is_path(model_id):
        objection = "is a path: name the model with --model-id"
    elif known and model_id not in known:
        names = ", ".join(served_as)
        objection = f"the engine serves {names} (loaded as {', '.join(loaded)}), not this"
    shown = name or last_part(model_id)
    own = {"model_id": model_id not in known, "model_name": shown != last_part(model_id)}
    return Model(model_id, shown, [each for each, by_user in own.items() if by_user], objection)


@dataclass(frozen=True, slots=True)
class Source:
    """The origin of a figure, and the names of its model. `model_id`: None for the name in the
    file; `model_name`: None for the last part of the id."""

    tag: str
    model_id: str | None = None
    model_name: str | None = None


ENGINE_COLUMNS: Final = ("engine", "precision", "gpu", "gpu_count")


@dataclass(frozen=True, slots=True)
class Engine:
    """The engine of a row. `engine`: its name and version. `batches`: None where nobody knows what
    it did. `settings`: notes."""

    engine: str
    precision: str
    gpu: str
    gpu_count: int
    batches: Batches | None = None
    settings: Notes = field(default_factory=dict, hash=False)

    @property
    def columns(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ENGINE_COLUMNS}


def row_of(run: Run, label: Label, engine: Engine, model: Model, source_tag: str) -> Row:
    """Returns the row of a run by its label. Raises ValueError for one that no table would take."""
    notes, batches = _notes(run, label, engine, model), engine.batches
    row = Row(
        model_id=model.id,
        model_name=model.name,
        **engine.columns,
        batch=run.overlap if batches is None else max(1, round(batches.mean)),
        input_tokens=int(notes["input_tokens"]),
        output_tokens=int(notes["output_tokens"]),
        throughput_tokens_per_sec=run.totals.tokens_per_s,
        measurement_type=Label.TO_BE_CONFIRMED if batches is None else label,
        scenario_notes=format_notes(notes),
        source_tag=source_tag,
    )
    check_row(row)
    return row


def _notes(run: Run, label: Label, engine: Engine, model: Model) -> dict[str, str | int | float]:
    """Returns the notes in their order."""
    totals, batches = run.totals, engine.batches
    requests, window_s = totals.requests, totals.window_s
    notes: dict[str, str | int | float | None] = {
        "input_tokens": round(totals.input_tokens / requests),
        "output_tokens": round(totals.output_tokens / requests),
        "batching": "unknown" if batches is None else MEANINGS[label].batching,
        **run.named,
        **({} if run.load is None else run.load.notes),
        "requests": requests,
        "window_s": round(window_s, 3),
    }
    if label is not Label.OFFLINE:  # there they only show the length of the queue
        notes |= {name: round(value, 3) for name, value in run.latency_ms.items()}
    notes |= {"failed": run.failed or None, **run.outcomes}
    if batches is None:
        notes |= {"claim": run.claim or "none", "batch_is": "overlap"}
    else:
        notes |= {names.BATCH_MEAN: batches.mean, names.BATCH_MAX: batches.largest}
    notes |= engine.settings
    judged = run.claim if batches is None else label
    if judged and judged in MIN_QUERIES and shortfalls(judged, requests, window_s):
        notes[names.PRELIMINARY] = "yes"
    notes |= run.doubts
    notes["served_as"] = None if run.model == model.id else run.model
    notes[names.GIVEN] = ",".join(model.given) or None
    return {name: value for name, value in notes.items() if value is not None}


def engine_of(state: Snapshot) -> Engine:
    """Returns an engine as it reports itself."""
    name = format_engine(state.engine, state.engine_version)
    return Engine(name, state.precision, state.gpu, state.gpu_count)


def engine_between(states: States) -> Engine:
    """Returns an engine with its settings, and its batches between two states."""
    state, ratio = states.before, {names.PREFIX_HIT_RATIO: states.prefix_hit_ratio}
    settings = {"profile": state.profile, **state.conditions, **ratio}
    return replace(engine_of(state), batches=states.batches, settings=settings)

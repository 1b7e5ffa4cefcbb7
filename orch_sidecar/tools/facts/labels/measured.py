"""Builds the row of a measurement from its figures, in one way for all sources.

Pure. Knows no source: `orch bench`, traces, signed evidence and the files of other tools fill it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from orch_sidecar.tools.facts.labels.figures import Totals
from orch_sidecar.tools.facts.labels.observation import Batches
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
    """Returns a model that is served by some names. `name`: None for the last part of its id.

    An engine knows the names that it serves a model by, and the model as it loaded it. Another id
    would be a claim. A path means nothing on another machine: where the engine knows its model by
    paths only, the user has to name it, and the row notes that the id was given.
    """
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
    """The origin of a figure, and the names of its model.

    `model_id`: None for the name in the file; `model_name`: None for the last part of the id.
    """

    tag: str
    model_id: str | None = None
    model_name: str | None = None


# By their names; None: not noted.
Notes = Mapping[str, str | int | float | None]


@dataclass(frozen=True, slots=True)
class Engine:
    """The columns of an engine: `engine` is its name and version."""

    engine: str
    precision: str
    gpu: str
    gpu_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a row states.

    `totals`: of the complete answers. `batches`: None where nobody knows them: then `overlap`, the
    largest number of answers that were generated at once, is the column `batch`, and `claim` is the
    label that was asked for. `load`: how requests came, and by which tool; `outcomes`: what became
    of them; `settings`: of the engine; `doubts`: what limits the trust. All four, and `latency_ms`,
    are notes by their names, the latter those of `totals` unless it is given. `served_as`: the name
    that the model is served by.
    """

    label: Label
    engine: Engine
    model: Model
    totals: Totals
    source_tag: str
    batches: Batches | None
    overlap: int = 0
    claim: Label | None = None
    load: Notes = field(default_factory=dict)
    latency_ms: Mapping[str, float] | None = None
    outcomes: Notes = field(default_factory=dict)
    settings: Notes = field(default_factory=dict)
    doubts: Notes = field(default_factory=dict)
    served_as: str | None = None

    @property
    def notes(self) -> dict[str, str | int | float]:
        """The notes in their order."""
        requests, window_s = self.totals.requests, self.totals.window_s
        notes: dict[str, str | int | float | None] = {
            "input_tokens": round(self.totals.input_tokens / requests),
            "output_tokens": round(self.totals.output_tokens / requests),
            "batching": "unknown" if self.batches is None else MEANINGS[self.label].batching,
            **self.load,
            "requests": requests,
            "window_s": round(window_s, 3),
        }
        if self.label is not Label.OFFLINE:  # there they only show the length of the queue
            latency_ms = self.totals.latency_ms if self.latency_ms is None else self.latency_ms
            notes |= {name: round(value, 3) for name, value in latency_ms.items()}
        notes |= self.outcomes
        if self.batches is None:
            notes |= {"claim": self.claim or "none", "batch_is": "overlap"}
        else:
            notes |= {names.BATCH_MEAN: self.batches.mean, names.BATCH_MAX: self.batches.largest}
        notes |= self.settings
        judged = self.claim if self.batches is None else self.label
        if judged and judged in MIN_QUERIES and shortfalls(judged, requests, window_s):
            notes[names.PRELIMINARY] = "yes"
        notes |= self.doubts
        notes["served_as"] = None if self.served_as == self.model.id else self.served_as
        notes[names.GIVEN] = ",".join(self.model.given) or None
        return {name: value for name, value in notes.items() if value is not None}

    def row(self) -> Row:
        """Returns the row. Raises ValueError for a text that no note can hold."""
        notes = self.notes
        batch = self.overlap if self.batches is None else max(1, round(self.batches.mean))
        return Row(
            model_id=self.model.id,
            model_name=self.model.name,
            **asdict(self.engine),
            batch=batch,
            input_tokens=int(notes["input_tokens"]),
            output_tokens=int(notes["output_tokens"]),
            throughput_tokens_per_sec=self.totals.tokens_per_s,
            measurement_type=Label.TO_BE_CONFIRMED if self.batches is None else self.label,
            scenario_notes=format_notes(notes),
            source_tag=self.source_tag,
        )


def engine_of(state: Snapshot) -> Engine:
    """Returns the columns of an engine as it reports them."""
    name = format_engine(state.engine, state.engine_version)
    return Engine(name, state.precision, state.gpu, state.gpu_count)


def settings_of(state: Snapshot, hit_ratio: float) -> Notes:
    """Returns the notes about an engine as it reports them. `hit_ratio`: of its prefix cache."""
    return {"profile": state.profile, **state.conditions, names.PREFIX_HIT_RATIO: hit_ratio}

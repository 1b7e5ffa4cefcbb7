"""The identity of the engine under test: its own report, and what the user adds to it.

What the engine reports has precedence. A given value that contradicts it is an error, not a
correction: figures would be those of other hardware.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

from orch_sidecar.tools.bench.results.result import EngineDocument
from orch_sidecar.tools.facts.labels.model import name_model
from orch_sidecar.tools.facts.labels.snapshot import Snapshot
from orch_sidecar.tools.facts.tables.row import format_engine, is_path, last_part

# A row requires these.
_NEEDED: Final = ("engine", "precision", "gpu", "gpu_count")
# What an engine reports of itself.
_REPORTED: Final = (
    *_NEEDED, "engine_version", "weights", "pool", "profile", "slots_total", "epoch",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class IdentityOverrides:
    """Values given by the user, for an engine that does not report them.

    `engine`: name and version. `model_id`: for a model that is served by another name.
    """

    engine: str | None = None
    precision: str | None = None
    gpu: str | None = None
    gpu_count: int | None = None
    model_id: str | None = None
    model_name: str | None = None

    @property
    def names(self) -> list[str]:
        """The names of the given values."""
        return [name for name, value in asdict(self).items() if value is not None]


def identity(model: str, snapshot: Snapshot | None, given: IdentityOverrides) -> EngineDocument:
    """Returns the identity of an engine. `model`: the name that it is served by.

    `snapshot`: the engine's report, None without one. It has precedence over given values.
    """
    model_id = given.model_id or model
    model_name = given.model_name or last_part(model_id)
    if snapshot is None:
        name, _, version = (given.engine or "").partition(" ")
        found: dict[str, Any] = {field: getattr(given, field) for field in _NEEDED}
        found |= {"engine": name or None, "engine_version": version or None}
        names = given.names
    else:
        found = {field: getattr(snapshot, field) for field in _REPORTED}
        found["conditions"] = snapshot.conditions.notes
        own = name_model(model_id, model_name, snapshot.models, [snapshot.weights]).given
        names = [field for field in given.names if field in own]
    return EngineDocument(
        model=model, model_id=model_id, model_name=model_name, given=names, **found
    )


def contradictions(snapshot: Snapshot, given: IdentityOverrides) -> list[str]:
    """Returns the given values that the engine's report contradicts, as sentences with both."""
    reported = {
        "engine": format_engine(snapshot.engine, snapshot.engine_version),
        "precision": snapshot.precision,
        "gpu": snapshot.gpu,
        "gpu_count": snapshot.gpu_count,
    }
    wrong = [
        f"--{name.replace('_', '-')} {value!r} contradicts the engine, which reports {report!r}: "
        "omit the option"
        for name, report in reported.items()
        if (value := getattr(given, name)) is not None
        and str(value).casefold() != str(report).casefold()
    ]
    if given.model_id is not None:
        model = name_model(given.model_id, None, snapshot.models, [snapshot.weights])
        if model.objection is not None:
            wrong.append(f"--model-id {given.model_id!r}: {model.objection}")
    return wrong


def missing_identity(engine: EngineDocument) -> list[str]:
    """Returns what a row requires and is unknown, as sentences; empty if nothing is missing."""
    unknown = [name for name in _NEEDED if getattr(engine, name) is None]
    missing = []
    if unknown:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in unknown)
        missing.append(f"the endpoint does not report its hardware and engine: give {flags}")
    # A path means nothing on another machine.
    if is_path(engine.model_id):
        missing.append(f"the model {engine.model_id!r} is a path: give --model-id")
    return missing

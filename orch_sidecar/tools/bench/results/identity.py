"""The identity of the engine under test: its own report, and the options that override it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Final

from orch_sidecar.tools.bench.results.result import EngineDocument
from orch_sidecar.tools.facts.evidence.snapshot import Snapshot

# A row requires these.
_NEEDED: Final = ("engine", "precision", "gpu", "gpu_count")


@dataclass(frozen=True, slots=True)
class IdentityOverrides:
    """Values given by the user, for an engine that does not report them or reports them wrongly.

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

    `snapshot`: the engine's report, None without one. Given values take precedence over it.
    """
    reported = None if snapshot is None else f"{snapshot.engine} {snapshot.engine_version}"
    name, _, version = (given.engine or reported or "").partition(" ")
    gpu_count = None if snapshot is None else snapshot.gpu_count
    model_id = given.model_id or model
    return EngineDocument(
        engine=name or None,
        engine_version=version or None,
        model=model,
        model_id=model_id,
        model_name=given.model_name or model_id.rpartition("/")[2],
        pool=None if snapshot is None else snapshot.pool,
        profile=None if snapshot is None else snapshot.profile,
        slots_total=None if snapshot is None else snapshot.slots_total,
        precision=given.precision or (None if snapshot is None else snapshot.precision),
        gpu=given.gpu or (None if snapshot is None else snapshot.gpu),
        gpu_count=gpu_count if given.gpu_count is None else given.gpu_count,
        epoch=None if snapshot is None else snapshot.epoch,
        given=given.names,
    )


def missing_identity(engine: EngineDocument) -> list[str]:
    """Returns what a row requires and is unknown, as sentences; empty if nothing is missing."""
    unknown = [name for name in _NEEDED if getattr(engine, name) is None]
    missing = []
    if unknown:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in unknown)
        missing.append(f"the endpoint does not report its hardware and engine: give {flags}")
    # A path means nothing on another machine.
    if engine.model_id.startswith(("/", "~", ".")):
        missing.append(f"the model {engine.model_id!r} is a path: give --model-id")
    return missing

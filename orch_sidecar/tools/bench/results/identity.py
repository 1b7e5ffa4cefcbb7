"""Who is measured: what the engine tells of itself, and what somebody types instead.

Pure.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Final

from orch_sidecar.tools.bench.results.result import EngineTold
from orch_sidecar.tools.facts.evidence.snapshot import Snapshot

# Without these there is no row.
_NEEDED: Final = ("engine", "precision", "gpu", "gpu_count")


@dataclass(frozen=True, slots=True)
class Given:
    """What an operator has typed, for an engine that does not tell it or tells it wrongly.

    `engine`: name and version. `model_id`: what the model is, where it is served by another name.
    """

    engine: str | None = None
    precision: str | None = None
    gpu: str | None = None
    gpu_count: int | None = None
    model_id: str | None = None
    model_name: str | None = None

    @property
    def names(self) -> list[str]:
        return [name for name, value in asdict(self).items() if value is not None]


def identity(model: str, told: Snapshot | None, given: Given) -> EngineTold:
    """The engine of a measurement. `model`: the name that it is served by.

    `told`: what the engine says, None where it says nothing. What is given goes before that.
    """
    said = None if told is None else f"{told.engine} {told.engine_version}"
    name, _, version = (given.engine or said or "").partition(" ")
    gpu_count = None if told is None else told.gpu_count
    model_id = given.model_id or model
    return EngineTold(
        engine=name or None,
        engine_version=version or None,
        model=model,
        model_id=model_id,
        model_name=given.model_name or model_id.rpartition("/")[2],
        pool=None if told is None else told.pool,
        profile=None if told is None else told.profile,
        slots_total=None if told is None else told.slots_total,
        precision=given.precision or (None if told is None else told.precision),
        gpu=given.gpu or (None if told is None else told.gpu),
        gpu_count=gpu_count if given.gpu_count is None else given.gpu_count,
        epoch=None if told is None else told.epoch,
        given=given.names,
    )


def lacking(engine: EngineTold) -> list[str]:
    """What a row would need to know besides, in words; empty where nothing is missing."""
    unknown = [name for name in _NEEDED if getattr(engine, name) is None]
    missing = []
    if unknown:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in unknown)
        missing.append(f"the endpoint does not say what it runs on: a row needs {flags}")
    # A path means nothing on any other machine.
    if engine.model_id.startswith(("/", "~", ".")):
        missing.append(f"the model {engine.model_id!r} is a path: a row needs --model-id")
    return missing

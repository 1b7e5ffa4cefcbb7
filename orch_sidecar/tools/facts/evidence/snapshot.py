"""An engine at one end of a measurement, as `/v1/capabilities` tells of it.

Pure: a document in, values out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class InvalidSnapshot(ValueError):
    """A document that does not say what a measurement must know; the message names the field."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is so at one moment.

    `steps_by_batch`: decode steps since the engine started, and their seconds, by sequences.
    `requests_total`: generating requests that the engine has taken in since it started.
    `foreign`: sequences in it that did not come by way of the sidecar that told this; `leased`:
    those that did, 0 where nobody says. `generation`: of the sidecar's configuration; 0 where the
    engine itself told this.
    """

    engine: str
    engine_version: str
    pool: str
    profile: str
    measurement_type: str
    models: tuple[str, ...]
    gpu: str
    gpu_count: int
    precision: str
    epoch: str
    slots_total: int
    foreign: int
    requests_total: int
    preemptions_total: int
    steps_by_batch: Mapping[int, tuple[int, float]]
    generation: int = 0
    leased: int = 0

    @property
    def in_engine(self) -> int:
        """Sequences in it, whoever's they are."""
        return self.foreign + self.leased


def pools_of(document: Any) -> tuple[str, ...]:
    """The pools that a document tells of. Raises InvalidSnapshot."""
    return tuple(str(entry.get("pool")) for entry in _entries(document))


def parse_snapshot(document: Any, pool: str | None = None) -> Snapshot:
    """The engine of that pool (of the only one, where none is named). Raises InvalidSnapshot."""
    entries = _entries(document)
    if pool is not None:
        entries = [entry for entry in entries if entry.get("pool") == pool]
    if len(entries) != 1:
        names = ", ".join(pools_of(document)) or "none"
        which = "one pool must be named" if pool is None else f"there is no one pool {pool!r}"
        raise InvalidSnapshot(f"{which}: the document tells of {names}")
    [entry] = entries
    if "engine" in entry and entry["engine"] is None:
        raise InvalidSnapshot(
            f"the engine of the pool {entry.get('pool')!r} has not reported yet: "
            f"it is {entry.get('state')}"
        )
    return Snapshot(
        engine=_text(entry, "engine"),
        engine_version=_text(entry, "engine_version"),
        pool=_text(entry, "pool"),
        profile=_text(entry, "profile"),
        measurement_type=_text(entry, "measurement_type"),
        models=_models(entry),
        gpu=_text(entry, "gpu"),
        gpu_count=_count(entry, "gpu_count"),
        precision=_text(entry, "precision"),
        epoch=_text(entry, "epoch"),
        slots_total=_count(entry, "slots_total"),
        foreign=_count(entry, "foreign"),
        requests_total=_count(entry, "requests_total"),
        preemptions_total=_count(entry, "preemptions_total"),
        steps_by_batch=_steps(entry),
        generation=_count(document, "generation") if "generation" in document else 0,
        leased=_count(entry, "leased") if "leased" in entry else 0,
    )


def _entries(document: Any) -> list[Mapping[str, Any]]:
    entries = document.get("engines") if isinstance(document, Mapping) else None
    if not isinstance(entries, list) or not all(isinstance(each, Mapping) for each in entries):
        raise InvalidSnapshot("this is no /v1/capabilities document: it has no list `engines`")
    return entries


def _text(entry: Mapping[str, Any], name: str) -> str:
    value = entry.get(name)
    if not isinstance(value, str) or not value:
        raise InvalidSnapshot(f"{name} is {value!r}: it must be a text")
    return value


def _count(entry: Mapping[str, Any], name: str) -> int:
    value = entry.get(name)
    if type(value) is not int or value < 0:
        raise InvalidSnapshot(f"{name} is {value!r}: it must be an integer from 0")
    return value


def _models(entry: Mapping[str, Any]) -> tuple[str, ...]:
    value = entry.get("models")
    if not isinstance(value, list) or not value or not all(isinstance(m, str) for m in value):
        raise InvalidSnapshot(f"models is {value!r}: it must be a list of names")
    return tuple(value)


def _steps(entry: Mapping[str, Any]) -> dict[int, tuple[int, float]]:
    value = entry.get("steps_by_batch")
    rule = "it must say [steps, seconds] by batch"
    if not isinstance(value, Mapping):
        raise InvalidSnapshot(f"steps_by_batch is {value!r}: {rule}")
    try:
        return {int(batch): (int(steps), float(s)) for batch, (steps, s) in value.items()}
    except (TypeError, ValueError, OverflowError):
        raise InvalidSnapshot(f"steps_by_batch is {value!r}: {rule}") from None

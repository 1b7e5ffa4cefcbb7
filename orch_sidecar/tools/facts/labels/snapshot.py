"""Parses the state of an engine at one end of a measurement from `/v1/capabilities`.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from orch_sidecar.tools.facts.labels.conditions import EngineConditions, parse_conditions

_SECONDS: Final = 1e12  # 30 000 years


class InvalidSnapshot(ValueError):
    """A document without the state that a measurement needs; the message names the field."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of an engine at one moment.

    Since the engine started: `steps_by_batch`, decode steps and their seconds, by batch size;
    `busy_s`, seconds in steps of any kind; `requests_total`, generation requests that it has
    accepted; `prefix_queries`, `prefix_hits`, prompt tokens looked up in the prefix cache, and
    found there; `generated_tokens`, of all sequences, and `prefilled_tokens`, of prompts as far as
    they were not cached, None where not reported. `kv_tokens_total`: the tokens that its KV cache
    holds, None where not reported.

    `weights`: the model as the engine loaded it, its id or path. `foreign`: sequences in the engine
    that did not come through the reporting sidecar; `leased`: those that did, 0 where the document
    does not state it. `state`: `ready`, or why the engine serves nothing. `observed_at_s`: the Unix
    time at which the engine reported; `age_ms`: how long before the document was made that was.
    `generation`: of the sidecar's configuration; 0 where the engine itself reported the document.
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
    weights: str
    conditions: EngineConditions
    epoch: str
    slots_total: int
    foreign: int
    requests_total: int
    preemptions_total: int
    kv_tokens_total: int | None
    steps_by_batch: Mapping[int, tuple[int, float]]
    busy_s: float
    prefix_queries: int
    prefix_hits: int
    observed_at_s: float = field(compare=False)  # two reports of the same state are equal
    age_ms: int = field(compare=False)
    state: str = "ready"
    generation: int = 0
    leased: int = 0
    generated_tokens: int | None = None
    prefilled_tokens: int | None = None

    @property
    def in_engine(self) -> int:
        """All sequences in the engine."""
        return self.foreign + self.leased


def pool_names(document: Any) -> tuple[str, ...]:
    """Returns the pools in a document. Raises InvalidSnapshot."""
    return tuple(str(entry.get("pool")) for entry in _entries(document))


def parse_snapshot(document: Any, pool: str | None = None) -> Snapshot:
    """Parses the state of the engine of a pool (by default the only one).

    Raises InvalidSnapshot.
    """
    entries = _entries(document)
    if pool is not None:
        entries = [entry for entry in entries if entry.get("pool") == pool]
    if len(entries) != 1:
        names = ", ".join(pool_names(document)) or "none"
        which = "a pool must be given" if pool is None else f"there must be one pool {pool!r}"
        raise InvalidSnapshot(f"{which}: the document has {names}")
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
        weights=_text(entry, "weights"),
        conditions=_conditions(entry),
        epoch=_text(entry, "epoch"),
        slots_total=_count(entry, "slots_total"),
        foreign=_count(entry, "foreign"),
        requests_total=_count(entry, "requests_total"),
        preemptions_total=_count(entry, "preemptions_total"),
        kv_tokens_total=_count(entry, "kv_tokens_total") if entry.get("kv_tokens_total") else None,
        steps_by_batch=_steps(entry),
        busy_s=_seconds(entry, "busy_seconds_total"),
        prefix_queries=_prefix_count(entry, "queries_total"),
        prefix_hits=_prefix_count(entry, "hits_total"),
        observed_at_s=_time(entry, "observed_at"),
        age_ms=_count(entry, "age_ms"),
        state=_text(entry, "state") if "state" in entry else "ready",
        generation=_count(document, "generation") if "generation" in document else 0,
        leased=_count(entry, "leased") if "leased" in entry else 0,
        generated_tokens=_count_if_there(entry, "generated_tokens_total"),
        prefilled_tokens=_count_if_there(entry.get("prefill"), "tokens"),
    )


def _entries(document: Any) -> list[Mapping[str, Any]]:
    entries = document.get("engines") if isinstance(document, Mapping) else None
    if not isinstance(entries, list) or not all(isinstance(each, Mapping) for each in entries):
        raise InvalidSnapshot(
            "the document has no list `engines`: it must come from /v1/capabilities"
        )
    return entries


def _text(entry: Mapping[str, Any], name: str) -> str:
    value = entry.get(name)
    if not isinstance(value, str) or not value:
        raise InvalidSnapshot(f"{name} is {value!r}: it must be a string that is not empty")
    return value


def _count(entry: Mapping[str, Any], name: str) -> int:
    value = entry.get(name)
    if type(value) is not int or value < 0:
        raise InvalidSnapshot(f"{name} is {value!r}: it must be an integer of at least 0")
    return value


def _models(entry: Mapping[str, Any]) -> tuple[str, ...]:
    value = entry.get("models")
    if not isinstance(value, list) or not value or not all(isinstance(m, str) for m in value):
        raise InvalidSnapshot(f"models is {value!r}: it must be a list of names")
    return tuple(value)


def _steps(entry: Mapping[str, Any]) -> dict[int, tuple[int, float]]:
    value = entry.get("steps_by_batch")
    rule = "it must have [steps, seconds] by batch size"
    if not isinstance(value, Mapping):
        raise InvalidSnapshot(f"steps_by_batch is {value!r}: {rule}")
    try:
        return {int(batch): (int(steps), float(s)) for batch, (steps, s) in value.items()}
    except (TypeError, ValueError, OverflowError):
        raise InvalidSnapshot(f"steps_by_batch is {value!r}: {rule}") from None


def _conditions(entry: Mapping[str, Any]) -> EngineConditions:
    value = entry.get("conditions")
    if not isinstance(value, Mapping):
        raise InvalidSnapshot(f"conditions is {value!r}: it must be an object")
    try:
        return parse_conditions(value)
    except ValueError as error:
        raise InvalidSnapshot(f"conditions.{error}") from None


def _seconds(entry: Mapping[str, Any], name: str) -> float:
    value: Any = entry.get(name)
    # Compared before the conversion: an integer may be too large for a float.
    if type(value) not in (int, float) or not 0 <= value < _SECONDS:
        raise InvalidSnapshot(f"{name} is {value!r}: it must be a number from 0 to {_SECONDS:g}")
    return float(value)


def _count_if_there(entry: Any, name: str) -> int | None:
    return _count(entry, name) if isinstance(entry, Mapping) and name in entry else None


def _prefix_count(entry: Mapping[str, Any], name: str) -> int:
    value = entry.get("prefix_cache")
    if not isinstance(value, Mapping):
        rule = "it must be an object; where clients have API keys, the key needs metrics: true"
        raise InvalidSnapshot(f"prefix_cache is {value!r}: {rule}")
    try:
        return _count(value, name)
    except InvalidSnapshot as error:
        raise InvalidSnapshot(f"prefix_cache.{error}") from None


def _time(entry: Mapping[str, Any], name: str) -> float:
    """A Unix time, from RFC 3339."""
    text = _text(entry, name)
    rule = "it must be a date and time with a zone, as in RFC 3339"
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidSnapshot(f"{name} is {text!r}: {rule}") from None
    if at.tzinfo is None:
        raise InvalidSnapshot(f"{name} is {text!r}: {rule}")
    return at.timestamp()

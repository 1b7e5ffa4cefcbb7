"""Names the conditions of a run, so that a reader knows them all and two runs can be compared."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from orch_sidecar.tools.bench.results.result import EngineDocument, Result
from orch_sidecar.tools.drawing.texts import value_text
from orch_sidecar.tools.facts.comparison.conditions import DIFFERENCES
from orch_sidecar.tools.facts.tables.notes import CONDITIONS

LOAD: Final = "Load"

# Beyond those of rows: what else makes two runs answers to different questions.
_MATTERS: Final = {
    **DIFFERENCES,
    "measurement_type": "different ways of batching",
    **dict.fromkeys(
        ("arrivals", "rate_per_s", "clients", "burstiness", "trace"),
        "other loads: queues and batches form differently",
    ),
    "prompts": "other work: prompts and answers of other lengths or texts",
    "slots_total": "batches of other sizes",
    "profile": "other rules of admission and other batches",
    "weights": "different models",
    "slo_ms": "other bounds: shares within the SLO do not compare",
    "verdict": "not both of the results hold",
    "cpus": "other clients",
    "cpu_model": "other clients",
}
# Each run has its own, or it is there under another name.
_OF_ONE_RUN: Final = ("label", "cache_salt", "trace", "replay")


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition. `group`: of load, engine or client. `text`: its value, empty without one."""

    group: str
    name: str
    text: str

    @property
    def title(self) -> str:
        """Its name as words."""
        return self.name.replace("_", " ")

    @property
    def why(self) -> str:
        """Why a difference in it matters, empty where it does not by itself."""
        return _MATTERS.get(self.name, "")


def conditions_of(result: Result) -> list[Condition]:
    """Returns all conditions, in the same order for every result, unknown ones included."""
    groups = {LOAD: _load(result), "Engine": _engine(result.engine), "Client": _client(result)}
    return [
        Condition(group, name, value_text(name, value))
        for group, found in groups.items()
        for name, value in found.items()
    ]


def _load(result: Result) -> dict[str, Any]:
    scenario = asdict(replace(result.scenario, replay=None))
    return {
        "measurement_type": result.measurement_type,
        "verdict": result.status,
        **{name: value for name, value in scenario.items() if name not in _OF_ONE_RUN},
        "salted_cache": "yes" if result.scenario.cache_salt else "no",
        "prefix_hit_ratio": result.prefix_hit_ratio,
        "trace": result.scenario.trace,
    }


def _engine(engine: EngineDocument) -> dict[str, Any]:
    found = engine.model_dump(exclude={"conditions", "epoch"})
    found["given"] = engine.given or "nothing: all was reported"
    return found | dict.fromkeys(CONDITIONS) | (engine.conditions or {})


def _client(result: Result) -> dict[str, Any]:
    health = result.client.bottleneck or "no bottleneck"
    return {"endpoint": result.endpoint, **result.client.host, "health": health}


def differing(one: Result, other: Result) -> list[tuple[Condition, Condition]]:
    """Returns the conditions in which two results differ. One that only one has is empty there."""
    found = {(each.group, each.name): each for each in conditions_of(other)}
    pairs = [
        (each, found.pop((each.group, each.name), replace(each, text="")))
        for each in conditions_of(one)
    ]
    pairs += [(replace(each, text=""), each) for each in found.values()]
    return [(before, after) for before, after in pairs if before.text != after.text]


def engine_text(engine: EngineDocument) -> str:
    """Describes the engine, its hardware and its slots in one line."""
    name = " ".join(part for part in (engine.engine, engine.engine_version) if part)
    parts = [
        name or "an unknown engine",
        engine.precision,
        f"{engine.gpu_count} x {engine.gpu}" if engine.gpu and engine.gpu_count else engine.gpu,
        f"profile {engine.profile}, slots: {engine.slots_total}" if engine.slots_total else None,
    ]
    return ", ".join(part for part in parts if part)

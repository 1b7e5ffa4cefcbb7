"""Names the conditions of a run, so that a reader knows them all and two runs can be compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from orch_sidecar.tools.bench.results.result import Result, TraceDocument
from orch_sidecar.tools.drawing.texts import number_text
from orch_sidecar.tools.facts.comparison.conditions import DIFFERENCES
from orch_sidecar.tools.facts.tables.notes import CONDITIONS, TRACE_DIGITS, Arrivals

LOAD, ENGINE, CLIENT = "Load", "Engine", "Client"

# Beyond those of rows: what else makes two runs answers to different questions.
_MATTERS: Final = {
    **DIFFERENCES,
    "measurement_type": "different ways of batching",
    **dict.fromkeys(
        ("arrivals", "rate", "clients", "burstiness", "trace"),
        "other loads: queues and batches form differently",
    ),
    "prompts": "other work: prompts and answers of other lengths or texts",
    "slots": "batches of other sizes",
    "profile": "other rules of admission and other batches",
    "weights": "different models",
    "SLO": "other bounds: shares within the SLO do not compare",
    "verdict": "not both of the results hold",
    "CPUs": "other clients",
    "processor": "other clients",
}

_BYTES: Final = 2**30


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition. `group`: LOAD, ENGINE or CLIENT. `text`: its value, empty without one."""

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
    groups = {LOAD: _load(result), ENGINE: _engine(result), CLIENT: _client(result)}
    return [
        Condition(group, name, _text(value))
        for group, found in groups.items()
        for name, value in found.items()
    ]


def facts_of(
    result: Result, is_shown: Callable[[Condition], bool]
) -> dict[str, list[tuple[str, str]]]:
    """Returns the titles and the texts of the conditions that are shown, by their groups."""
    found: dict[str, list[tuple[str, str]]] = {LOAD: [], ENGINE: [], CLIENT: []}
    for each in filter(is_shown, conditions_of(result)):
        found[each.group].append((each.title, each.text or "unknown"))
    return found


def _load(result: Result) -> dict[str, Any]:
    scenario, hits = result.scenario, result.prefix_hit_ratio
    return {
        "measurement_type": result.measurement_type.value,
        "verdict": result.status.value,
        "arrivals": scenario.arrivals.value.replace("_", " "),
        "rate": None if scenario.rate_per_s is None else f"{number_text(scenario.rate_per_s)}/s",
        "burstiness": scenario.burstiness,
        "clients": scenario.clients,
        "prompts": scenario.prompts,
        "SLO": ", ".join(f"{name} ≤ {bound:g} ms" for name, bound in scenario.slo_ms.items()),
        "length": f"at least {scenario.least_requests} requests and {scenario.least_seconds:g} s",
        "warm-up": f"{scenario.warm_up_requests} requests",
        "seed": scenario.seed,
        "cache salt": "of this run" if scenario.cache_salt else "none",
        "prefix_hit_ratio": None if hits is None else f"{100 * hits:.0f} %",
        "trace": None if scenario.trace is None else _trace(scenario.trace),
    }


def _engine(result: Result) -> dict[str, Any]:
    engine = result.engine
    found: dict[str, Any] = {
        "engine": " ".join(part for part in (engine.engine, engine.engine_version) if part),
        "model_id": engine.model_id,
        "served as": engine.model,
        "weights": engine.weights,
        "precision": engine.precision,
        "gpu": engine.gpu,
        "gpu_count": engine.gpu_count,
        "pool": engine.pool,
        "profile": engine.profile,
        "slots": engine.slots_total,
        "given": ", ".join(engine.given) or "nothing: all was reported",
    }
    return found | dict.fromkeys(CONDITIONS) | (engine.conditions or {})


def _client(result: Result) -> dict[str, Any]:
    host = result.client.host
    memory = host.get("memory_bytes")
    system = (host.get(name) for name in ("system", "kernel", "machine"))
    versions = {name: host.get(name) for name in ("orch", "python", "uvloop")}
    return {
        "endpoint": result.endpoint,
        "system": " ".join(str(part) for part in system if part),
        "processor": host.get("cpu_model"),
        "CPUs": host.get("cpus"),
        "CPU limit": host.get("cpu_limit"),
        "memory": f"{memory / _BYTES:.1f} GiB" if isinstance(memory, int | float) else None,
        "versions": ", ".join(f"{name} {value}" for name, value in versions.items() if value),
        "client health": "; ".join(result.client.bottleneck) or "no bottleneck",
    }


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def differing(one: Result, other: Result) -> list[tuple[Condition, Condition]]:
    """Returns the conditions in which two results differ. One that only one has is empty there."""
    found = {(each.group, each.name): each for each in conditions_of(other)}
    pairs = [
        (each, found.pop((each.group, each.name), replace(each, text="")))
        for each in conditions_of(one)
    ]
    pairs += [(replace(each, text=""), each) for each in found.values()]
    return [(before, after) for before, after in pairs if before.text != after.text]


def engine_text(result: Result) -> str:
    """Describes the engine, its hardware and its slots in one line."""
    engine = result.engine
    name = " ".join(part for part in (engine.engine, engine.engine_version) if part)
    parts = [
        name or "an unknown engine",
        engine.precision,
        f"{engine.gpu_count} x {engine.gpu}" if engine.gpu and engine.gpu_count else engine.gpu,
        f"profile {engine.profile}, slots: {engine.slots_total}" if engine.slots_total else None,
    ]
    return ", ".join(part for part in parts if part)


def arrivals_text(result: Result) -> str:
    """Describes how requests arrived."""
    scenario = result.scenario
    if scenario.rate_per_s is not None:
        shape = "" if scenario.burstiness is None else f" of burstiness {scenario.burstiness:g}"
        return f"{scenario.arrivals} arrivals{shape} at {scenario.rate_per_s:.4g}/s"
    if scenario.trace is not None:
        return _trace(scenario.trace)
    name = scenario.arrivals.replace("_", " ")
    closed = scenario.arrivals is Arrivals.CLOSED_LOOP
    return f"{name} of {scenario.clients}" if closed else name


def _trace(trace: TraceDocument) -> str:
    from_s, until_s = trace.window_s
    parts = [f"{trace.requests} requests of the trace {trace.name} ({trace.sha256[:TRACE_DIGITS]})"]
    if from_s or until_s is not None:
        parts.append(f"from {from_s:g} s" + ("" if until_s is None else f" to {until_s:g} s"))
    parts.append(f"times by {trace.time_factor:g}, lengths by {trace.length_factor:g}")
    if trace.bulk_clients:
        parts.append(f"beside {trace.bulk_clients} clients with bulk requests")
    if trace.bulk_name is not None:
        parts.append(f"beside {trace.bulk_requests} bulk requests of {trace.bulk_name}")
    return ", ".join(parts)

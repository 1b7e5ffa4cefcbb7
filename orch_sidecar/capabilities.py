"""The engines' states and the ledgers in, the sidecar's `/v1/capabilities` document out.

Pure. BATCHING/ORCH-3910 to 3912; the vocabulary is that of the plugin's document.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from orch_sidecar import report
from orch_sidecar.admission.core import Admission
from vllm_plugin.profile import ServiceClass

API_VERSION: Final = "1.0.0"

# What the plugin tells sidecars only, or tells in its own terms.
_NOT_PASSED_ON: Final = frozenset({"leases", "message"})


@dataclass(frozen=True, slots=True)
class BatchingStats:
    """What batching does: `total_batches` are decode steps, sizes are sequences per step.

    Means are over all decode steps since the engine started, None before the first.
    `total_requests`: given to the engine by this sidecar. `max_batch_size`, `max_wait_ms`: what
    holds now, the latter the longest time for which a batch is gathered before it begins.
    """

    total_batches: int
    total_requests: int
    avg_batch_size: float | None
    avg_batch_duration_ms: float | None
    queue_depth: int
    max_batch_size: int
    max_wait_ms: float


@dataclass(frozen=True, slots=True)
class Seen:
    """A pool as this sidecar sees it. `engine`: the document of its engine, None before it has
    ever reported. `classes`: those of its profile."""

    pool: str
    engine: Mapping[str, Any] | None
    admission: Admission
    classes: Sequence[ServiceClass]
    state: str
    age_ms: int | None
    busy_ratio: float | None


def document(
    pools: Iterable[Seen],
    *,
    state: str,
    states: Mapping[str, str],
    sidecar_version: str,
    generation: int,
) -> dict[str, Any]:
    """The document. A pool whose engine has never reported has a state and no entry.

    `states`: of all pools by name, with those that have no address. `generation`: of the
    sidecar's configuration.
    """
    return {
        "api_version": API_VERSION,
        "sidecar_version": sidecar_version,
        "state": state,
        "generation": generation,
        "pools": dict(states),
        "engines": [entry(each, each.engine) for each in pools if each.engine is not None],
    }


def entry(seen: Seen, engine: Mapping[str, Any]) -> dict[str, Any]:
    """One pool: what its engine says, and the ledger's word on leases."""
    admission = seen.admission
    ledger, limits = admission.ledger, admission.limits
    told = {key: value for key, value in engine.items() if key not in _NOT_PASSED_ON}
    return told | {
        "pool": seen.pool,
        "slots_free": max(0, ledger.room) if seen.state == "ready" else 0,
        "leased": ledger.leased,
        "foreign": ledger.foreign,
        "queue": {each.value: admission.queued(each) for each in seen.classes},
        "hold": None if admission.hold is None else admission.hold.value,
        "limits": {
            each.value: {"batch": limits.batch(each), "window_ms": limits.window_ms(each)}
            for each in seen.classes
        }
        | {"mixed_batch": limits.mixed, "measured": limits.measured},
        "step_time": engine.get("step_time"),
        "batching_stats": asdict(batching_stats(seen)),
        "engine_busy_ratio": seen.busy_ratio,
        "oversubscription_violations_total": ledger.violations,
        "state": seen.state,
        "age_ms": seen.age_ms,
    }


def batching_stats(seen: Seen) -> BatchingStats:
    """The statistics, from the engine's own count of its decode steps."""
    admission = seen.admission
    limits = admission.limits
    decoded = report.decode_steps_of(seen.engine or {}) or []
    steps = sum(count for _, count, _ in decoded)
    sequences = sum(batch * count for batch, count, _ in decoded)
    seconds = sum(time_s for _, _, time_s in decoded)
    return BatchingStats(
        total_batches=steps,
        total_requests=sum(admission.statistics.granted.values()),
        avg_batch_size=round(sequences / steps, 3) if steps else None,
        avg_batch_duration_ms=round(1000 * seconds / steps, 3) if steps else None,
        queue_depth=admission.queue_depth,
        max_batch_size=max(limits.batch(each) for each in seen.classes),
        max_wait_ms=max(limits.window_ms(each) for each in seen.classes),
    )

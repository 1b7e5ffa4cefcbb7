"""The engines' states and the ledgers in, the sidecar's `/v1/capabilities` document out.

Pure. BATCHING/ORCH-3910 to 3912; the vocabulary is that of the plugin's document.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Final

from orch_sidecar.admission.controller import AdmissionController
from orch_sidecar.api.endpoints import WORKLOADS
from orch_sidecar.auth.keys import ApiKey
from orch_sidecar.engine_state import report
from vllm_plugin.profile import Profile, ServiceClass

API_VERSION: Final = "1.0.0"

# What the plugin tells sidecars only, or tells in its own terms.
_NOT_PASSED_ON: Final = frozenset({"leases", "message"})


@dataclass(frozen=True, slots=True)
class BatchingStats:
    """What batching does: `total_batches` are decode steps, sizes are sequences per step.

    Means are over all decode steps since the engine started, None before the first.
    `total_requests`: given to the engine by this sidecar. `max_batch_size`, `max_wait_ms`: what
    holds now, the latter the longest time for which a batch is gathered before it begins (0: none
    is).
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
    profile: Profile
    engine: Mapping[str, Any] | None
    admission: AdmissionController
    classes: Sequence[ServiceClass]
    state: str
    age_ms: int | None
    busy_ratio: float | None


def document(
    pools: Iterable[Seen],
    absent: Mapping[str, Profile],
    key: ApiKey | None,
    *,
    state: str,
    states: Mapping[str, str],
    sidecar_version: str,
    generation: int,
) -> dict[str, Any]:
    """The document, with an entry for every configured pool.

    `absent`: the profiles of headless pools that have no address. `key`: of whom the document is
    for. `states`: of all pools by name, the absent ones included. `generation`: of the sidecar's
    configuration.
    """
    return {
        "api_version": API_VERSION,
        "sidecar_version": sidecar_version,
        "state": state,
        "generation": generation,
        "pools": dict(states),
        "engines": [entry(each, key) for each in pools]
        + [_unknown(name, profile, states[name]) for name, profile in absent.items()],
    }


def _unknown(pool: str, profile: Profile, state: str) -> dict[str, Any]:
    """A pool of which only the configuration is known: what is not known is null or empty."""
    return {
        "engine": None,
        "engine_version": None,
        "pool": pool,
        "models": [],
        "ctx_max": None,
        "profile": profile.name,
        "measurement_type": profile.measurement_type.value,
        "batching": profile.batching,
        "slots_total": 0,
        "slots_free": 0,
        "running": 0,
        "waiting": 0,
        "leased": 0,
        "foreign": 0,
        "state": state,
        "epoch": None,
        "age_ms": None,
        "supported_workloads": [],
        "rate_limits": {},
        "features": {},
    }


def entry(seen: Seen, key: ApiKey | None) -> dict[str, Any]:
    """One pool: what its engine reports, and what this sidecar knows better."""
    admission, engine = seen.admission, seen.engine or {}
    ledger, limits = admission.ledger, admission.limits
    reported = {name: value for name, value in engine.items() if name not in _NOT_PASSED_ON}
    return (
        _unknown(seen.pool, seen.profile, seen.state)
        | reported
        | {
            "pool": seen.pool,
            "slots_free": max(0, ledger.room) if seen.state == "ready" else 0,
            "leased": ledger.leased,
            "foreign": ledger.foreign,
            "queue": {each.value: admission.queued(each) for each in seen.classes},
            "hold": None if admission.hold is None else admission.hold.value,
            "limits": {
                **{each.value: {"batch": limits.batch(each)} for each in seen.classes},
                "mixed_batch": limits.mixed,
                "window_ms": limits.window_ms,
                "measured": limits.measured,
            },
            "step_time": engine.get("step_time"),
            "batching_stats": asdict(batching_stats(seen)),
            "engine_busy_ratio": seen.busy_ratio,
            "oversubscription_violations_total": ledger.violations,
            "state": seen.state,
            "drain": drain_of(admission),
            "age_ms": seen.age_ms,
            "supported_workloads": [
                each for each in engine.get("supported_workloads", ()) if each in WORKLOADS
            ],
            "rate_limits": _rate_limits(seen, key),
        }
    )


def _rate_limits(seen: Seen, key: ApiKey | None) -> dict[str, Any]:
    """What is refused with a 429 beyond: nothing is counted by time, all of it is at once.

    `queue_capacity` in waiting requests and `max_wait_s` in seconds, by class; and the sequences
    that the key may have here at once, None where that is not limited.
    """
    rules = {each.value: seen.admission.rules.of(each) for each in seen.classes}
    return {
        "queue_capacity": {name: each.queue_capacity for name, each in rules.items()},
        "max_wait_s": {name: each.max_wait_s for name, each in rules.items()},
        "key_concurrency": None if key is None else key.concurrency,
    }


def drain_of(admission: AdmissionController) -> dict[str, str] | None:
    """Who has a pool drain, and since when (RFC 3339); None: it does not drain."""
    drain = admission.draining
    if drain is None:
        return None
    since = datetime.fromtimestamp(drain.since_s, UTC).isoformat(timespec="milliseconds")
    return {"ordered_by": drain.ordered_by.value, "since": since.replace("+00:00", "Z")}


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
        max_wait_ms=limits.window_ms,
    )

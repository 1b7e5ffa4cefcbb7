"""Builds the parts of the sidecar's `/v1/capabilities` document from the status of each pool.

Pure. BATCHING/ORCH-3910 to 3912; the vocabulary is that of the plugin's document.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from orch_sidecar.admission.availability import Drain
from orch_sidecar.admission.queues import Queues
from orch_sidecar.admission.status import AdmissionStatus
from orch_sidecar.api.endpoints import WORKLOADS
from orch_sidecar.auth.keys import ApiKey
from orch_sidecar.pools.status import PoolStatus
from vllm_plugin.contracts.lease_protocol import API_VERSION, timestamp
from vllm_plugin.contracts.profile import ServiceClass

# The fields of the engine's document that are for sidecars only, or replaced here.
OMITTED_FIELDS: Final = frozenset({"leases", "message", "claim", "claimed", "waits"})
# What only an engine tells, while it has not.
_UNREPORTED: Final[dict[str, Any]] = {
    "engine": None,
    "engine_version": None,
    "models": [],
    "ctx_max": None,
    "slots_total": 0,
    "running": 0,
    "waiting": 0,
    "epoch": None,
    "features": {},
}
# Where clients have API keys, it tells them what others asked.
PRIVATE_FIELD: Final = "prefix_cache"


def head(
    *,
    state: str,
    states: Mapping[str, str],
    sidecar_version: str,
    sidecar_build: str,
    generation: int,
) -> dict[str, Any]:
    """Returns the document without its last field, `engines`: an entry for each configured pool.

    `states`: of all pools by name, the absent ones included. `generation`: of the sidecar's
    configuration.
    """
    return {
        "api_version": API_VERSION,
        "sidecar_version": sidecar_version,
        "sidecar_build": sidecar_build,
        "state": state,
        "generation": generation,
        "pools": dict(states),
    }


def entry(pool: PoolStatus, key: ApiKey | None) -> dict[str, Any]:
    """Returns the entry of a pool: its engine's document, with this sidecar's own values. What its
    engine has not reported is null or empty."""
    engine, admission = pool.document, pool.admission
    limits, blocked = admission.limits, admission.blocked_by
    blocked_by = None if blocked is None else blocked.reason
    reported = {name: value for name, value in engine.items() if name not in OMITTED_FIELDS}
    return (
        _UNREPORTED
        | {
            "profile": pool.profile.name,
            "measurement_type": pool.profile.measurement_type.value,
            "batching": pool.profile.batching,
        }
        | reported
        | {
            "pool": pool.name,
            **pool.slots_free,
            "effective_capacity": admission.effective_capacity,
            "demand_ratio": round(admission.demand_ratio, 3),
            "leased": admission.leased,
            "foreign": admission.foreign,
            "queue": pool.queued,
            "blocked_by": blocked_by,
            "hold": blocked_by,  # deprecated: its former name
            "limits": {
                **{each.value: {"batch": limits.batch(each)} for each in admission.classes},
                "mixed_batch": limits.mixed,
                "measured": limits.measured,
                "tpot_out_of_reach": limits.out_of_reach,
            },
            "step_time": engine.get("step_time"),
            "batching_stats": asdict(pool.batching),
            "engine_busy_ratio": pool.busy_ratio,
            "oversubscription_violations_total": admission.violations,
            "state": pool.state.value,
            "drain": drain_entry(admission.draining),
            "age_ms": pool.age_ms,
            "supported_workloads": [
                each for each in engine.get("supported_workloads", ()) if each in WORKLOADS
            ],
            "rate_limits": _rate_limits(admission, key),
        }
    )


def _rate_limits(admission: AdmissionStatus, key: ApiKey | None) -> dict[str, Any]:
    """Returns the limits beyond which requests get a 429; the page adds the budgets of the key.

    `queue_capacity` in queued requests and `max_wait_s` in seconds, by class; and the concurrent
    sequences of the key, None where they are not limited.
    """
    rules = {each.value: admission.rules.of(each) for each in admission.classes}
    return {
        "queue_capacity": {name: each.queue_capacity for name, each in rules.items()},
        "max_wait_s": {name: each.max_wait_s for name, each in rules.items()},
        "key_concurrency": None if key is None else key.concurrency,
    }


def drain_entry(drain: Drain | None) -> dict[str, str] | None:
    """Returns what ordered a drain and since when (RFC 3339); None without one."""
    if drain is None:
        return None
    return {"ordered_by": drain.ordered_by.value, "since": timestamp(drain.since_s)}


def shares_of_keys(queues: Queues, names: Mapping[bytes, str]) -> dict[str, Any]:
    """Returns what each key with one of these names has in a pool, by class and name.

    `share`: of the tokens that all keys of the class were served since the start, None if there
    were none.
    """
    found: dict[str, Any] = {each.value: {} for each in ServiceClass}
    for service_class, name, share, served in queues.shares(names):
        found[service_class.value][name] = {
            "weight": share.weight,
            "queued": len(share.queue),
            "running": share.running,
            "share": served,
        }
    return found

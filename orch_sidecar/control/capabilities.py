"""Describes pools by what they can do: `/v1/capabilities`, and the stream of its changes.

The document is made of the status of each pool; its vocabulary is that of the plugin's document.
BATCHING/ORCH-3910 to 3912. To a parent sidecar, which reads the stream, a pool looks like an
engine: the events are those of `vllm_plugin.contracts.lease_protocol`.

Pure: times are seconds of a monotonic clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from orch_sidecar.admission.availability import Drain
from orch_sidecar.admission.claims import EngineClaims
from orch_sidecar.admission.queues import Queues
from orch_sidecar.api.endpoints import WORKLOADS
from orch_sidecar.auth.keys import ApiKey
from orch_sidecar.pools.parent_leases import ParentLeases
from orch_sidecar.pools.status import AdmissionStatus, PoolStatus
from vllm_plugin.contracts.lease_protocol import (
    API_VERSION,
    CHANGE,
    ENDED,
    HEARTBEAT,
    HEARTBEAT_EVERY_S,
    OFFER,
    SHARED_CHANGES_EVERY_S,
    STATE,
    changes_every_s,
    timestamp,
)
from vllm_plugin.contracts.profile import IDLE, ServiceClass
from vllm_plugin.contracts.slot_claims import Subscriber

if TYPE_CHECKING:
    from orch_sidecar.pools.pool import Pool

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
# The fields of the engine's document that parent sidecars do not get.
_OMITTED_OF_PARENTS: Final = frozenset(
    {
        "leases", "observed_at", "age_ms", "no_slot_total", "sidecars", "contended", "claim",
        "claimed", "waits", "foreign_interactive",
    }
)  # fmt: skip

State = dict[str, Any]


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


def state_of(pool: PoolStatus, run: str, sequences: int) -> State:
    """Returns the state of a pool for a parent sidecar that owns `sequences` of its slots.

    `run`: of this sidecar's start.
    """
    profile, admission, queued = pool.profile, pool.admission, pool.queued
    state: State = {
        "running": 0,
        "waiting": 0,
        "peak": 0,
        "profile": profile.name,
        "measurement_type": profile.measurement_type.value,
        "batching": profile.batching,
    }
    state |= {key: each for key, each in pool.document.items() if key not in _OMITTED_OF_PARENTS}
    return state | {
        "api_version": API_VERSION,
        "pool": pool.name,
        "slots_total": admission.slots_total,
        **pool.slots_free,
        "waiting": state["waiting"] + sum(queued.values()),
        "foreign": admission.leased + admission.foreign - sequences,
        "leased": admission.leased,
        "queue": queued,
        # A restart of the engine or of this sidecar ends every lease.
        "epoch": f"{run}.{admission.epoch}",
        "state": pool.state.value,
        "message": pool.message,
    }


def _idle_of_others(pool: Pool, instance: str | None) -> int:
    """Returns the sequences of idle requests that a parent has not sent."""
    leases = pool.ledger.all() if pool.ledger.idle else ()
    ours = ((each.request, each.cost) for each in leases)
    return sum(
        cost
        for request, cost in ours
        if request is not None and request.service_class is IDLE and request.parent != instance
    )


def claim_fields(claims: EngineClaims, instance: str | None) -> State:
    """Returns what a parent sees of those that share an engine with it: nothing where none does but
    other parents of this sidecar."""
    table, sidecars = claims.parents.claim_table, claims.offers.sidecars
    claim = table.claim_of(instance)
    others = claims.offers.contended or claims.has_queue or table.contended(instance)
    return {
        "sidecars": sidecars,
        "contended": sidecars > 1 and others,
        "claim": None if claim is None else claim._asdict(),
        "waits": table.has_unclaimed_demand(instance),
        "claimed": table.number_of(instance),
    }


class StateFeed:
    """The events of one stream about a pool: remembers what was sent, and decides which events to
    send next, and when."""

    def __init__(
        self,
        leases: ParentLeases,
        subscriber: Subscriber,
        pool: Pool,
        asked_s: float = 0.0,
        private: bool = True,
    ) -> None:
        """`asked_s`: the least time between two changes that the parent asks for. `private`: with
        what tells of the requests of others."""
        self._leases = leases
        self._asked_s = asked_s
        self._private = private
        self.subscriber = subscriber
        self._pool = pool
        self._sent: State = {}
        self._changed_at = self._beat_at = float("-inf")

    def due(self, now: float) -> list[tuple[str, State]]:
        """Returns name and data of the events to be sent now. The first is the whole state."""
        subscriber = self.subscriber
        events: list[tuple[str, State]] = []
        if subscriber.ended:
            ended, subscriber.ended = subscriber.ended, []
            events.append((ENDED, {"leases": ended}))
        instance, pool = subscriber.instance, self._pool
        beat = now - self._beat_at >= HEARTBEAT_EVERY_S
        if beat:
            pool.claims.expire(now)
        # They do not wait, and are preceded by the slots that their reader may use.
        offers = pool.claims.parents.offers(instance)
        due = subscriber.changed and now - self._changed_at >= self._interval_s
        if not (beat or offers or due or subscriber.at_once):
            return events
        # Idle requests of others give way to this parent's: they are no foreign ones to it.
        sequences = self._leases.sequences(instance, pool.ledger) + _idle_of_others(pool, instance)
        run, claims = self._leases.run, claim_fields(pool.claims, instance)
        state = state_of(pool.status(), run, sequences) | claims
        if "lora" in state:
            ours = (lease.request for lease in pool.ledger.all() if lease.request is not None)
            others = (each.adapter for each in ours if each.parent != instance and each.adapter)
            foreign = {*state["lora"].get("foreign", ()), *others}
            state["lora"] = state["lora"] | {"foreign": sorted(foreign)}
        if not self._private:
            state.pop(PRIVATE_FIELD, None)
        sent, self._sent = self._sent, state
        self._leases.subscribers.looked(subscriber)
        self._changed_at = now
        if beat:
            self._beat_at = now
        if state["epoch"] != sent.get("epoch"):
            return [*events, self.whole()]
        change = {key: value for key, value in state.items() if sent.get(key) != value}
        if beat:
            # As an engine's, which repeats what its reader claims.
            events.append((HEARTBEAT, change | claims if claims["sidecars"] > 1 else change))
        elif change:
            events.append((CHANGE, change))
        return events + [(OFFER, {"cost": offer.slots, "number": offer.number}) for offer in offers]

    def whole(self) -> tuple[str, State]:
        """Returns the event with the whole state, as it was sent last."""
        return STATE, self._sent | {"leases": sorted(self._leases.of(self.subscriber.instance))}

    def sleep_s(self, now: float) -> float:
        """Returns the seconds until `due` may return events without being woken."""
        sleep_s = self._beat_at + HEARTBEAT_EVERY_S - now
        if self.subscriber.changed:
            sleep_s = min(sleep_s, self._changed_at + self._interval_s - now)
        return max(0.0, sleep_s)

    @property
    def _interval_s(self) -> float:
        """The least time between two changes: the longer, the more parents there are to send to."""
        readers, sidecars = self._leases.readers, self._pool.claims.offers.sidecars
        parents_s = min(HEARTBEAT_EVERY_S, SHARED_CHANGES_EVERY_S * (readers - 1))
        return max(changes_every_s(sidecars), parents_s, self._asked_s)

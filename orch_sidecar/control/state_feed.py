"""Decides which events a parent sidecar is sent about a pool, and when.

Pure: times are seconds of a monotonic clock. To the parent, the pool looks like an engine: the
events are those of `vllm_plugin.contracts.lease_protocol`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from orch_sidecar.admission.claims import EngineClaims
from orch_sidecar.control.capabilities import PRIVATE_FIELD
from orch_sidecar.pools.parent_leases import ParentLeases
from orch_sidecar.pools.status import PoolStatus
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
)
from vllm_plugin.contracts.profile import IDLE
from vllm_plugin.contracts.slot_claims import Subscriber

if TYPE_CHECKING:
    from orch_sidecar.pools.pool import Pool

# The fields of the engine's document that concern this sidecar only.
_OMITTED_FIELDS: Final = frozenset(
    {
        "leases",
        "observed_at",
        "age_ms",
        "no_slot_total",
        "sidecars",
        "contended",
        "claim",
        "claimed",
        "waits",
        "foreign_interactive",
    }
)

State = dict[str, Any]


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
    state |= {key: each for key, each in pool.document.items() if key not in _OMITTED_FIELDS}
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
    """The events of one stream: remembers what was sent, and computes what to send next."""

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

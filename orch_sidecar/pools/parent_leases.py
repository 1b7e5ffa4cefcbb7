"""Sidecars above this one: which of their leases are here, and what they are told of a pool.

To a sidecar above, a pool of this one looks like an engine. It counts what it sent by leases of
its own (`<instance>.<random>.<cost>`), which are booked here and never trusted: what a request
may do is decided by this sidecar's own admission. A lease from above is over when the handling
of its request has ended and whatever slots that request held here have come back, so that an
end that is told upward is one.

Pure: times are seconds of a monotonic clock; listeners are woken, and told when they look.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from orch_sidecar.admission.ledger import Lease, Ledger
from vllm_plugin.profile import Profile

CHANGES_EVERY_S: Final = 0.020
HEARTBEAT_EVERY_S: Final = 1.0

# Leases that are over, kept so that their requests are turned away if they still come. What
# lies in a socket's buffer comes within a second or so: this is enough for any rate of ends.
ENDED_KEPT: Final = 65_536

_LEASE: Final = re.compile(r"([0-9a-f]{16})\.[0-9a-f]{32}\.([1-9][0-9]{0,6})")

# Of the engine's own document: what it says to this sidecar only.
_NOT_PASSED_ON: Final = frozenset({"leases", "observed_at", "age_ms"})

State = dict[str, Any]


@dataclass(slots=True)
class ParentLease:
    """A request of a sidecar above, from its arrival until its lease is over.

    `lease` is None, and nothing is booked, where the header held something that is no lease.
    """

    instance: str = ""
    lease: str | None = None
    cost: int = 0
    handled: bool = False
    held: list[tuple[Ledger, Lease]] = field(default_factory=list)

    def sequences(self, ledger: Ledger) -> int:
        """What this request accounts for of the sequences that are leased in `ledger`.

        The lesser of both costs where they differ: what the sidecar above counts for it and
        what is told as foreign are then together never less than what is leased.
        """
        cost = sum(own.cost for where, own in self.held if where is ledger and where.holds(own.id))
        return min(cost, self.cost)

    @property
    def over(self) -> bool:
        return self.handled and not any(where.holds(own.id) for where, own in self.held)


class Listener:
    """A reader of a pool's state: is woken by the first change since it looked, and by ends."""

    def __init__(self, instance: str | None, wake: Callable[[], None]) -> None:
        self.instance = instance
        self.wake = wake
        self.dirty = True  # it has yet to look
        self.ended: list[str] = []

    def changed(self) -> None:
        if not self.dirty:
            self.dirty = True
            self.wake()


class ParentLeases:
    """The leases of sidecars above whose requests are here. One book for all pools."""

    def __init__(self, run: str) -> None:
        """`run`: another one at each start of this sidecar. Not the instance of a gate: who
        knows that can make up leases that the gate's owner would count."""
        self.run = run
        self._present: dict[str, ParentLease] = {}
        self._leaving: list[ParentLease] = []
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._listeners: set[Listener] = set()

    def listen(self, listener: Listener) -> None:
        self._listeners.add(listener)

    def unlisten(self, listener: Listener) -> None:
        self._listeners.discard(listener)

    @property
    def listened(self) -> bool:
        """Whether anybody listens."""
        return bool(self._listeners)

    def enter(self, header: str) -> ParentLease | None:
        """A request came with this `X-Orch-Lease`. None: its lease is spent, turn it away."""
        match = _LEASE.fullmatch(header)
        if match is None:
            return ParentLease()
        self._settle()
        if header in self._present or header in self._ended:
            return None
        presence = ParentLease(match.group(1), header, int(match.group(2)))
        self._present[header] = presence
        return presence

    def granted(self, presence: ParentLease, ledger: Ledger, lease: Lease) -> None:
        """It has got slots here: `lease`, of that ledger."""
        if presence.lease is not None:
            presence.held.append((ledger, lease))
            self.changed()

    def leave(self, presence: ParentLease) -> None:
        """Its handling has ended; its lease is over when its slots are free. Call it once."""
        if presence.lease is not None:
            presence.handled = True
            self._leaving.append(presence)
            self.changed()

    def revoke(self, lease: str) -> bool:
        """Spends a lease. True: no request carries it and none will; False: one is still here.

        Raises ValueError for what is not a lease.
        """
        if _LEASE.fullmatch(lease) is None:
            raise ValueError(f"not a lease: {lease[:80]!r}")
        self._settle()
        if lease in self._present:
            return False
        self._spend(lease)
        return True

    def of(self, instance: str | None) -> list[str]:
        """The leases of one sidecar instance that are not over."""
        self._settle()
        return [lease for lease, each in self._present.items() if each.instance == instance]

    def instances(self) -> set[str]:
        """The sidecar instances that have leases here which are not over."""
        return {each.instance for each in self._present.values()}

    def sequences(self, instance: str | None, ledger: Ledger) -> int:
        """What the requests of one sidecar instance hold of the slots of `ledger`."""
        return sum(
            each.sequences(ledger) for each in self._present.values() if each.instance == instance
        )

    def changed(self) -> None:
        """Something that may be told has changed: a pool, its engine, or a lease here."""
        self._settle()
        for listener in self._listeners:
            listener.changed()

    def _settle(self) -> None:
        """Ends the leases that are over."""
        if not self._leaving:
            return
        over = [presence for presence in self._leaving if presence.over]
        if not over:
            return
        self._leaving = [presence for presence in self._leaving if not presence.over]
        for presence in over:
            assert presence.lease is not None
            del self._present[presence.lease]
            self._spend(presence.lease)
            for listener in self._listeners:
                if listener.instance == presence.instance:
                    listener.ended.append(presence.lease)
                    listener.wake()

    def _spend(self, lease: str) -> None:
        self._ended[lease] = None
        if len(self._ended) > ENDED_KEPT:
            self._ended.popitem(last=False)


@dataclass(frozen=True, slots=True)
class PoolView:
    """A pool at one instant. `engine`: the document of its engine, None before there is one.

    `state`: an EngineState; where it is not ready, `message` says why. `queued`: waiting requests,
    by class.
    """

    name: str
    profile: Profile
    ledger: Ledger
    queued: Mapping[str, int]
    state: str
    message: str
    engine: Mapping[str, Any] | None


def entry(pool: PoolView, run: str, sequences: int) -> State:
    """The pool as an engine, as seen by the sidecar above that has `sequences` of its slots.

    `run`: of this sidecar.
    """
    ledger, profile = pool.ledger, pool.profile
    said: State = {
        "running": 0,
        "waiting": 0,
        "peak": 0,
        "profile": profile.name,
        "measurement_type": profile.measurement_type.value,
        "batching": profile.batching,
    }
    if pool.engine is not None:
        said |= {key: value for key, value in pool.engine.items() if key not in _NOT_PASSED_ON}
    ready = pool.state == "ready"
    return said | {
        "pool": pool.name,
        "slots_total": ledger.slots_total,
        "slots_free": max(0, ledger.room) if ready else 0,
        "waiting": said["waiting"] + sum(pool.queued.values()),
        "foreign": ledger.leased + ledger.foreign - sequences,
        "leased": ledger.leased,
        "queue": dict(pool.queued),
        # A restart of either ends every lease.
        "epoch": f"{run}.{ledger.epoch}",
        "state": pool.state,
        "message": pool.message,
    }


class Feed:
    """What a reader has been told of a pool, and what it is to be told next."""

    def __init__(
        self, leases: ParentLeases, listener: Listener, look: Callable[[], PoolView]
    ) -> None:
        self._leases = leases
        self._listener = listener
        self._look = look
        self._sent: State = {}
        self._changed_at = self._beat_at = float("-inf")

    def due(self, now: float) -> list[tuple[str, State]]:
        """The events, by name, that are to be sent now. The first is the whole state."""
        listener = self._listener
        events: list[tuple[str, State]] = []
        if listener.ended:
            ended, listener.ended = listener.ended, []
            events.append(("ended", {"leases": ended}))
        beat = now - self._beat_at >= HEARTBEAT_EVERY_S
        if not beat and not (listener.dirty and now - self._changed_at >= CHANGES_EVERY_S):
            return events
        pool, instance = self._look(), listener.instance
        said = entry(pool, self._leases.run, self._leases.sequences(instance, pool.ledger))
        sent, self._sent = self._sent, said
        listener.dirty, self._changed_at = False, now
        if beat:
            self._beat_at = now
        if said["epoch"] != sent.get("epoch"):
            return [*events, ("state", said | {"leases": sorted(self._leases.of(instance))})]
        change = {key: value for key, value in said.items() if sent.get(key) != value}
        if beat or change:
            events.append(("heartbeat" if beat else "change", change))
        return events

    def rest_s(self, now: float) -> float:
        """Until `due` may have something to say, unless it is woken."""
        rest_s = self._beat_at + HEARTBEAT_EVERY_S - now
        if self._listener.dirty:
            rest_s = min(rest_s, self._changed_at + CHANGES_EVERY_S - now)
        return max(0.0, rest_s)

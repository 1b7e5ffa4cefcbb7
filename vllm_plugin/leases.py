"""Which generating requests are in the engine, and whose lease each of them carries.

Pure. A lease is written `<instance>.<random>.<cost>`: the sidecar that gave it, what makes it
unguessable, and the sequences that it stands for. A request without one (or with something
that is not one) is counted as one sequence of nobody's.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import dataclass

_LEASE = re.compile(r"([0-9a-f]{16})\.([0-9a-f]{32})\.([1-9][0-9]{0,6})")

# Revoked leases that never came, kept so that they are refused if they still do. A request
# that lies in a socket's buffer arrives within seconds; at 4096 the memory is under 1 MiB.
REVOKED_KEPT = 4096


@dataclass(frozen=True, slots=True)
class Presence:
    """One generating request in the engine."""

    instance: str | None
    lease: str | None
    cost: int


class Leases:
    """The generating requests that are in the engine now."""

    def __init__(self) -> None:
        self._present: dict[int, Presence] = {}
        self._by_lease: dict[str, int] = {}
        self._revoked: OrderedDict[str, None] = OrderedDict()
        self._next = 0

    def enter(self, header: str | None) -> tuple[int, Presence] | None:
        """A request came in with this `X-Orch-Lease`. None: its lease is spent, turn it away."""
        match = _LEASE.fullmatch(header) if header else None
        if match is None:
            presence = Presence(None, None, 1)
        else:
            lease = match.group(0)
            if lease in self._revoked or lease in self._by_lease:
                return None
            presence = Presence(match.group(1), lease, int(match.group(3)))
        self._next += 1
        self._present[self._next] = presence
        if presence.lease is not None:
            self._by_lease[presence.lease] = self._next
        return self._next, presence

    def leave(self, key: int) -> Presence:
        """The request that `enter` gave this key for has ended. Its lease is spent."""
        presence = self._present.pop(key)
        if presence.lease is not None:
            del self._by_lease[presence.lease]
            self._spend(presence.lease)
        return presence

    def revoke(self, lease: str) -> bool:
        """Spends a lease. True: no request carries it and none will; False: one is still here.

        Raises ValueError for what is not a lease.
        """
        if _LEASE.fullmatch(lease) is None:
            raise ValueError(f"not a lease: {lease[:80]!r}")
        if lease in self._by_lease:
            return False
        self._spend(lease)
        return True

    def _spend(self, lease: str) -> None:
        self._revoked[lease] = None
        if len(self._revoked) > REVOKED_KEPT:
            self._revoked.popitem(last=False)

    def of(self, instance: str | None) -> list[str]:
        """The leases of one sidecar instance that are in the engine now."""
        return [
            presence.lease
            for presence in self._present.values()
            if presence.lease is not None and presence.instance == instance
        ]

    def leased(self) -> int:
        """Sequences of all requests that carry a lease, whoever gave it."""
        return sum(p.cost for p in self._present.values() if p.lease is not None)

    def foreign_to(self, instance: str | None, in_engine: int) -> int:
        """Sequences in the engine that sidecar `instance` gave no lease for.

        A request without a lease counts as one, or as more where `in_engine` (running plus
        waiting sequences) proves that it is more.
        """
        mine = unleased = others = 0
        for presence in self._present.values():
            if presence.lease is None:
                unleased += 1
            elif presence.instance == instance:
                mine += presence.cost
            else:
                others += presence.cost
        if unleased:
            unleased = max(unleased, in_engine - mine - others)
        return unleased + others

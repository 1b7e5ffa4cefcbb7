"""The slots of one engine: how many there are, and which leases hold them.

Pure. BATCHING/ORCH-3911, 3922.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(slots=True)
class Lease:
    """The right to have `cost` sequences in the engine of this `epoch`."""

    id: str
    cost: int
    epoch: str


class Ledger:
    """Counts in sequences. A lease is released exactly once; later releases do nothing."""

    def __init__(self) -> None:
        self.slots_total = 0
        self.foreign = 0
        self.epoch = ""
        self.leased = 0
        self.violations = 0
        self._peak = 0
        self._held: dict[str, Lease] = {}
        self._closing: dict[str, Lease] = {}

    @property
    def room(self) -> int:
        """Slots that may be given now; negative while foreign traffic takes more than is left."""
        return self.slots_total - self.leased - self.foreign

    def grant(self, lease_id: str, cost: int) -> Lease:
        """Gives a lease. The caller has looked at `room`; a grant beyond it is a violation."""
        lease = Lease(lease_id, cost, self.epoch)
        if cost > self.slots_total - self.leased - self.foreign:
            self.violations += 1
        self._held[lease_id] = lease
        self.leased += cost
        return lease

    def release(self, lease_id: str) -> int:
        """Takes a lease back. Returns its cost, 0 if it is not out (any more)."""
        lease = self._held.pop(lease_id, None) or self._closing.pop(lease_id, None)
        if lease is None:
            return 0
        self.leased -= lease.cost
        return lease.cost

    def abandon(self, lease_id: str) -> None:
        """The answer was cut short: the lease stays out until the engine says that it ended."""
        lease = self._held.pop(lease_id, None)
        if lease is not None:
            self._closing[lease_id] = lease

    def in_use(self) -> Mapping[str, Lease]:
        """Leases by id, without those that are closing. Not to be kept: it changes."""
        return self._held

    def holds(self, lease_id: str) -> bool:
        """Whether this lease is out, in this epoch."""
        return lease_id in self._held or lease_id in self._closing

    def adopt(self, lease_id: str, cost: int) -> None:
        """A lease of ours that the engine has and we do not know of: it ends like an abandoned."""
        if not self.holds(lease_id):
            self._closing[lease_id] = Lease(lease_id, cost, self.epoch)
            self.leased += cost

    def engine_held(self, peak: int, *, since_before: bool = False) -> None:
        """The most sequences the engine ever held: a violation when it rises beyond the slots.

        `since_before`: it was so before this ledger knew the engine.
        """
        if peak > max(self._peak, self.slots_total) and not since_before:
            self.violations += 1
        self._peak = peak

    def closing(self) -> list[str]:
        """Leases whose end the engine has yet to confirm."""
        return list(self._closing)

    def leases(self) -> int:
        """How many leases are out."""
        return len(self._held) + len(self._closing)

    def begin_epoch(self, epoch: str) -> None:
        """The engine is another one than before: all that was in the old one is gone."""
        self.epoch = epoch
        self._held.clear()
        self._closing.clear()
        self.leased = 0
        self.foreign = 0

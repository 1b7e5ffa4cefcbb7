"""Which generating requests are in the engine, and whose lease each of them carries.

Pure. A lease is written `<instance>.<random>.<cost>`: the sidecar that gave it, what makes it
unguessable, and the sequences that it stands for. A request without one (or with something
that is not one) is counted as one sequence of nobody's.
"""

from __future__ import annotations

import re
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Final

_LEASE = re.compile(r"([0-9a-f]{16})\.([0-9a-f]{32})\.([1-9][0-9]{0,6})")

# Spent leases, kept so that a revoked one is turned away if its request still comes. What lies
# in a socket's buffer comes within a second or so; 65536 leases last for as long at any rate
# that an engine can end requests at, in under 10 MiB.
SPENT_KEPT = 65_536

# A request is on the books when it comes in, in the scheduler's count only once it is tokenized
# and handed over: well under a second but for the largest prompts. For as long, what reports
# proved of the sequences that no lease covers stands.
PROOF_LASTS_S: Final = 1.0


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
        self._spent: OrderedDict[str, None] = OrderedDict()
        self._next = 0
        self._leased = 0  # sequences
        self._unleased = 0  # requests
        self._beyond = 0  # sequences beyond the leases, by the last report
        # What the reports of late prove: (time, sequences), a later one always of fewer.
        self._proofs: deque[tuple[float, int]] = deque()
        self._proven = 0

    @property
    def entered(self) -> int:
        """How many requests have come in since the engine started."""
        return self._next

    def enter(self, header: str | None) -> tuple[int, Presence] | None:
        """A request came in with this `X-Orch-Lease`. None: its lease is spent, turn it away."""
        match = _LEASE.fullmatch(header) if header else None
        if match is None:
            presence = Presence(None, None, 1)
        else:
            lease = match.group(0)
            if lease in self._spent or lease in self._by_lease:
                return None
            presence = Presence(match.group(1), lease, int(match.group(3)))
        self._next += 1
        self._present[self._next] = presence
        if presence.lease is not None:
            self._by_lease[presence.lease] = self._next
            self._leased += presence.cost
        else:
            self._unleased += 1
        return self._next, presence

    def leave(self, key: int) -> Presence:
        """The request that `enter` gave this key for has ended. Its lease is spent."""
        presence = self._present.pop(key)
        if presence.lease is not None:
            del self._by_lease[presence.lease]
            self._leased -= presence.cost
            self._spend(presence.lease)
        else:
            self._unleased -= 1
            if not self._unleased:
                self._proven = self._beyond = 0
                self._proofs.clear()
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
        self._spent[lease] = None
        if len(self._spent) > SPENT_KEPT:
            self._spent.popitem(last=False)

    def of(self, instance: str | None) -> list[str]:
        """The leases of one sidecar instance that are in the engine now."""
        return [
            presence.lease
            for presence in self._present.values()
            if presence.lease is not None and presence.instance == instance
        ]

    def leased(self) -> int:
        """Sequences of all requests that carry a lease, whoever gave it."""
        return self._leased

    def reported(self, in_engine: int, at_s: float) -> bool:
        """The scheduler holds `in_engine` sequences (running plus waiting). True: news of it.

        What is beyond the leases is foreign: a request without a lease may stand for several
        sequences. A report proves at least that many. It can prove too few, because a lease that
        came in a moment ago may not be in the count yet; so the most that any report proved in
        the last PROOF_LASTS_S stands, but never more than is in the engine. Where leases come in
        without a pause, the count so falls as fast as where none do.

        Without a request that has no lease (a background response outlives its own) it takes two
        reports in a row, because a lease that was just aborted is in the count for one report
        more. O(1), amortised.
        """
        before = self._proven
        beyond = max(0, in_engine - self._leased)
        proven = beyond if self._unleased else min(beyond, self._beyond)
        self._beyond = beyond
        proofs = self._proofs
        if proofs and at_s < proofs[-1][0]:
            proofs.clear()  # the clock was set back
        while proofs and proofs[-1][1] <= proven:
            proofs.pop()
        proofs.append((at_s, proven))
        while at_s - proofs[0][0] > PROOF_LASTS_S:
            proofs.popleft()
        self._proven = min(proofs[0][1], in_engine)
        return self._proven != before

    def foreign_to(self, instance: str | None) -> int:
        """Sequences in the engine that sidecar `instance` gave no lease for."""
        mine = sum(
            presence.cost
            for presence in self._present.values()
            if presence.lease is not None and presence.instance == instance
        )
        return self._leased - mine + max(self._unleased, self._proven)

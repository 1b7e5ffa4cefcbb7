"""Tracks which generating requests are in the engine, and which lease each of them carries.

A request without a valid lease counts as one sequence that no instance owns.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from vllm_plugin.lease_protocol import SpentLeases, parse_lease, require_lease

# A request is counted here on arrival, and by the scheduler only once it is tokenized and handed
# over: well under a second later, but for the largest prompts. A lower bound on the sequences that
# no lease covers, observed from reports, is valid for as long.
BOUND_LASTS_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One generating request in the engine."""

    instance: str | None
    lease: str | None
    cost: int


class Leases:
    """The generating requests that are in the engine now, and the leases that are spent."""

    def __init__(self) -> None:
        self._requests: dict[int, EngineRequest] = {}
        self._by_lease: dict[str, int] = {}
        self._spent = SpentLeases()
        self._next = 0
        self._leased = 0  # sequences
        self._unleased = 0  # requests
        self._excess = 0  # sequences beyond the leases, by the last report
        # Recent lower bounds on the unleased sequences: (time, sequences), strictly decreasing.
        self._bounds: deque[tuple[float, int]] = deque()
        self._bound = 0

    @property
    def entered(self) -> int:
        """The requests that have entered since the engine started."""
        return self._next

    def enter(self, header: str | None) -> tuple[int, EngineRequest] | None:
        """Adds a request with this `X-Orch-Lease`.

        Returns its key for `leave`, or None if the lease is spent and the request is rejected.
        """
        lease = parse_lease(header) if header else None
        if lease is None:
            request = EngineRequest(None, None, 1)
        elif lease.text in self._spent or lease.text in self._by_lease:
            return None
        else:
            request = EngineRequest(lease.instance, lease.text, lease.cost)
        self._next += 1
        self._requests[self._next] = request
        if request.lease is not None:
            self._by_lease[request.lease] = self._next
            self._leased += request.cost
        else:
            self._unleased += 1
        return self._next, request

    def leave(self, key: int) -> EngineRequest:
        """Removes a request that has ended, and spends its lease.

        Raises KeyError for a key that `enter` has not returned, or that has left.
        """
        request = self._requests.pop(key)
        if request.lease is not None:
            del self._by_lease[request.lease]
            self._leased -= request.cost
            self._spent.add(request.lease)
        else:
            self._unleased -= 1
            if not self._unleased:
                self._bound = self._excess = 0
                self._bounds.clear()
        return request

    def revoke(self, lease: str) -> bool:
        """Spends a lease unless a request in the engine carries it.

        Returns True if the lease has ended: no request carries it, and none ever will. Raises
        ValueError for a text that is not a lease.
        """
        require_lease(lease)
        if lease in self._by_lease:
            return False
        self._spent.add(lease)
        return True

    def of(self, instance: str | None) -> list[str]:
        """Returns the leases in the engine that were granted by this sidecar instance."""
        return [
            request.lease
            for request in self._requests.values()
            if request.lease is not None and request.instance == instance
        ]

    def leased(self) -> int:
        """Returns the sequences of all requests that carry a lease, of any instance."""
        return self._leased

    def reported(self, in_engine: int, at_s: float) -> bool:
        """Takes the scheduler's count (running plus waiting). Returns whether `foreign` changed.

        Sequences beyond the leases are foreign: a request without a lease may stand for several
        sequences. A report proves a lower bound only, because it may not count a lease that
        entered a moment ago. The largest bound of the last BOUND_LASTS_S applies, capped at the
        sequences in the engine. So where leases enter without a pause, the count falls as fast as
        where none do.

        Without any unleased request (a background response outlives its own) a bound takes two
        consecutive reports, because a lease that was just aborted is still in the next one.
        Amortised O(1).
        """
        before = self._bound
        excess = max(0, in_engine - self._leased)
        bound = excess if self._unleased else min(excess, self._excess)
        self._excess = excess
        bounds = self._bounds
        if bounds and at_s < bounds[-1][0]:
            bounds.clear()  # the clock was set back
        while bounds and bounds[-1][1] <= bound:
            bounds.pop()
        bounds.append((at_s, bound))
        while at_s - bounds[0][0] > BOUND_LASTS_S:
            bounds.popleft()
        self._bound = min(bounds[0][1], in_engine)
        return self._bound != before

    def foreign_to(self, instance: str | None) -> int:
        """Returns the sequences in the engine that no lease of this instance covers."""
        own = sum(
            request.cost
            for request in self._requests.values()
            if request.lease is not None and request.instance == instance
        )
        return self._leased - own + max(self._unleased, self._bound)

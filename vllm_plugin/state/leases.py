"""Tracks which generating requests are in the engine, and which lease and trace each of them has.

A request without a valid lease counts as one sequence that no instance owns. vLLM makes a span for
each sequence that has finished, a child of the span that `traceparent` names: only that connects it
to the HTTP request in which the sequence came.
"""

from __future__ import annotations

import re
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass
from enum import Enum
from typing import Final

from vllm_plugin.contracts.lease_protocol import LeaseId, SpentLeases, require_lease

# A request is counted here on arrival, and by the scheduler only once it is tokenized and handed
# over: well under a second later, but for the largest prompts. A lower bound on the sequences that
# no lease covers, observed from reports, is valid for as long. It may be of a sequence that was
# aborted, and then keeps the only slot of an engine for so long.
BOUND_LASTS_S: Final = 0.9

# A span ends before its response does, and so before the request leaves. Only a response in the
# background (`/v1/responses`) outlives its request, by at most as many requests as this.
MAX_LEFT_REQUESTS: Final = 4096

# W3C Trace Context, as OpenTelemetry's propagator reads it: lower case, further fields allowed.
_TRACEPARENT: Final = re.compile(r"[ \t]*[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")

Parent = tuple[int, int]  # trace id, span id


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One generating request in the engine."""

    instance: str | None
    lease: str | None
    cost: int
    interactive: bool = True


class Rejected(Enum):
    """Why a generating request does not enter the engine."""

    SPENT = "spent"  # its lease was used or revoked
    NO_SLOT = "no slot"  # for now: other requests have the slots, or are before it
    NO_ADAPTER = "no adapter"  # for now: the engine runs as many LoRA adapters as it can
    BUSY = "busy"  # the same, for a sidecar that reads no offers
    TOO_LARGE = "too large"  # its lease is for more sequences than the engine has slots
    UNLEASED = "unleased"  # it has no lease of a sidecar, and the engine takes none without
    UNKNOWN = "unknown"  # its sender lacks the engine's key


class Leases:
    """The generating requests that are in the engine now, and the leases that are spent."""

    def __init__(self) -> None:
        self._requests: dict[int, EngineRequest] = {}
        self._by_lease: dict[str, int] = {}
        self._spent = SpentLeases()
        self._next = 0
        self._leased = Counter[str]()  # sequences by instance
        self._interactive = Counter[str]()  # those of them that are not of bulk requests
        self._in_engine = 0  # sequences, by the last report
        self._unleased = 0  # requests
        self._excess = 0  # sequences beyond the leases, by the last report
        # Recent lower bounds on the unleased sequences: (time, sequences), strictly decreasing.
        self._bounds: deque[tuple[float, int]] = deque()
        self._bound = 0

    @property
    def entered(self) -> int:
        """The requests that have entered since the engine started."""
        return self._next

    def is_used(self, lease: LeaseId) -> bool:
        """Whether a lease is spent, or a request in the engine carries it."""
        return lease.text in self._spent or lease.text in self._by_lease

    def enter(self, lease: LeaseId | None, *, interactive: bool = True) -> int:
        """Adds a request with this lease, which is not used; None: without a valid one.

        Returns its key for `leave`.
        """
        if lease is None:
            request = EngineRequest(None, None, 1)
            self._unleased += 1
        else:
            request = EngineRequest(lease.instance, lease.text, lease.cost, interactive)
        self._next += 1
        self._requests[self._next] = request
        if lease is not None:
            self._by_lease[lease.text] = self._next
            self._leased[lease.instance] += lease.cost
            if interactive:
                self._interactive[lease.instance] += lease.cost
        return self._next

    def leave(self, key: int) -> EngineRequest:
        """Removes a request that has ended, and spends its lease.

        Raises KeyError for a key that `enter` has not returned, or that has left.
        """
        request = self._requests.pop(key)
        if request.lease is not None and request.instance is not None:
            del self._by_lease[request.lease]
            self._leased[request.instance] -= request.cost
            if not self._leased[request.instance]:
                del self._leased[request.instance]
            if request.interactive:
                self._interactive[request.instance] -= request.cost
                if not self._interactive[request.instance]:
                    del self._interactive[request.instance]
            self._spent.add(request.lease)
        else:
            self._unleased -= 1
            if not self._unleased:
                self._bound = self._excess = 0
                self._bounds.clear()
        return request

    def request(self, key: int) -> EngineRequest | None:
        """Returns a request; None: it has left."""
        return self._requests.get(key)

    def cost(self, key: int) -> int:
        """Returns the sequences of a request that has not left."""
        return self._requests[key].cost

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
        return self._leased.total()

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
        self._in_engine = in_engine
        excess = max(0, in_engine - self.leased())
        bound = excess if self._unleased else min(excess, self._excess)
        self._excess = excess
        bounds = self._bounds
        if bounds and at_s < bounds[-1][0]:
            bounds.clear()  # the clock was set back
        while bounds and bounds[-1][1] <= bound:
            bounds.pop()
        bounds.append((at_s, bound))
        self.expire(at_s)
        return self._bound != before

    def expire(self, now_s: float) -> bool:
        """Forgets bounds that are too old, which an engine without reports (it is idle) does not
        renew. Returns whether `foreign` changed."""
        before, bounds = self._bound, self._bounds
        while bounds and now_s - bounds[0][0] > BOUND_LASTS_S:
            bounds.popleft()
        self._bound = min(bounds[0][1], self._in_engine) if bounds else 0
        return self._bound != before

    def expires_at(self) -> float | None:
        """Returns when the count of unleased sequences falls without a report; None: it does
        not."""
        if self._bound <= self._unleased:
            return None
        return self._bounds[0][0] + BOUND_LASTS_S

    def unleased(self) -> int:
        """Returns the sequences in the engine that no lease covers."""
        return max(self._unleased, self._bound)

    def in_use(self) -> int:
        """Returns all sequences in the engine."""
        return self.leased() + self.unleased()

    def foreign_to(self, instance: str | None) -> int:
        """Returns the sequences in the engine that no lease of this instance covers."""
        own = 0 if instance is None else self._leased[instance]
        return self.in_use() - own

    def foreign_interactive_to(self, instance: str | None) -> int:
        """Returns the sequences of other instances' interactive requests."""
        own = 0 if instance is None else self._interactive[instance]
        return self._interactive.total() - own


def parse_traceparent(header: str) -> Parent | None:
    """Returns the parent span that a `traceparent` names; None without a valid one."""
    match = _TRACEPARENT.match(header)
    return None if match is None else (int(match.group(1), 16), int(match.group(2), 16))


class RequestNumbers:
    """The numbers of the requests in the engine, and of the last ones that left. O(1) each.

    Where several requests in the engine carry the same parent, none of their spans can be told
    from another: their number is unknown. One after another, the last one's number applies.
    """

    def __init__(self, left_kept: int = MAX_LEFT_REQUESTS) -> None:
        self._left_kept = left_kept
        self._parents: dict[int, Parent] = {}  # of the requests in the engine, by their number
        self._numbers: dict[Parent, int | None] = {}
        self._present: dict[Parent, int] = {}  # requests in the engine
        self._left: OrderedDict[Parent, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._numbers)

    def enter(self, number: int, traceparent: str | None) -> None:
        """Adds a request with this header."""
        parent = parse_traceparent(traceparent) if traceparent else None
        if parent is None:
            return
        present = self._present.get(parent, 0)
        self._parents[number] = parent
        self._present[parent] = present + 1
        self._numbers[parent] = None if present else number
        self._left.pop(parent, None)

    def leave(self, number: int) -> None:
        """Removes a request that has left the engine. Its number stays known for a
        while."""
        parent = self._parents.pop(number, None)
        if parent is None:
            return
        present = self._present.pop(parent) - 1
        if present:
            self._present[parent] = present
            return
        self._left[parent] = None
        if len(self._left) > self._left_kept:
            oldest, _ = self._left.popitem(last=False)
            del self._numbers[oldest]

    def of(self, parent: Parent) -> int | None:
        """Returns the number of the request with this parent; None if it is unknown."""
        return self._numbers.get(parent)

"""Keeps the leases of parent sidecars whose requests are here.

To a parent sidecar, a pool of this one looks like an engine. The parent counts the requests that
it sent by its own leases, which are booked here and never trusted: this sidecar's admission decides
about each request. A parent's lease is over when the handling of its request has ended and the
slots that the request had here are released, so that an end that is reported upward is final.
Parents name their instances themselves: before each is put its owner (see `keys.owner_of`).

Pure. Subscribers are woken on changes and then ask for them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from orch_sidecar.admission.ledger import Ledger
from orch_sidecar.admission.types import Lease
from vllm_plugin.contracts.lease_protocol import SpentLeases, parse_lease, require_lease
from vllm_plugin.contracts.slot_claims import Subscribers


@dataclass(slots=True)
class ParentLease:
    """A request of a parent sidecar, from its arrival until its lease is over.

    `lease` is None, and nothing is booked, if the header contained no valid lease.
    """

    instance: str = ""
    lease: str | None = None
    cost: int = 0
    handled: bool = False
    granted: list[tuple[Ledger, Lease]] = field(default_factory=list)

    def sequences(self, ledger: Ledger) -> int:
        """Returns this request's share of the sequences that are leased in `ledger`.

        The lower of both costs where they differ: what the parent counts for the request and what
        is reported as foreign then never add up to less than what is leased.
        """
        cost = sum(
            own.cost for where, own in self.granted if where is ledger and where.owns(own.id)
        )
        return min(cost, self.cost)

    @property
    def is_over(self) -> bool:
        return self.handled and not any(where.owns(own.id) for where, own in self.granted)


class ParentLeases:
    """The leases of parent sidecars whose requests are here, for all pools."""

    def __init__(self, run: str) -> None:
        """`run`: a new value at each start of this sidecar. It must not be the instance of a gate:
        with that, a client could forge leases that the gate would count as its own."""
        self.run = run
        self._present: dict[str, ParentLease] = {}
        self._handled: list[ParentLease] = []  # their slots may not be released yet
        self._spent = SpentLeases()
        self.subscribers = Subscribers()
        self.readers = 0  # of the streams, of which some may share a subscriber

    def enter(self, header: str, owner: str = "") -> ParentLease | None:
        """Books a request of this owner's that arrived with this `X-Orch-Lease`. None: its lease is
        spent or present already, and the request must be rejected."""
        lease = parse_lease(header)
        if lease is None:
            return ParentLease()
        self._settle()
        if header in self._present or header in self._spent:
            return None
        entered = ParentLease(owner + lease.instance, header, lease.cost)
        self._present[header] = entered
        return entered

    def granted(self, request: ParentLease, ledger: Ledger, lease: Lease) -> None:
        """Books that the request was granted `lease` of `ledger`."""
        if request.lease is not None:
            request.granted.append((ledger, lease))
            self.changed()

    def leave(self, request: ParentLease) -> None:
        """Books that the handling of the request has ended; to be called once. Its lease is over
        when its slots are released."""
        if request.lease is not None:
            request.handled = True
            self._handled.append(request)
            self.changed()

    def revoke(self, lease: str) -> bool:
        """Spends a lease. True: no request carries it and none will; False: one is still here.

        Raises ValueError if `lease` is not a lease.
        """
        require_lease(lease)
        self._settle()
        if lease in self._present:
            return False
        self._spent.add(lease)
        return True

    def of(self, instance: str | None) -> list[str]:
        """Returns the leases of a sidecar instance that are not over."""
        self._settle()
        return [lease for lease, each in self._present.items() if each.instance == instance]

    def instances(self) -> set[str]:
        """Returns the sidecar instances that have leases here which are not over."""
        return {each.instance for each in self._present.values()}

    def sequences(self, instance: str | None, ledger: Ledger) -> int:
        """Returns the sequences that the requests of a sidecar instance own of `ledger`."""
        return sum(
            each.sequences(ledger) for each in self._present.values() if each.instance == instance
        )

    def changed(self, *, at_once: bool = False) -> None:
        """Notifies the subscribers that a pool, its engine or a lease here has changed. `at_once`:
        whether a pool takes requests has, too."""
        self._settle()
        if at_once:
            self.subscribers.wake_all()
        else:
            self.subscribers.change()

    def offered(self, instances: Collection[str]) -> None:
        """Wakes the subscribers of parents for which there are offers of slots."""
        for subscriber in self.subscribers:
            if subscriber.instance in instances:
                subscriber.wake()

    def _settle(self) -> None:
        """Spends the leases that are over."""
        if not self._handled:
            return
        over = [request for request in self._handled if request.is_over]
        if not over:
            return
        self._handled = [request for request in self._handled if not request.is_over]
        for request in over:
            assert request.lease is not None
            del self._present[request.lease]
            self._spent.add(request.lease)
            for subscriber in self.subscribers:
                if subscriber.instance == request.instance:
                    subscriber.ended.append(request.lease)
                    subscriber.wake()

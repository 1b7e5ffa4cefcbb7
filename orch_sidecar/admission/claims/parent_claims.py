"""Divides what an engine offers this sidecar between its own queue and its parent sidecars.

Pure: times are seconds of a monotonic clock. To a parent, this sidecar looks like an engine. Where
the engine is shared with other sidecars, it claims for its parents, too: its claim is the sum of
theirs and of its own, and what it is offered is divided by the rules of the engine itself
(`SlotClaims`), as if its own queue were that of another sidecar. Slots for a parent stay booked,
here and at the engine, until its request comes.
"""

from __future__ import annotations

from collections import defaultdict

from vllm_plugin.contracts.claiming_sidecar import Offer
from vllm_plugin.contracts.lease_protocol import MOST_CLAIMED, Claim, ClaimCall
from vllm_plugin.contracts.slot_claims import SlotClaims


class ParentClaims:
    """The claims of one pool's parent sidecars."""

    def __init__(self, own: str) -> None:
        """`own`: the instance of this sidecar."""
        self.books = SlotClaims()
        self.books.opened(own)
        self._own = own
        self._offers = defaultdict[str, list[Offer]](list)  # that are still to be sent

    @property
    def waiting(self) -> bool:
        """Whether a parent claims slots, or is offered some."""
        return self.books.waiting

    @property
    def wait(self) -> bool:
        """Whether requests wait at parents, for slots or something else."""
        return self.books.contended(self._own)

    def closed(self, instance: str) -> None:
        """A stream of a parent ended."""
        self.books.closed(instance)
        if not self.books.reads(instance):
            self._offers.pop(instance, None)

    def claimed(self, instance: str, call: ClaimCall, now: float) -> int:
        """Takes a parent's call. Returns the slots that it gives back."""
        self.books.expire(now)
        before = self.books.offered
        self.books.call(instance, call, now)
        return before - self.books.offered

    def total(self, own: Claim | None, slots_total: int) -> Claim | None:
        """What this sidecar claims for all: for the most urgent, the one that is first at first."""
        if not self.books.waiting:
            return own
        self._set(own)
        first = self.books.first()
        assert first is not None or own is None
        if first is None:
            return None
        slots = min(MOST_CLAIMED * slots_total, self.books.claimed(urgent=first.urgent))
        self._set(None)
        return Claim(first.cost, first.urgent, max(0, slots - first.cost))

    def divide(self, slots: int, own: Claim | None, now: float) -> int:
        """Divides an offer of the engine. Returns the slots for this sidecar's own queue, and those
        that nobody claims."""
        books = self.books
        books.expire(now)
        if not books.waiting:
            return slots
        self._set(own)
        for offer in books.offer(books.offered + slots, now):
            if offer.instance == self._own:
                # Taken at once; what is not is given back to the engine.
                books.enters(self._own, Claim(offer.slots, urgent=True), books.offered, now)
            else:
                slots -= offer.slots
                self._offers[offer.instance].append(offer)
        self._set(None)
        return slots

    def takes(self, instance: str, cost: int, now: float) -> bool:
        """Whether slots are booked for a request of a parent. Uses them up."""
        books = self.books
        books.expire(now)
        if not books.reads(instance) or books.booked(instance) < cost:
            return False
        return books.enters(instance, Claim(cost, urgent=True), books.offered, now)

    def offers(self, instance: str | None) -> list[Offer]:
        """Returns the offers that a parent has not been sent, once."""
        return [] if instance is None else self._offers.pop(instance, [])

    def offered(self) -> list[str]:
        """The parents that have not been sent all of their offers."""
        return list(self._offers)

    def _set(self, own: Claim | None) -> None:
        # Unset before any claim can expire: when does not matter.
        self.books.call(self._own, ClaimCall(own), 0.0)

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
from vllm_plugin.contracts.lease_protocol import MAX_CLAIMED_SHARE, Claim, ClaimCall
from vllm_plugin.contracts.slot_claims import SlotClaims


class ParentClaims:
    """The claims of one pool's parent sidecars."""

    def __init__(self, instance: str) -> None:
        """`instance`: of this sidecar."""
        self.claim_table = SlotClaims()
        self.claim_table.opened(instance)
        self._instance = instance
        self._offers = defaultdict[str, list[Offer]](list)  # that are still to be sent

    @property
    def has_claims(self) -> bool:
        """Whether a parent claims slots, or is offered some."""
        return self.claim_table.has_claims

    @property
    def has_demand(self) -> bool:
        """Whether requests wait at parents, for slots or something else."""
        return self.claim_table.contended(self._instance)

    def closed(self, instance: str) -> None:
        """A stream of a parent ended."""
        self.claim_table.closed(instance)
        if not self.claim_table.reads(instance):
            self._offers.pop(instance, None)

    def claimed(self, instance: str, call: ClaimCall, now: float) -> int:
        """Takes a parent's call. Returns the slots that it gives back."""
        self.claim_table.expire(now)
        before = self.claim_table.offered
        self.claim_table.call(instance, call, now)
        return before - self.claim_table.offered

    def total(self, own: Claim | None, slots_total: int) -> Claim | None:
        """What this sidecar claims for all: for the most urgent, the one that is first at first."""
        if not self.claim_table.has_claims:
            return own
        self._set(own)
        first = self.claim_table.first()
        assert first is not None or own is None
        if first is None:
            return None
        slots = min(MAX_CLAIMED_SHARE * slots_total, self.claim_table.claimed(urgent=first.urgent))
        self._set(None)
        return Claim(first.cost, first.urgent, max(0, slots - first.cost))

    def divide(self, slots: int, own: Claim | None, now: float) -> int:
        """Divides an offer of the engine. Returns the slots for this sidecar's own queue, and those
        that nobody claims."""
        claim_table = self.claim_table
        claim_table.expire(now)
        if not claim_table.has_claims:
            return slots
        self._set(own)
        for offer in claim_table.offer(claim_table.offered + slots, now):
            if offer.instance == self._instance:
                # Taken at once; what is not is given back to the engine.
                claim_table.try_enter(
                    self._instance, Claim(offer.slots, urgent=True), claim_table.offered, now
                )
            else:
                slots -= offer.slots
                self._offers[offer.instance].append(offer)
        self._set(None)
        return slots

    def consume_booking(self, instance: str, cost: int, now: float) -> bool:
        """Uses slots up that are booked for a request of a parent; False: there are none."""
        claim_table = self.claim_table
        claim_table.expire(now)
        if not claim_table.reads(instance) or claim_table.booked(instance) < cost:
            return False
        return claim_table.try_enter(instance, Claim(cost, urgent=True), claim_table.offered, now)

    def offers(self, instance: str | None) -> list[Offer]:
        """Returns the offers that a parent has not been sent, once."""
        return [] if instance is None else self._offers.pop(instance, [])

    def offered(self) -> list[str]:
        """The parents that have not been sent all of their offers."""
        return list(self._offers)

    def _set(self, own: Claim | None) -> None:
        # Unset before any claim can expire: when does not matter.
        self.claim_table.call(self._instance, ClaimCall(own), 0.0)

"""Divides what an engine offers this sidecar between its own queue and its parent sidecars.

Pure: times are seconds of a monotonic clock. To a parent, this sidecar looks like an engine. Where
it shares the engine with other sidecars, it claims the sum of its own needs and those of its
parents, and divides what it is offered by the engine's own rules (`SlotClaims`), as if its queue
were another parent's. A parent's slots stay booked, here and at the engine, until its request
comes.
"""

from __future__ import annotations

from collections import defaultdict

from vllm_plugin.contracts.lease_protocol import MAX_CLAIMED_SHARE, Claim, ClaimCall
from vllm_plugin.contracts.slot_claims import Offer, SlotClaims


class ParentClaims:
    """The claims of one pool's parent sidecars."""

    def __init__(self, instance: str) -> None:
        """`instance`: of this sidecar."""
        self.claim_table = SlotClaims()
        self.claim_table.opened(instance)
        self._instance = instance
        self._offers = defaultdict[str, list[Offer]](list)  # not yet sent to their parents

    @property
    def has_demand(self) -> bool:
        """Whether requests wait at parents, for slots or anything else."""
        return self.claim_table.contended(self._instance)

    def closed(self, instance: str) -> None:
        """A stream of a parent ended."""
        self.claim_table.closed(instance)
        if not self.claim_table.reads(instance):
            self._offers.pop(instance, None)

    def claimed(self, instance: str, call: ClaimCall, now: float) -> int:
        """Records a parent's call. Returns the slots that it gives back."""
        self.claim_table.expire(now)
        before = self.claim_table.offered
        self.claim_table.call(instance, call, now)
        return before - self.claim_table.offered

    def total(self, own: Claim | None, slots_total: int) -> Claim | None:
        """Returns the claim of this sidecar for all: for those as urgent as the first."""
        if not self.claim_table.has_claims:
            return own
        self._record_own(own)
        first = self.claim_table.first()
        assert first is not None or own is None
        if first is None:
            return None
        slots = min(MAX_CLAIMED_SHARE * slots_total, self.claim_table.claimed(urgent=first.urgent))
        self._record_own(None)
        return Claim(first.cost, first.urgent, max(0, slots - first.cost))

    def divide(self, slots: int, own: Claim | None, now: float) -> int:
        """Divides an offer of the engine. Returns what is left for this sidecar's own queue."""
        claim_table = self.claim_table
        claim_table.expire(now)
        if not claim_table.has_claims:
            return slots
        self._record_own(own)
        for offer in claim_table.offer(claim_table.offered + slots, now):
            if offer.instance == self._instance:
                # Its own queue takes the slots now, and gives the rest back to the engine.
                claim_table.try_enter(
                    self._instance, Claim(offer.slots, urgent=True), claim_table.offered, now
                )
            else:
                slots -= offer.slots
                self._offers[offer.instance].append(offer)
        self._record_own(None)
        return slots

    def consume_booking(self, instance: str, cost: int, now: float) -> bool:
        """Uses up slots that are booked for a parent; False: there are not enough."""
        claim_table = self.claim_table
        claim_table.expire(now)
        if not claim_table.reads(instance) or claim_table.booked(instance) < cost:
            return False
        return claim_table.try_enter(instance, Claim(cost, urgent=True), claim_table.offered, now)

    def offers(self, instance: str | None) -> list[Offer]:
        """Returns each offer to a parent once."""
        return [] if instance is None else self._offers.pop(instance, [])

    def parents_with_offers(self) -> list[str]:
        """Returns the parents that have not got all of their offers."""
        return list(self._offers)

    def _record_own(self, own: Claim | None) -> None:
        # The claim is removed before it could expire, so that its time does not matter.
        self.claim_table.call(self._instance, ClaimCall(own), 0.0)

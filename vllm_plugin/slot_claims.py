"""Decides which sidecar gets the slots of this engine that come free.

Pure: times are seconds of the caller's clock. A sidecar that has a request queued for want of slots
claims them; it has one claim, for the request that is next by its own policy. A request enters the
engine if its slots are free and no claim that goes before it would be delayed. Slots that come free
are offered to the first claim, and gather until they suffice for it: urgent ones first (the request
is interactive, or bulk work that is owed slots), then by start-time fair queueing: each grant moves
its sidecar's next start back by its cost, so that sidecars whose requests end at the same time, or
need different numbers of slots, get equal shares of them; of equal starts the oldest is first.
Claims that are not urgent wait until urgent ones are done with their offers: a sidecar that takes
its offer may have more to send.

Offered slots are booked for OFFER_S. An offer that was not taken passes on, and its claim is
withdrawn. A sidecar's call that changes its claim may overtake the request that takes its offer: so
it names the last offer that was taken, which then stays booked.

Goyal, Vin, Cheng: Start-time fair queueing, SIGCOMM 1996.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from vllm_plugin.lease_protocol import OFFER_S, Claim


@dataclass(slots=True)
class _Claimed:
    claim: Claim
    start: int  # in sequences granted: the lowest is next
    age: int  # the older, the lower


@dataclass(frozen=True, slots=True)
class Offer:
    """`cost` slots are booked for a sidecar instance until then. `number`: from 1."""

    instance: str
    cost: int
    until_s: float
    number: int


class SlotClaims:
    """The claims and offers of all sidecars that read this engine's state."""

    def __init__(self) -> None:
        self.offered = 0  # sequences
        self._readers = Counter[str]()  # state streams by instance
        self._claims: dict[str, _Claimed] = {}
        self._offers: dict[str, Offer] = {}
        self._ages = 0
        self._made = 0  # offers
        self._start = 0  # of the last grant
        self._next_starts: dict[str, int] = {}  # of those that read the state

    # Sidecars

    def opened(self, instance: str) -> None:
        """A sidecar reads the state; only such ones can claim, because offers are sent there."""
        self._readers[instance] += 1

    def closed(self, instance: str) -> None:
        """One of its streams ended; with the last one its claim and its offer end."""
        self._readers[instance] -= 1
        if not self._readers[instance]:
            del self._readers[instance]
            self._next_starts.pop(instance, None)
            self.withdraw(instance)

    def reads(self, instance: str) -> bool:
        """Whether a sidecar reads the state."""
        return instance in self._readers

    @property
    def sidecars(self) -> int:
        return len(self._readers)

    # Claims

    @property
    def waiting(self) -> bool:
        """Whether a sidecar claims slots, or is offered some."""
        return bool(self._claims or self._offers)

    def of(self, instance: str | None) -> Claim | None:
        """The claim of a sidecar."""
        claimed = None if instance is None else self._claims.get(instance)
        return None if claimed is None else claimed.claim

    def contended(self, instance: str | None) -> bool:
        """Whether other sidecars than this one claim slots."""
        return len(self._claims) > (instance in self._claims)

    def offered_to_others(self, instance: str | None) -> int:
        """Sequences that are booked for other sidecars."""
        own = None if instance is None else self._offers.get(instance)
        return self.offered - (0 if own is None else own.cost)

    def claim(self, instance: str, claim: Claim, taken: int = 0) -> None:
        """Sets the claim of a sidecar that reads the state. It keeps its place unless its urgency
        changes, and its offer if that suffices or is `taken`, by its number."""
        claimed = self._claims.get(instance)
        if claimed is None or claim.urgent != claimed.claim.urgent:
            self._claims[instance] = _Claimed(claim, self._next_start(instance), self._next_age())
        else:
            claimed.claim = claim
        offer = self._offers.get(instance)
        if offer is not None and offer.cost < claim.cost and offer.number != taken:
            self._end_offer(instance)

    def withdraw(self, instance: str, taken: int = 0) -> None:
        """The sidecar claims nothing any longer. It keeps an offer that is `taken`."""
        self._claims.pop(instance, None)
        offer = self._offers.get(instance)
        if offer is not None and offer.number != taken:
            self._end_offer(instance)

    def enters(self, instance: str, claim: Claim, free: int) -> bool:
        """Whether a request that arrives from a sidecar may enter. Uses up its offer.

        `free`: slots that no request has, offered ones included. If not, and the sidecar reads the
        state, its claim is the one for this request, or an older one.
        """
        offer = self._offers.get(instance)
        booked = 0 if offer is None else offer.cost
        if offer is not None:
            self._end_offer(instance)
        if claim.cost <= free:
            if claim.cost <= booked:
                self._granted(instance, claim.cost)
                if instance in self._claims:
                    self._claims[instance].age = self._next_age()
                return True
            if claim.cost <= free - self.offered and not self._delays_others(instance, claim):
                self._granted(instance, claim.cost)
                return True
        if instance in self._readers and (
            instance not in self._claims or claim.urgent > self._claims[instance].claim.urgent
        ):
            self.claim(instance, claim)
        return False

    # Offers

    def offer(self, free: int, now_s: float) -> list[Offer]:
        """Offers slots to those claims that are next, and returns the new offers."""
        made = []
        while (first := self._first()) is not None:
            cost, urgent = self._claims[first].claim
            if cost > free - self.offered or (self._urgent_offered() and not urgent):
                break
            self._made += 1
            made.append(Offer(first, cost, now_s + OFFER_S, self._made))
            self._offers[first] = made[-1]
            self.offered += cost
        return made

    def expire(self, now_s: float) -> bool:
        """Ends the offers that were not taken in time, and their claims; a sidecar that needs more
        by now keeps its claim. Returns whether any."""
        late = [
            offer
            for offer in self._offers.values()
            # A clock that is set back does not book slots for longer.
            if not now_s < offer.until_s <= now_s + OFFER_S
        ]
        for offer in late:
            self._end_offer(offer.instance)
            claim = self.of(offer.instance)
            if claim is not None and claim.cost <= offer.cost:
                self.withdraw(offer.instance)
        return bool(late)

    @property
    def expires_at(self) -> float | None:
        """When the first offer expires."""
        return min((offer.until_s for offer in self._offers.values()), default=None)

    # Parts

    def _first(self) -> str | None:
        """The instance of the claim that is next of those without an offer."""
        waiting = self._claims.keys() - self._offers.keys()
        return min(waiting, key=self._rank, default=None)

    def _urgent_offered(self) -> bool:
        """Whether urgent claims have offers."""
        return any(
            instance in self._claims and self._claims[instance].claim.urgent
            for instance in self._offers
        )

    def _rank(self, instance: str) -> tuple[bool, int, int]:
        claimed = self._claims[instance]
        return not claimed.claim.urgent, claimed.start, claimed.age

    def _delays_others(self, instance: str, claim: Claim) -> bool:
        """Whether a request would overtake another sidecar's claim that goes before it."""
        if not self._claims:
            return False
        own = self._claims.get(instance)
        if own is not None and own.claim.urgent == claim.urgent:
            rank = self._rank(instance)
        else:
            rank = not claim.urgent, self._next_start(instance), self._ages + 1
        return any(
            each != instance and each not in self._offers and self._rank(each) < rank
            for each in self._claims
        )

    def _granted(self, instance: str, cost: int) -> None:
        """A request of a sidecar enters."""
        claimed = self._claims.get(instance)
        start = self._next_start(instance) if claimed is None else claimed.start
        self._start = max(self._start, start)
        if instance in self._readers:
            self._next_starts[instance] = start + cost
        if claimed is not None:
            claimed.start = start + cost

    def _next_start(self, instance: str) -> int:
        return max(self._start, self._next_starts.get(instance, 0))

    def _end_offer(self, instance: str) -> None:
        offer = self._offers.pop(instance, None)
        if offer is not None:
            self.offered -= offer.cost

    def _next_age(self) -> int:
        self._ages += 1
        return self._ages

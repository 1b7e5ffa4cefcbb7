"""Decides which sidecar gets the slots of this engine that come free.

Pure: times are seconds of the caller's clock. A sidecar whose requests wait for slots claims them:
those of the request that is next by its own policy, and how many more the ones behind it could
take. A request enters the engine if its slots are free and it delays no claim that goes before it.
Slots that come free are offered request by request to the first claim, and gather until they
suffice for it. Urgent claims go first (for interactive requests, and for bulk work that is owed
slots), then start-time fair queueing decides: each grant moves its sidecar's next start back by its
slots. So sidecars get equal shares, also if their requests end at the same time or need different
numbers of slots; of equal starts the oldest is first.

All that a sidecar is offered at one time is one numbered offer, which goes to its `Subscriber`, the
reader of this engine's state. Its slots are booked for a while; any requests of the sidecar use
them up. The sidecar uses an offer, or gives slots of it back, as soon as it hears of it. Slots that
are given back are not charged, unless the same call claims as many. If slots were neither used nor
given back in time, others get them, the sidecar's claim is withdrawn, and they are charged twice:
otherwise a sidecar that uses nothing would be first for ever. A call that sets a claim names the
last offer of which the sidecar has heard: later ones, which are on their way, count against the
claim. A claim that is not repeated for CLAIM_S ends: the network may lose a sidecar without ending
its stream.

Goyal, Vin, Cheng: Start-time fair queueing, SIGCOMM 1996.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from vllm_plugin.contracts.lease_protocol import CLAIM_S, MAX_OFFER_S, OFFER_S, Claim, ClaimCall


class SlotClaims:
    """The claims and offers of all sidecars that read this engine's state."""

    def __init__(self) -> None:
        self.offered = 0  # sequences
        self._sidecars: dict[str, ClaimingSidecar] = {}
        self._claiming = 0  # sidecars
        self._ages = 0
        self._offers_made = 0  # offers
        self._last_start = 0  # of the last grant

    # Sidecars

    def opened(self, instance: str) -> None:
        """A sidecar opened a stream of the state. Only its readers can claim: they get offers."""
        self._sidecars.setdefault(instance, ClaimingSidecar()).streams += 1

    def closed(self, instance: str) -> None:
        """A stream of a sidecar ended; with the last one, its claim and its offers end."""
        sidecar = self._sidecars[instance]
        sidecar.streams -= 1
        if not sidecar.streams:
            self._set_claim(sidecar, None)
            self.offered -= sidecar.booked
            del self._sidecars[instance]

    def reads(self, instance: str) -> bool:
        """Whether a sidecar reads the state."""
        return instance in self._sidecars

    @property
    def sidecars(self) -> int:
        return len(self._sidecars)

    # Claims

    @property
    def has_claims(self) -> bool:
        """Whether a sidecar claims slots, or is offered some."""
        return bool(self._claiming or self.offered)

    def claim_of(self, instance: str | None) -> Claim | None:
        """Returns what a sidecar claims beyond what it was offered."""
        return None if (sidecar := self._known(instance)) is None else sidecar.claim

    def number_of(self, instance: str | None) -> int:
        """Returns the number of a sidecar's last call; 0: of none."""
        return 0 if (sidecar := self._known(instance)) is None else sidecar.number

    def first(self) -> Claim | None:
        """Returns the claim to which slots are offered next."""
        return min(self._claims(), key=_rank)[2] if self._claiming else None

    def claimed(self, *, urgent: bool) -> int:
        """Returns the slots of all claims with this urgency."""
        return sum(claim.slots for _, _, claim in self._claims() if claim.urgent is urgent)

    def booked(self, instance: str) -> int:
        """Returns the sequences that are booked for a sidecar that reads the state."""
        return self._sidecars[instance].booked

    def has_unclaimed_demand(self, instance: str | None) -> bool:
        """Whether requests of a sidecar wait for anything but the slots that it claims."""
        return (sidecar := self._known(instance)) is not None and sidecar.has_unclaimed_demand

    @property
    def any_unclaimed_demand(self) -> bool:
        """Whether requests of any sidecar wait for anything but the slots that it claims."""
        return any(each.has_unclaimed_demand for each in self._sidecars.values())

    def contended(self, instance: str | None) -> bool:
        """Whether requests of other sidecars wait, for slots or anything else."""
        return any(
            each.has_unclaimed_demand or each.claim is not None
            for other, each in self._sidecars.items()
            if other != instance
        )

    def offered_to_others(self, instance: str | None) -> int:
        """Returns the sequences that are booked for other sidecars."""
        sidecar = self._known(instance)
        return self.offered - (0 if sidecar is None else sidecar.booked)

    def call(self, instance: str, call: ClaimCall, now_s: float) -> None:
        """Sets the claim of a sidecar that reads the state, and frees what it gives back. A call
        that a later one has overtaken changes neither."""
        sidecar = self._sidecars[instance]
        sidecar.called_s = now_s
        sidecar.heard(call.taken, now_s)
        if 0 < call.number <= sidecar.number:
            return
        sidecar.number, sidecar.has_unclaimed_demand = call.number, call.waits
        claim = call.claim
        refund = int(claim is None or claim.cost > call.unused)
        self._give_back(sidecar, call.unused, call.taken, refund)
        coming = sum(offer.left for offer in sidecar.offers if offer.number > call.taken)
        if claim is not None and coming >= claim.cost:
            claim = claim.reduced_by(coming)
        self._set_claim(sidecar, claim)

    def try_enter(self, instance: str, claim: Claim, free: int, now_s: float) -> bool:
        """Lets a request of a sidecar in, and uses up slots that the sidecar was offered. False: it
        may not enter; if the sidecar reads the state, it has a claim for this request now, or an
        older claim. `free`: slots that no request has, offered ones included.
        """
        sidecar, cost = self._sidecars.get(instance), claim.cost
        booked = 0 if sidecar is None else min(sidecar.booked, cost)
        unbooked = free - self.offered
        if cost <= free and (
            booked == cost
            or (cost - booked <= unbooked and not self._delays_others(instance, claim))
        ):
            if sidecar is None:
                return True
            if booked:
                sidecar.heard(sidecar.offers[0].number, now_s)
            self._use(sidecar, booked)
            if booked < cost:
                self._grant(sidecar, cost - booked)
            return True
        if sidecar is not None:
            sidecar.called_s = now_s
            if sidecar.claim is None or claim.urgent > sidecar.claim.urgent:
                self._set_claim(sidecar, claim)
        return False

    # Offers

    def offer(self, free: int, now_s: float) -> list[Offer]:
        """Offers slots to the first claims, and returns the new offers."""
        made: dict[str, Offer] = {}
        while self._claiming:
            instance, sidecar, claim = min(self._claims(), key=_rank)
            if claim.cost > free - self.offered:
                break
            if instance not in made:
                self._offers_made += 1
                made[instance] = sidecar.offer(instance, self._offers_made, now_s)
            made[instance].slots += claim.cost
            made[instance].left += claim.cost
            self.offered += claim.cost
            self._grant(sidecar, claim.cost)
            sidecar.age = self._next_age()
            sidecar.claim = claim.reduced_by(claim.cost)
            self._claiming -= sidecar.claim is None
        return list(made.values())

    def expire(self, now_s: float) -> bool:
        """Ends the offers that were not used in time, the claims of their sidecars, and the claims
        that were not repeated in time. Returns whether there were any."""
        found = False
        for sidecar in self._sidecars.values():
            # Setting back the clock does not book slots for longer.
            until = now_s + MAX_OFFER_S
            late = [each for each in sidecar.offers if not now_s < each.until_s <= until]
            for offer in late:
                self._free(sidecar, offer, offer.left, -1)
            silent = not sidecar.called_s <= now_s < sidecar.called_s + CLAIM_S
            if late or (silent and (sidecar.has_unclaimed_demand or sidecar.claim is not None)):
                self._set_claim(sidecar, None)
                sidecar.has_unclaimed_demand = sidecar.has_unclaimed_demand and not silent
                found = True
        return found

    @property
    def expires_at(self) -> float | None:
        """When the first offer expires."""
        offering = (each for each in self._sidecars.values() if self.offered and each.offers)
        return min((each.offers[0].until_s for each in offering), default=None)

    # Parts

    def _known(self, instance: str | None) -> ClaimingSidecar | None:
        return None if instance is None else self._sidecars.get(instance)

    def _claims(self) -> Iterator[tuple[str, ClaimingSidecar, Claim]]:
        for instance, sidecar in self._sidecars.items():
            if sidecar.claim is not None:
                yield instance, sidecar, sidecar.claim

    def _set_claim(self, sidecar: ClaimingSidecar, claim: Claim | None) -> None:
        """Sets a claim. It keeps its place unless its urgency changes."""
        before, sidecar.claim = sidecar.claim, claim
        self._claiming += (claim is not None) - (before is not None)
        if claim is not None and (before is None or claim.urgent != before.urgent):
            sidecar.next_start = max(self._last_start, sidecar.next_start)
            sidecar.age = self._next_age()

    def _delays_others(self, instance: str, claim: Claim) -> bool:
        """Whether a request would overtake another sidecar's claim that goes before it."""
        if not self._claiming:
            return False
        sidecar = self._sidecars.get(instance)
        if sidecar is None:
            rank = (not claim.urgent, self._last_start, self._ages + 1)
        elif sidecar.claim is not None and sidecar.claim.urgent == claim.urgent:
            rank = (not claim.urgent, sidecar.next_start, sidecar.age)
        else:
            rank = (not claim.urgent, max(self._last_start, sidecar.next_start), self._ages + 1)
        return any(_rank(each) < rank for each in self._claims() if each[0] != instance)

    def _grant(self, sidecar: ClaimingSidecar, slots: int) -> None:
        """Charges a sidecar for slots: its next start is later."""
        start = (
            sidecar.next_start
            if sidecar.claim is not None
            else max(self._last_start, sidecar.next_start)
        )
        self._last_start = max(self._last_start, start)
        sidecar.next_start = start + slots

    def _use(self, sidecar: ClaimingSidecar, slots: int) -> None:
        """Uses up booked slots, those of the oldest offer first."""
        while slots:
            offer = sidecar.offers[0]
            used = min(slots, offer.left)
            slots -= used
            offer.left -= used
            self.offered -= used
            if not offer.left:
                sidecar.offers.popleft()

    def _give_back(self, sidecar: ClaimingSidecar, slots: int, taken: int, refund: int) -> None:
        """Frees slots of the offers up to `taken` that will not be used."""
        for offer in [each for each in sidecar.offers if each.number <= taken]:
            returned = min(slots, offer.left)
            slots -= returned
            self._free(sidecar, offer, returned, refund)

    def _free(self, sidecar: ClaimingSidecar, offer: Offer, slots: int, refund: int) -> None:
        """Frees slots of an offer. `refund`: 1: uncharged; 0: still charged; -1: charged twice."""
        offer.left -= slots
        self.offered -= slots
        sidecar.next_start -= refund * slots
        if not offer.left:
            sidecar.offers.remove(offer)

    def _next_age(self) -> int:
        self._ages += 1
        return self._ages


def _rank(claiming: tuple[str, ClaimingSidecar, Claim]) -> tuple[bool, int, int]:
    _, sidecar, claim = claiming
    return not claim.urgent, sidecar.next_start, sidecar.age


@dataclass(slots=True)
class Offer:
    """An offer of `slots`, booked for a sidecar instance until `until_s`. `number`: from 1; `left`:
    slots that no request has used."""

    instance: str
    slots: int
    until_s: float
    number: int
    left: int


@dataclass(slots=True)
class ClaimingSidecar:
    """The claim of a sidecar that reads the state, and its offers.

    An offer is booked for twice the time after which the sidecar last showed, by a request or a
    call, that it had heard of an offer: between OFFER_S and MAX_OFFER_S. With a fixed OFFER_S, a
    sidecar farther away could never use an offer. One farther away than MAX_OFFER_S cannot: its
    offers are booked for OFFER_S.
    """

    streams: int = 0
    claim: Claim | None = None
    next_start: int = 0  # of its next grant, in sequences granted: the lowest is next
    age: int = 0  # of its claim, or of the last grant under it: the older, the lower
    number: int = 0  # of its last call
    has_unclaimed_demand: bool = False  # for anything but slots
    called_s: float = 0.0  # when it last called, or its last request was rejected
    offers: deque[Offer] = field(default_factory=deque)  # the oldest first
    offer_s: float = OFFER_S  # for how long an offer is booked
    unheard: tuple[int, float] | None = None  # the first offer that it may not have heard of

    @property
    def booked(self) -> int:
        return sum(offer.left for offer in self.offers)

    def offer(self, instance: str, number: int, now_s: float) -> Offer:
        """Makes an offer of no slots yet."""
        made = Offer(instance, 0, now_s + self.offer_s, number, 0)
        self.offers.append(made)
        if self.unheard is None:
            self.unheard = number, now_s
        return made

    def heard(self, number: int, now_s: float) -> None:
        """The sidecar has heard of the offers up to this number."""
        if self.unheard is not None and self.unheard[0] <= number:
            delay_s = now_s - self.unheard[1]
            booked_s = min(max(OFFER_S, 2 * delay_s), MAX_OFFER_S)
            self.offer_s = booked_s if delay_s <= MAX_OFFER_S else OFFER_S
            self.unheard = None


class Subscriber:
    """One reader of the state: is woken by changes, and collects what concerns only its sidecar:
    the ended leases it owns, and the slots that an engine offers it."""

    def __init__(
        self, instance: str | None, wake: Callable[[], None], *, claims: bool = True
    ) -> None:
        """`claims`: it is a sidecar that understands offers."""
        self.instance = instance
        self.wake = wake
        self.claims = claims and instance is not None
        self.changed = False  # something has changed since it last looked
        self.at_once = False  # that must not wait for its turn
        self.replaced = False  # its sidecar has opened another stream: this one has to end
        self.ended: list[str] = []
        self.offers: list[Offer] = []

    def replace(self) -> None:
        """Has its stream end."""
        self.replaced = True
        self.wake()


class Subscribers(set[Subscriber]):
    """All subscribers. A change costs time only for those without an earlier one: most of many
    still wait for their turns to send that."""

    def __init__(self) -> None:
        super().__init__()
        self._up_to_date: set[Subscriber] = set()

    def discard(self, subscriber: object) -> None:
        super().discard(subscriber)
        self._up_to_date.discard(subscriber)

    def looked(self, subscriber: Subscriber) -> None:
        """The subscriber has looked at the state: the next change wakes it again."""
        subscriber.changed = subscriber.at_once = False
        self._up_to_date.add(subscriber)

    def change(self) -> None:
        """Wakes subscribers for a change that each sends in its turn."""
        up_to_date, self._up_to_date = self._up_to_date, set()
        for subscriber in up_to_date:
            subscriber.changed = True
            subscriber.wake()

    def wake_all(self) -> None:
        """Wakes all subscribers for a change that each sends at once."""
        self._up_to_date.clear()
        for subscriber in self:
            subscriber.changed = subscriber.at_once = True
            subscriber.wake()

"""Claims an engine's slots for waiting requests, and dispatches them under the engine's offers.

Pure: times are seconds of a monotonic clock. Requests wait in this sidecar's queues, and at its
parents: to these, this sidecar looks like an engine. Where it shares the engine with other
sidecars, it claims the sum of its own needs and those of its parents, and divides what it is
offered by the engine's own rules (`SlotClaims`), as if its queue were another parent's. A parent's
slots stay booked, here and at the engine, until its request comes.

Calls to the engine are numbered. The engine reports which call it has recorded, and what is left of
that claim after its offers; it is called again if that differs from what is claimed. A request that
joins a long queue is no reason, while more is recorded than an equal share of the engine's slots.
Slots are given back in one call; if it is lost, the engine frees them itself a moment later.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from orch_sidecar.admission.controller import AdmissionController
from orch_sidecar.admission.types import AdmissionRequest, Decision, Lease, Queued
from orch_sidecar.api.refusal import Refusal
from vllm_plugin.contracts.lease_protocol import MAX_ADAPTERS, MAX_CLAIMED_SHARE, Claim, ClaimCall
from vllm_plugin.contracts.profile import BULK, INTERACTIVE
from vllm_plugin.contracts.slot_claims import Offer, SlotClaims


class Claimed(NamedTuple):
    """What the engine has to know: the claimed slots, whether more requests wait, and the LoRA
    adapters that they wait for."""

    claim: Claim | None = None
    has_unclaimed_demand: bool = False
    adapters: tuple[str, ...] = ()


NO_CLAIM: Final = Claimed()
# Idle requests wait for what nobody claims.
CLAIMING_CLASSES: Final = INTERACTIVE, BULK


class EngineClaims:
    """What is claimed of one engine, and offered by it."""

    def __init__(self, controller: AdmissionController, instance: str) -> None:
        """`instance`: of this sidecar at this engine."""
        self.parents = ParentClaims(instance)
        # Called when `total_claim` has changed, or slots are to be given back.
        self.on_change: Callable[[], None] | None = None
        # Called with the parents for which there are offers.
        self.on_parent_offers: Callable[[Collection[str]], None] | None = None
        self._controller = controller
        self.offers = controller.constraints.offers
        self._reported = NO_CLAIM  # at the last call of `on_change`

    @property
    def slots_total(self) -> int:
        """The engine's slots."""
        return self._controller.ledger.slots_total

    @property
    def own_claim(self) -> Claim | None:
        """The claim for the requests that are queued here."""
        return self._controller.order.claim if self._controller.queues.depth else None

    @property
    def total_claim(self) -> Claim | None:
        """The claim for all that wait, here and at parents, while the engine has to know it."""
        if not self.offers.shared or self._controller.unavailable is not None:
            return None
        own, pause = self.own_claim, self._controller.constraints.pause
        if self.has_queue and own is None and self._controller.order.blocked_by is pause:
            return None  # what the engine lacks are not slots
        return self.parents.total(own, self.slots_total)

    @property
    def has_queue(self) -> bool:
        """Whether requests wait here for which others have to leave slots."""
        return self._controller.queues.urgent > 0

    @property
    def has_unclaimed_demand(self) -> bool:
        """Whether more requests wait than slots are claimed for, while the engine has to know: then
        others dispatch nothing into slots that they see free, which may be claimed next."""
        if not self.offers.shared or self._controller.unavailable is not None:
            return False
        own, queues = self.own_claim, self._controller.queues
        sequences = sum(queues.line(each).cost for each in CLAIMING_CLASSES)
        return (
            sequences > (0 if own is None else own.slots)
            or self.parents.claim_table.any_unclaimed_demand
        )

    @property
    def adapters(self) -> tuple[str, ...]:
        """What the requests that are set aside wait for, while the engine has to know it."""
        queues, unavailable = self._controller.queues, self._controller.unavailable
        if not queues.aside_count or not self.offers.shared or unavailable is not None:
            return ()
        names = (
            group.constraint.engine_name(group.first.request)
            for service_class in CLAIMING_CLASSES
            for group in queues.aside(service_class)
        )
        return tuple(dict.fromkeys(filter(None, names)))[:MAX_ADAPTERS]

    @property
    def all(self) -> Claimed:
        """All that is claimed."""
        return Claimed(self.total_claim, self.has_unclaimed_demand, self.adapters)

    def update(self) -> None:
        """Reports what has changed, after each change of the admission."""
        offers = self.offers
        if self.on_change is None:
            return
        if not (offers.shared or offers.unused or self._reported != NO_CLAIM):
            return
        offers.set_parents_wait(offers.sidecars > 1 and self.parents.has_demand)
        before, self._reported = self._reported, self.all
        if self._reported != before or offers.unused:
            self.on_change()

    def offered(self, slots: int, number: int, now: float) -> list[Decision]:
        """Dispatches under an offer of the engine, and gives back the slots that nothing needs."""
        offers, own = self.offers, self.parents.divide(slots, self.own_claim, now)
        offers.offer(own, number)
        decisions = self._controller.dispatch(now)
        offers.settle()
        if self.on_parent_offers is not None and (parents := self.parents.parents_with_offers()):
            self.on_parent_offers(parents)
        return decisions

    def claimed(self, instance: str, call: ClaimCall, now: float) -> bool:
        """Takes a parent's claim of slots. False: it does not read the state."""
        if not self.parents.claim_table.reads(instance):
            return False
        self.offers.give_back(self.parents.claimed(instance, call, now))
        self.update()
        return True

    def expire(self, now: float) -> None:
        """Ends claims that parents have not repeated. To be called about once a second."""
        if self.parents.claim_table.expire(now):
            self.update()

    def arrive(
        self, ticket: str, request: AdmissionRequest, now: float
    ) -> Lease | Refusal | Queued:
        """Decides about a new request of a parent, under the offer passed on to it, if any."""
        if not self.parents.consume_booking(request.parent, request.cost, now):
            return self._controller.arrive(ticket, request, now)
        self.offers.offer(request.cost, self.offers.taken)
        outcome = self._controller.arrive(ticket, request, now)
        self.offers.settle()
        self.update()
        return outcome


class ParentClaims:
    """The claims of one pool's parent sidecars, and their parts of what the engine offers."""

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


class ClaimCalls:
    """Decides when to tell one engine what is claimed. One call is under way at a time."""

    def __init__(self, claims: EngineClaims) -> None:
        self._claims = claims
        self._offers = claims.offers
        self._recorded = NO_CLAIM  # what the engine has recorded, as far as is known
        self._previous = NO_CLAIM  # the same before the last call
        self._number = 0  # of the last call

    def reported(self, claim: Claim | None, waits: bool, number: int) -> bool:
        """Takes what the engine has recorded, and the number of the last call that it got (0: none
        since the stream was opened). Returns whether it has to be called."""
        if 0 < number < self._number:
            return False  # the last call has not arrived yet
        called = self._recorded.claim
        if claim is not None and called is not None and number == self._number:
            # A key for bulk requests only never has an urgent claim, however often it calls.
            claim = claim._replace(urgent=claim.urgent or called.urgent)
        self._recorded = Claimed(claim, waits, self._recorded.adapters)
        return not self._suffices(self._claims.all)

    def next(self, *, again: bool) -> ClaimCall | None:
        """Returns the call to make now; None: none. `again`: an unchanged claim is repeated."""
        claimed, offers = self._claims.all, self._offers
        if claimed.claim is None:
            offers.withdraw()
        unused = offers.take_unused()
        if not unused and self._suffices(claimed) and not (again and claimed != NO_CLAIM):
            return None
        self._number += 1
        self._previous, self._recorded = self._recorded, claimed
        claim, waits, adapters = claimed
        return ClaimCall(claim, offers.taken, unused, self._number, waits, adapters)

    def failed(self) -> None:
        """Forgets a call that the engine may not have got: it may offer nothing, so the next
        request goes without an offer, and leaves a claim there if it is rejected."""
        self._recorded = self._previous
        self._offers.withdraw()

    def _suffices(self, claimed: Claimed) -> bool:
        """Whether what the engine has recorded is close enough to what is claimed."""
        claim, recorded = claimed.claim, self._recorded.claim
        if claimed[1:] != self._recorded[1:]:
            return False
        if claim is None or recorded is None:
            return claim is recorded
        if (claim.cost, claim.urgent) != (recorded.cost, recorded.urgent):
            return False
        least = min(claim.slots, self._claims.slots_total // self._offers.sidecars + 1)
        return least <= recorded.slots <= claim.slots

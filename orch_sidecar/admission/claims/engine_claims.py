"""Claims an engine's slots for waiting requests, and dispatches them under the engine's offers.

Pure: times are seconds of a monotonic clock. Requests wait in this sidecar's queues, and at its
parents (`parent_claims`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from orch_sidecar.admission.claims.parent_claims import ParentClaims
from orch_sidecar.admission.controller import AdmissionController
from orch_sidecar.admission.types import AdmissionRequest, Decision, Lease, Queued
from orch_sidecar.api.refusal import Refusal
from vllm_plugin.contracts.lease_protocol import MAX_ADAPTERS, Claim, ClaimCall
from vllm_plugin.contracts.profile import BULK, INTERACTIVE


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
        return self.parents.total(own, self._controller.ledger.slots_total)

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

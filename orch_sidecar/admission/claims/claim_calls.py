"""Decides when to tell the engine what is claimed of its slots.

Pure. Calls are numbered. The engine reports which call it has recorded, and what is left of that
claim after its offers; it is called again if that differs from what is claimed. A request that
joins a long queue is no reason, while more is recorded than an equal share of the engine's slots.
Slots are given back in one call; if it is lost, the engine frees them itself a moment later.
"""

from __future__ import annotations

from orch_sidecar.admission.claims.engine_claims import NO_CLAIM, Claimed, EngineClaims
from orch_sidecar.admission.constraints.slot_offers import SlotOffers
from orch_sidecar.admission.ledger import Ledger
from vllm_plugin.contracts.lease_protocol import Claim, ClaimCall


class ClaimCalls:
    """The calls to one engine, of which one is under way at a time."""

    def __init__(self, claims: EngineClaims, offers: SlotOffers, ledger: Ledger) -> None:
        self._claims = claims
        self._offers = offers
        self._ledger = ledger
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
        least = min(claim.slots, self._ledger.slots_total // self._offers.sidecars + 1)
        return least <= recorded.slots <= claim.slots

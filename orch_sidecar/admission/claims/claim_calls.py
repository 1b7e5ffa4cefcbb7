"""Decides when the engine has to be called about what is claimed of its slots, and with what.

Pure. Calls are numbered. The engine reports what it has recorded, less what it has offered since,
and of which call; it is called again if that differs from what is claimed: not for every request
that joins a long queue, while more is recorded than an equal share of the engine's slots. Slots
that are given back are named in one call: the engine frees those of a call that was lost a moment
later.
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
        self._recorded = self._before = (
            NO_CLAIM  # by the engine as far as is known; one call before
        )
        self._number = 0  # of the last call

    def reported(self, claim: Claim | None, waits: bool, number: int) -> bool:
        """The engine reports what it has recorded, and the call that it has got last; 0: none since
        the stream was opened. Returns whether it has to be called."""
        if 0 < number < self._number:
            return False  # the last call has not arrived yet
        called = self._recorded.claim
        if claim is not None and called is not None and number == self._number:
            # A key for bulk requests alone makes no claim urgent, however often it is called.
            claim = claim._replace(urgent=claim.urgent or called.urgent)
        self._recorded = Claimed(claim, waits, self._recorded.adapters)
        return not self._suffices(self._claims.all)

    def next(self, *, again: bool) -> ClaimCall | None:
        """The call that is to be made now; None: none. `again`: a claim that stands is repeated."""
        claimed, offers = self._claims.all, self._offers
        if claimed.claim is None:
            offers.withdraw()
        unused = offers.take_unused()
        if not unused and self._suffices(claimed) and not (again and claimed != NO_CLAIM):
            return None
        self._number += 1
        self._before, self._recorded = self._recorded, claimed
        claim, waits, adapters = claimed
        return ClaimCall(claim, offers.taken, unused, self._number, waits, adapters)

    def failed(self) -> None:
        """The engine may not have got the call, and may offer nothing: the next request is
        dispatched without an offer, and leaves a claim there if it is rejected."""
        self._recorded = self._before
        self._offers.withdraw()

    def _suffices(self, claimed: Claimed) -> bool:
        """Whether the engine need not know better what is claimed."""
        claim, recorded = claimed.claim, self._recorded.claim
        if claimed[1:] != self._recorded[1:]:
            return False
        if claim is None or recorded is None:
            return claim is recorded
        if (claim.cost, claim.urgent) != (recorded.cost, recorded.urgent):
            return False
        least = min(claim.slots, self._ledger.slots_total // self._offers.sidecars + 1)
        return least <= recorded.slots <= claim.slots

"""Decides when the engine has to be called about what is claimed of its slots, and with what.

Pure. Calls are numbered. The engine reports what it has recorded, less what it has offered since,
and of which call; it is called again if that differs from what is claimed: not for every request
that joins a long queue, while more is recorded than an equal share of the engine's slots. Slots
that are given back are named in one call: the engine frees those of a call that was lost a moment
later.
"""

from __future__ import annotations

from orch_sidecar.admission.claims.engine_claims import EngineClaims
from orch_sidecar.admission.constraints.slot_offers import SlotOffers
from orch_sidecar.admission.ledger import Ledger
from vllm_plugin.contracts.lease_protocol import Claim, ClaimCall


class ClaimCalls:
    """The calls to one engine, of which one is under way at a time."""

    def __init__(self, claims: EngineClaims, offers: SlotOffers, ledger: Ledger) -> None:
        self._claims = claims
        self._offers = offers
        self._ledger = ledger
        # What is claimed, and whether more waits: recorded by the engine, as far as is known.
        self._recorded: tuple[Claim | None, bool] = (None, False)
        self._before: tuple[Claim | None, bool] = (None, False)  # the last call
        self._number = 0  # of the last call

    def reported(self, claim: Claim | None, waits: bool, number: int) -> bool:
        """The engine reports what it has recorded, and the call that it has got last; 0: none since
        the stream was opened. Returns whether it has to be called."""
        if 0 < number < self._number:
            return False  # the last call has not arrived yet
        called = self._recorded[0]
        if claim is not None and called is not None and number == self._number:
            # A key for bulk requests alone makes no claim urgent, however often it is called.
            claim = claim._replace(urgent=claim.urgent or called.urgent)
        self._recorded = claim, waits
        return not self._suffices(self._claims.current, self._claims.waits)

    def next(self, *, again: bool) -> ClaimCall | None:
        """The call that is to be made now; None: none. `again`: a claim that stands is repeated."""
        claim, waits, offers = self._claims.current, self._claims.waits, self._offers
        if claim is None:
            offers.withdraw()
        unused = offers.take_unused()
        standing = claim is not None or waits
        if not unused and self._suffices(claim, waits) and not (again and standing):
            return None
        self._number += 1
        self._before, self._recorded = self._recorded, (claim, waits)
        return ClaimCall(claim, offers.taken, unused, self._number, waits)

    def failed(self) -> None:
        """The engine may not have got the call, and may offer nothing: the next request is
        dispatched without an offer, and leaves a claim there if it is rejected."""
        self._recorded = self._before
        self._offers.withdraw()

    def _suffices(self, claim: Claim | None, waits: bool) -> bool:
        """Whether the engine need not know better what is claimed."""
        recorded, waited = self._recorded
        if waited != waits:
            return False
        if claim is None or recorded is None:
            return claim is recorded
        if (claim.cost, claim.urgent) != (recorded.cost, recorded.urgent):
            return False
        least = min(claim.slots, self._ledger.slots_total // self._offers.sidecars + 1)
        return least <= recorded.slots <= claim.slots

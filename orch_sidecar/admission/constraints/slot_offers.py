"""Follows what an engine grants, where other sidecars want its slots, too.

Pure: times are seconds of a monotonic clock. The engine itself keeps the count of its slots: it
rejects a request for which it has none, keeps a claim for it, and offers slots as they come free.
Alone at an engine, a sidecar knows what is free and waits for no offers. While other sidecars claim
slots, or after a rejection, the next request is dispatched only under an offer.
"""

from __future__ import annotations

from orch_sidecar.admission.types import EngineReport
from vllm_plugin.lease_protocol import OFFER_S


class SlotOffers:
    """The grants of one engine, as this sidecar knows them."""

    def __init__(self) -> None:
        self.sidecars = 1  # that read the engine's state, this one included
        self.contended = False  # others claim slots
        self.rejected = False  # the engine had none, and keeps a claim of ours
        self.rejections = 0  # requests, since the start
        self.taken = 0  # the last offer that was taken, by its number
        self._cost = 0  # offered
        self._number = 0
        self._until = 0.0

    @property
    def shared(self) -> bool:
        """Whether the engine has to know what this sidecar waits for."""
        return self.sidecars > 1 or self.rejected

    def begin_epoch(self) -> None:
        """The engine restarted."""
        self.rejected, self._cost, self.taken = False, 0, 0

    def reported(self, report: EngineReport) -> None:
        """The engine reported its state."""
        self.sidecars, self.contended = max(1, report.sidecars), report.contended

    def reject(self) -> None:
        """The engine had no slots for a request that was dispatched."""
        self.rejections += 1
        self.rejected, self._cost = True, 0

    def offer(self, cost: int, number: int, now: float) -> None:
        """The engine has booked so many slots for the next request."""
        self._cost, self._number, self._until = cost, number, now + OFFER_S

    def settle(self) -> None:
        """Nothing waits for slots, and the claim is withdrawn, with what is offered: the next
        request may be dispatched without an offer."""
        self.rejected, self._cost = False, 0

    def granted(self) -> None:
        """A request was dispatched: it uses up the offer, if there is one."""
        if self._cost:
            self._cost, self.rejected, self.taken = 0, False, self._number

    def block(self, cost: int, now: float) -> bool:
        """Whether a request has to wait for an offer, while others claim slots or after a
        rejection."""
        return cost > self._cost or now >= self._until

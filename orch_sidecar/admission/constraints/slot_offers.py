"""Follows what an engine grants, where other sidecars want its slots, too.

Pure. The engine itself keeps the count of its slots: it rejects a request for which it has none,
keeps a claim for it, and offers slots as they come free. A sidecar knows what is free and waits for
no offers while it is alone at an engine, or nothing waits at the others. While requests wait there,
for slots or something else, or after a rejection, the next request is dispatched only under an
offer: else all that wait would be sent into the same slot as soon as it is seen free.

An offer is taken as soon as it is heard of. What is left of it then is given back at once, if
others wait for it.
"""

from __future__ import annotations

from orch_sidecar.admission.types import EngineReport


class SlotOffers:
    """The grants of one engine, as this sidecar knows them."""

    def __init__(self) -> None:
        self.sidecars = 1  # that read the engine's state, this one included
        self.contended = False  # requests wait at others
        self.parents_wait = False  # requests wait at parents of this sidecar
        self.rejected = False  # the engine had none, and keeps a claim of ours
        self.rejections = 0  # requests, since the start
        self.taken = 0  # the last offer, by its number
        self.left = 0  # slots, while an offer is taken
        self.unused = 0  # slots of offers that are to be given back

    @property
    def shared(self) -> bool:
        """Whether the engine has to know what this sidecar waits for."""
        return self.sidecars > 1 or self.rejected

    def begin_epoch(self) -> None:
        """The engine restarted."""
        self.rejected = False
        self.taken = self.left = self.unused = 0

    def reported(self, report: EngineReport) -> None:
        """The engine reported its state."""
        self.sidecars, self.contended = max(1, report.sidecars), report.contended

    def reject(self) -> None:
        """The engine had no slots for a request that was dispatched."""
        self.rejections += 1
        self.rejected = True

    def offer(self, slots: int, number: int) -> None:
        """The engine has booked so many slots: requests are dispatched under them, until
        `settle`."""
        self.left, self.taken = slots, number

    def granted(self, slots: int) -> bool:
        """A request was dispatched. Returns whether under an offer, which it uses up."""
        if not self.left:
            return False
        self.left = max(0, self.left - slots)
        self.rejected = False
        return True

    def kept(self, slots_total: int, leased: int) -> float:
        """The share of the slots that come free here which does not go to other sidecars: while
        these claim slots, this one is left with an equal part of all."""
        if not self.contended:
            return 1.0
        return min(1.0, slots_total / self.sidecars / max(1, leased))

    def settle(self) -> None:
        """What the offer had slots for was dispatched. The rest is given back where others wait;
        where none do, requests that have been dispatched already take it."""
        if self.contended or self.parents_wait:
            self.unused += self.left
        self.left = 0

    def give_back(self, slots: int) -> None:
        """A request that was dispatched under an offer is not sent."""
        self.unused += slots

    def take_unused(self) -> int:
        """Returns `unused`, and clears it."""
        unused, self.unused = self.unused, 0
        return unused

    def withdraw(self) -> None:
        """Nothing is claimed at the engine, as far as is known: the next request may be dispatched
        without an offer."""
        self.rejected = False

    def block(self, slots: int) -> bool:
        """Whether a request has to wait for an offer."""
        return (self.contended or self.parents_wait or self.rejected) and slots > self.left

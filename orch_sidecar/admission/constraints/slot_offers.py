"""The slots that an engine has, and what it grants of them where other sidecars want some, too.

Pure. Leased and foreign sequences together stay within the slots, always. The engine itself keeps
the count of its slots: it rejects a request for which it has none, keeps a claim for it, and offers
slots as they come free. A sidecar knows what is free and waits for no offers while it is alone at
an engine, or nothing waits at the others. While requests wait there, for slots or something else,
or after a rejection, the next request is dispatched only under an offer: else all that wait would
be sent into the same slot as soon as it is seen free.

An offer is taken as soon as it is heard of. What is left of it then is given back at once, if
others wait for it.
"""

from __future__ import annotations

from typing import ClassVar

from orch_sidecar.admission.constraints.constraint import UNLIMITED, Beside, Constraint
from orch_sidecar.admission.ledger import Ledger
from orch_sidecar.admission.types import AdmissionRequest, EngineReport, Lease
from vllm_plugin.contracts.lease_protocol import NO_SLOT
from vllm_plugin.contracts.profile import ServiceClass


class Slots(Constraint):
    """The slots that the engine reported."""

    reason: ClassVar[str] = "slot"
    absolute: ClassVar[bool] = True

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    @property
    def for_slots(self) -> bool:
        return True

    def room(self, service_class: ServiceClass, beside: Beside, now: float) -> int:
        return self._ledger.slots_total - beside.taken_for(service_class)

    def blocks(self, request: AdmissionRequest, beside: Beside, now: float) -> bool:
        return beside.taken + beside.idle + request.cost > self._ledger.slots_total

    def text(self) -> str:
        total, room = self._ledger.slots_total, self._ledger.room
        if room > 0:
            return (
                f"more slots: {room} of {total} are free, and it needs more, or other sidecars at "
                "this engine are next"
            )
        return f"a slot: {'the only one is' if total == 1 else f'all {total} are'} in use"


class SlotOffers(Slots):
    """The grants of one engine, as this sidecar knows them. The last of the constraints, so that no
    slot is booked for a request that waits for something else."""

    rejection: ClassVar[str | None] = NO_SLOT

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self.sidecars = 1  # that read the engine's state, this one included
        self.contended = False  # requests wait at others
        self.parents_wait = False  # requests wait at parents of this sidecar
        self.rejected = False  # the engine had none, and keeps a claim of ours
        self.rejections = 0  # requests, since the start
        self.taken = 0  # the last offer, by its number
        self.left = 0  # slots, while an offer is taken
        self.unused = 0  # slots of offers that are to be given back
        self._update()

    def _update(self) -> None:
        """To be called after each change."""
        self.inactive = not (self.contended or self.parents_wait or self.rejected or self.left)

    @property
    def shared(self) -> bool:
        """Whether the engine has to know what this sidecar waits for."""
        return self.sidecars > 1 or self.rejected

    def begin_epoch(self) -> None:
        self.rejected = False
        self.taken = self.left = self.unused = 0
        self._update()

    def reported(self, report: EngineReport, now: float) -> None:
        self.sidecars, self.contended = max(1, report.sidecars), report.contended
        self._update()

    def reject(self, request: AdmissionRequest | None = None, now: float = 0.0) -> None:
        """The engine had no slots for a request that was dispatched."""
        self.rejections += 1
        self.rejected = True
        self._update()

    def set_parents_wait(self, parents_wait: bool) -> None:
        """Whether requests wait at parents of this sidecar."""
        self.parents_wait = parents_wait
        self._update()

    def offer(self, slots: int, number: int) -> None:
        """The engine has booked so many slots: requests are dispatched under them, until
        `settle`."""
        self.left, self.taken = slots, number
        self._update()

    def granted(self, lease: Lease, request: AdmissionRequest, now: float) -> None:
        """A request was dispatched, maybe under an offer, which it uses up."""
        if self.left:
            lease.offered = True
            self.left = max(0, self.left - lease.cost)
            self.rejected = False
            self._update()

    def share_kept(self, slots_total: int, leased: int) -> float:
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
        self._update()

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
        self._update()

    def room(self, service_class: ServiceClass, beside: Beside, now: float) -> int:
        """Where others want slots, too, an offer has to come first."""
        return self.left if self.contended or self.parents_wait or self.rejected else UNLIMITED

    def blocks(self, request: AdmissionRequest, beside: Beside, now: float) -> bool:
        if self.contended or self.parents_wait or self.rejected:
            return request.cost > self.left
        return False

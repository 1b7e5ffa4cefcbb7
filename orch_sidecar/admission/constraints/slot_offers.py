"""Keeps leases within an engine's slots, and within its offers where other sidecars want slots.

Pure. Leased and foreign sequences together always stay within the slots. The engine itself counts
its slots: it rejects a request for which it has none, keeps a claim for it, and offers slots as
they come free. While a sidecar is alone at an engine, or nothing waits at the others, it knows what
is free and waits for no offer. While requests wait elsewhere, for slots or anything else, and after
a rejection, the next request is dispatched only under an offer: otherwise all that wait would be
sent into the same slot as soon as it is seen free.

A sidecar uses an offer as soon as it hears of it, and gives the rest back at once if others wait.
After any other rejection it dispatches nothing for a moment, except under an offer.
"""

from __future__ import annotations

from typing import ClassVar, Final

from orch_sidecar.admission.constraints.constraint import UNLIMITED, Ahead, Constraint, Occupancy
from orch_sidecar.admission.ledger import Ledger
from orch_sidecar.admission.types import AdmissionRequest, EngineReport, Lease
from vllm_plugin.contracts.lease_protocol import NO_SLOT
from vllm_plugin.contracts.profile import ServiceClass

_MIN_PAUSE_S: Final = 0.02
_MAX_PAUSE_S: Final = 1.0


class Slots(Constraint):
    """The slots that the engine reported."""

    reason: ClassVar[str] = "slot"
    absolute: ClassVar[bool] = True

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    @property
    def lacks_slots(self) -> bool:
        return True

    def room(self, service_class: ServiceClass, occupancy: Occupancy, now: float) -> int:
        return self._ledger.slots_total - occupancy.taken_for(service_class)

    def blocks(self, request: AdmissionRequest, occupancy: Occupancy, now: float) -> bool:
        return occupancy.taken + occupancy.idle + request.cost > self._ledger.slots_total

    def text(self) -> str:
        total, room = self._ledger.slots_total, self._ledger.room
        if room > 0:
            return (
                f"more slots: {room} of {total} are free, and it needs more, or other sidecars at "
                "this engine are next"
            )
        return f"a slot: {'the only one is' if total == 1 else f'all {total} are'} in use"


class SlotOffers(Slots):
    """What the engine has offered this sidecar. The last of the constraints, so that no slot is
    booked for a request that waits for something else."""

    rejection: ClassVar[str | None] = NO_SLOT

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self.sidecars = 1  # that read the engine's state, this one included
        self.contended = False  # requests wait at others
        self.parents_wait = False  # requests wait at parents of this sidecar
        self.was_rejected = False  # the engine had no slot, and keeps a claim of ours
        self.rejections = 0  # since the start
        self.taken = 0  # the number of the last offer
        self.left = 0  # slots of the offer that is being used
        self.unused = 0  # slots of offers that have to be given back
        self._update()

    def _update(self) -> None:
        """Sets `inactive`, after each change."""
        self.inactive = not (self.contended or self.parents_wait or self.was_rejected)

    @property
    def shared(self) -> bool:
        """Whether the engine has to know what this sidecar waits for."""
        return self.sidecars > 1 or self.was_rejected

    def begin_epoch(self) -> None:
        self.was_rejected = False
        self.taken = self.left = self.unused = 0
        self._update()

    def reported(self, report: EngineReport, now: float) -> None:
        self.sidecars, self.contended = max(1, report.sidecars), report.contended
        self._update()

    def rejected(self, request: AdmissionRequest | None = None, now: float = 0.0) -> None:
        """The engine had no slots for a request that was dispatched."""
        self.rejections += 1
        self.was_rejected = True
        self._update()

    def set_parents_wait(self, parents_wait: bool) -> None:
        """Whether requests wait at parents of this sidecar."""
        self.parents_wait = parents_wait
        self._update()

    def offer(self, slots: int, number: int) -> None:
        """The engine has booked `slots`: requests are dispatched into them until `settle`."""
        self.left, self.taken = slots, number

    def use(self, lease: Lease) -> None:
        """A request was dispatched under the offer, which it uses up."""
        lease.offered = True
        self.left = max(0, self.left - lease.cost)
        self.was_rejected = False
        self._update()

    @property
    def share_kept(self) -> float:
        """The share of the slots that come free here which other sidecars do not get: while they
        claim slots, each has an equal part of all."""
        if not self.contended:
            return 1.0
        return min(1.0, self._ledger.slots_total / self.sidecars / max(1, self._ledger.leased))

    def settle(self) -> None:
        """Ends the use of an offer. The rest of it is given back where others wait; where none do,
        requests that were dispatched before take it."""
        if self.contended or self.parents_wait:
            self.unused += self.left
        self.left = 0

    def give_back(self, slots: int) -> None:
        """Gives back slots of an offer: a request that was dispatched into them is not sent."""
        self.unused += slots

    def take_unused(self) -> int:
        """Returns `unused`, and clears it."""
        unused, self.unused = self.unused, 0
        return unused

    def withdraw(self) -> None:
        """Forgets a rejection: as far as is known nothing is claimed at the engine, so the next
        request may be dispatched without an offer."""
        self.was_rejected = False
        self._update()

    def room(self, service_class: ServiceClass, occupancy: Occupancy, now: float) -> int:
        """Returns what is left of the offer, where others want slots, too."""
        return self.left if self.contended or self.parents_wait or self.was_rejected else UNLIMITED

    def blocks(self, request: AdmissionRequest, occupancy: Occupancy, now: float) -> bool:
        if self.contended or self.parents_wait or self.was_rejected:
            return request.cost > self.left
        return False


class Pause(Constraint):
    """Blocks until its time is over all that does not come under an offer of the engine."""

    reason: ClassVar[str] = "pause"
    absolute: ClassVar[bool] = True

    def __init__(self, offers: SlotOffers) -> None:
        self.until = float("-inf")
        self.inactive = True
        self._offers = offers
        self._lacks_slots = False

    @property
    def lacks_slots(self) -> bool:
        return self._lacks_slots and self._offers.shared

    def begin(self, pause_s: float, now: float, *, offered: bool) -> None:
        """Pauses for `pause_s`, within bounds. `offered`: the rejected request came under an offer,
        so that it lacks something other than slots, and none are claimed."""
        pause_s = min(max(pause_s, _MIN_PAUSE_S), _MAX_PAUSE_S)
        self.until = max(self.until, now + pause_s)
        self._lacks_slots = not offered
        self.inactive = False

    def room(self, service_class: ServiceClass, occupancy: Occupancy, now: float) -> int:
        return 0 if now < self.until and not self._offers.left else UNLIMITED

    def blocks(self, request: AdmissionRequest, occupancy: Occupancy, now: float) -> bool:
        self.inactive = now >= self.until
        return not self.inactive and not self._offers.left

    def clears_at(self, request: AdmissionRequest, now: float) -> float | None:
        return self.until

    def starts_in_s(self, request: AdmissionRequest, ahead: Ahead, now: float) -> float | None:
        return max(0.0, self.until - now)

    def text(self) -> str:
        return "a moment: the engine, or the sidecar below, rejected a request just now"

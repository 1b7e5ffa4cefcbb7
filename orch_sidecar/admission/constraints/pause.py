"""Dispatches nothing for a moment after an upstream rejected a request. Pure."""

from __future__ import annotations

from typing import ClassVar, Final

from orch_sidecar.admission.constraints.constraint import UNLIMITED, Ahead, Constraint, Occupancy
from orch_sidecar.admission.constraints.slot_offers import SlotOffers
from orch_sidecar.admission.types import AdmissionRequest
from vllm_plugin.contracts.profile import ServiceClass

_MIN_PAUSE_S: Final = 0.02
_MAX_PAUSE_S: Final = 1.0


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

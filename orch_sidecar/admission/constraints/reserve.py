"""Decides which slots are reserved for interactive requests, and how far that delays bulk ones.

Pure: times are seconds of a monotonic clock.
"""

from __future__ import annotations

from typing import Final

from orch_sidecar.admission.constraints.batch import Limits
from orch_sidecar.admission.ledger import Ledger
from orch_sidecar.admission.queues import Queues
from vllm_plugin.profile import ServiceClass

_INTERACTIVE, _BULK = ServiceClass.INTERACTIVE, ServiceClass.BULK

# The share of the reserve that stays free for the next requests. Each free slot costs tokens: one
# of 16 or three of 64 cost less than a twentieth. Without any, the next interactive request waits
# for a bulk request to end.
SPARE_SHARE: Final = 0.2
# After a pause of this length, interactive traffic loses its claim on the reserve.
CLAIM_S: Final = 10.0


class DelayClock:
    """Accumulates by how much interactive traffic has delayed bulk requests, in seconds.

    It runs while bulk requests wait, at the share of their slots that interactive traffic takes
    from them (the reserve is not theirs): where it takes a quarter, they are delayed by a second
    in four. So it shows how much longer a bulk request has waited than it would have alone,
    whatever else blocks it; one whose delay reaches the bound goes next.
    """

    def __init__(self) -> None:
        self.delay_s = 0.0
        self._at = 0.0
        self._share = 0.0

    def set_share(self, share: float, now: float) -> None:
        """From now on interactive traffic takes `share` (0 to 1) of the slots of bulk requests."""
        self.delay_s += max(0.0, now - self._at) * self._share
        self._at, self._share = now, share

    def value(self, now: float) -> float:
        """The accumulated delay."""
        return self.delay_s + max(0.0, now - self._at) * self._share

    def reaches_at(self, delay_s: float) -> float | None:
        """When the delay will be `delay_s` if the share stays; None: never."""
        missing = delay_s - self.delay_s
        if missing <= 0:
            return self._at
        return self._at + missing / self._share if self._share else None


class InteractiveReserve:
    """The share of the slots that belongs to interactive requests while there are any.

    `share`: of all slots (0 to 1).
    """

    def __init__(self, ledger: Ledger, queues: Queues) -> None:
        self.clock = DelayClock()
        self._ledger = ledger
        self._queues = queues
        self.interactive_at = float("-inf")  # the last arrival or end of an interactive request

    def traffic(self, now: float) -> bool:
        """Whether there is interactive traffic."""
        return self._ledger.interactive > 0 or now - self.interactive_at < CLAIM_S

    def lendable(self, share: float, now: float) -> int:
        """Slots that bulk requests and foreign sequences may have together."""
        slots, reserved = self._ledger.slots_total, self._reserved(share)
        if not reserved or not self.traffic(now):
            return slots
        in_use = self._ledger.interactive + self._queues.cost(_INTERACTIVE)
        return slots - min(reserved, in_use + max(1, int(SPARE_SHARE * reserved)))

    def bulk_capacity(self, limits: Limits, share: float, now: float) -> int:
        """The batch of both classes up to which bulk requests may fill the engine now."""
        ledger = self._ledger
        most = limits.mixed if self.traffic(now) else limits.bulk
        return min(most, self.lendable(share, now) + ledger.interactive, ledger.slots_total)

    def update_delay(self, limits: Limits, share: float, now: float) -> None:
        """Updates the delay clock; to be called before and after what changes the share."""
        if not self._queues.size(_BULK):
            self.clock.set_share(0.0, now)
            return
        ledger = self._ledger
        # Slots within the reserve, the smaller batch and sequential prefill delay no bulk request,
        # as long as bulk has the rest of them.
        alone = min(limits.mixed, ledger.slots_total - ledger.foreign) - self._reserved(share)
        left = self.bulk_capacity(limits, share, now) - ledger.foreign - ledger.interactive
        head = self._queues.head(_BULK)
        # A request larger than the slots of bulk waits for interactive traffic alone, forever.
        too_large = head is not None and head.request.cost > max(left, alone)
        stopped = too_large and self.traffic(now)
        taken = 1.0 if stopped else 1 - max(0, left) / max(1, alone)
        self.clock.set_share(min(1.0, max(0.0, taken)), now)

    def _reserved(self, share: float) -> int:
        return int(share * self._ledger.slots_total)

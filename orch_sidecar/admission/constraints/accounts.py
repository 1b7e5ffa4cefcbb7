"""The accounts behind the reserve: how long bulk requests are delayed, what they are owed, and what
idle slots cost.

Pure: times are seconds of a monotonic clock.
"""

from __future__ import annotations

from typing import Final

from orch_sidecar.admission.ledger import Ledger

ACCOUNT_S: Final = 60.0
IDLE_SHARE: Final = 0.03
IDLE_SAVED_S: Final = 30.0  # so that bursts may cost more for a while


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


class BulkGuarantee:
    """What bulk requests that wait have had less than their share, in slot-seconds.

    Earned while bulk requests wait, spent by all that run. While no interactive request contends,
    nothing is: a debt from then would keep bulk requests out when that changes.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.owed = 0.0
        self._ledger = ledger
        self._earning = 0.0  # slots: now, while bulk requests wait
        self._used = 0.0  # the ledger's sum, when it was last looked at
        self._at = 0.0

    def update(self, share: float, waiting: bool, contended: bool, now: float) -> None:
        """To be called before what changes these. `contended`: interactive requests have, or
        claim, some of the slots."""
        earned = self._earning * max(0.0, now - self._at)
        used_in_all = self._ledger.bulk_slot_s(now)
        used, self._used, self._at = used_in_all - self._used, used_in_all, now
        used = max(0.0, used)  # the sum begins anew with each start of the engine
        slots = share * self._ledger.slots_total
        self._earning = slots if waiting and contended else 0.0
        most = slots * ACCOUNT_S
        self.owed = min(most, max(-most / 2, self.owed + earned - used))
        if not contended:
            self.owed = 0.0

    def reaches_at(self, owed: float) -> float | None:
        """When that much will be owed if nothing changes; None: not before something does."""
        rate = self._earning - self._ledger.bulk
        return None if rate <= 0 else self._at + (owed - self.owed) / rate


class IdleAccount:
    """The tokens that reserved slots may cost while bulk requests wait for them.

    In seconds of the engine's whole throughput: a share of it is saved, what is idle is spent.
    """

    def __init__(self) -> None:
        self._saved = self._most = IDLE_SHARE * IDLE_SAVED_S
        self._spending = 0.0
        self._at = 0.0

    @property
    def left(self) -> float:
        """From 1 (nothing was spent of late) to 0 and below (more than may be)."""
        return self._saved / self._most

    def update(self, spending: float, now: float) -> None:
        """From now on idle slots cost `spending` of the tokens (0 to 1)."""
        saved = self._saved + (IDLE_SHARE - self._spending) * max(0.0, now - self._at)
        self._saved = min(self._most, saved)
        self._spending, self._at = spending, now

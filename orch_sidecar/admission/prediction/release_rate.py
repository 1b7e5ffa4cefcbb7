"""Measures how fast slots come free.

Pure: times are seconds of a monotonic clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from orch_sidecar.admission.types import EndedLease
from vllm_plugin.contracts.profile import ServiceClass

# Enough releases for a stable rate, recent enough to follow the load.
WINDOW_RELEASES: Final = 64
WINDOW_S: Final = 60.0

DEFAULT_RETRY_MS: Final = 1000  # before anything was measured
MIN_RETRY_MS: Final = 50
# With jitter of a quarter, below what clients heed (`LONGEST_RETRY_MS` of api.errors).
MAX_RETRY_MS: Final = 47_000


class ReleaseRate:
    """Slots released per second over the recent past."""

    def __init__(self) -> None:
        # When, and how many slots.
        self.releases: deque[tuple[float, int]] = deque(maxlen=WINDOW_RELEASES)

    def released(self, slots: int, now: float) -> None:
        self.releases.append((now, slots))

    def per_second(self, now: float) -> float | None:
        """Returns the slots per second; None until two releases are known."""
        recent = [(at, slots) for at, slots in self.releases if now - at <= WINDOW_S]
        if len(recent) < 2:
            return None
        # The first release starts the clock; the time since the last one counts as well.
        span = max(now - recent[0][0], 1e-3)
        return sum(slots for _, slots in recent[1:]) / span

    def retry_after_ms(self, slots_ahead: float, now: float) -> int:
        """Returns the milliseconds until `slots_ahead` slots come free at the measured rate."""
        rate = self.per_second(now)
        if not rate:
            return DEFAULT_RETRY_MS
        return int(min(max(1000 * slots_ahead / rate, MIN_RETRY_MS), MAX_RETRY_MS))


class ReleaseRates:
    """Slots released per second: of each class, and of all."""

    def __init__(self) -> None:
        self.all = ReleaseRate()
        self._of_class = tuple(ReleaseRate() for _ in ServiceClass)  # by rank

    def learn(self, ended: Iterable[EndedLease]) -> None:
        """Counts the slots of those that the engine served."""
        of_all, of_class = self.all.releases, self._of_class
        for lease, _, served, now in ended:
            if served:
                release = now, lease.cost
                of_all.append(release)
                if lease.request is not None:
                    of_class[lease.request.service_class.rank].releases.append(release)

    def of(self, service_class: ServiceClass) -> ReleaseRate:
        return self._of_class[service_class.rank]

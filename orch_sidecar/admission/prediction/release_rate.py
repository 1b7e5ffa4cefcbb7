"""Measures how fast slots come free, and how fast queued requests get them.

Pure: times are seconds of a monotonic clock.
"""

from __future__ import annotations

from collections import deque
from typing import Final

# Enough releases for a stable rate, recent enough to follow the load.
WINDOW_RELEASES: Final = 64
WINDOW_S: Final = 60.0

UNKNOWN_MS: Final = 1000  # before anything was measured
SHORTEST_MS: Final = 50
LONGEST_MS: Final = 60_000


# Starts of queued requests are counted over so long, and at least so many of them. Interactive
# requests come and go in waves of half a minute, for which a bulk one waits: over less than one of
# them the rate is that of a crest or of a trough.
STARTS_S: Final = 60.0
LEAST_STARTS: Final = 3
_SAMPLE_S: Final = 0.25


class StartRate:
    """Requests of a queue that started per second, while others waited in it."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()  # requests started in all, by then

    def per_second(self, started: int, waiting: bool, now: float) -> float | None:
        """The rate of late, to be called when a request is queued; None until enough started.

        `started`: in all. `waiting`: others are queued; else the rate is unknown from now on.
        """
        samples = self._samples
        if not waiting:
            samples.clear()
        if not samples or now - samples[-1][0] >= _SAMPLE_S:
            samples.append((now, started))
        while now - samples[0][0] > STARTS_S:
            samples.popleft()
        since, before = samples[0]
        if now <= since or started - before < LEAST_STARTS:
            return None
        return (started - before) / (now - since)


class ReleaseRate:
    """Slots released per second over the recent past."""

    def __init__(self) -> None:
        self._releases: deque[tuple[float, int]] = deque(maxlen=WINDOW_RELEASES)

    def released(self, slots: int, now: float) -> None:
        self._releases.append((now, slots))

    def per_second(self, now: float) -> float | None:
        """Slots per second; None until two releases are known."""
        recent = [(at, slots) for at, slots in self._releases if now - at <= WINDOW_S]
        if len(recent) < 2:
            return None
        # The first release starts the clock; the time since the last one counts as well.
        span = max(now - recent[0][0], 1e-3)
        return sum(slots for _, slots in recent[1:]) / span

    def retry_after_ms(self, slots_ahead: float, now: float) -> int:
        """Milliseconds until `slots_ahead` slots have come free at the measured rate."""
        rate = self.per_second(now)
        if not rate:
            return UNKNOWN_MS
        return int(min(max(1000 * slots_ahead / rate, SHORTEST_MS), LONGEST_MS))

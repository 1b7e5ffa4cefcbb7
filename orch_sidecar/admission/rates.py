"""How often requests come, and how many interactive ones there lately were at once.

Pure: times are seconds of a monotonic clock.
"""

from __future__ import annotations

from math import exp
from typing import Final

# An exponential average over 250 to 500 ms follows a burst, and outlives the gap in it.
AVERAGE_S: Final = 0.4
# Interactive traffic that paused for longer than that has no claim on its reserve any more.
CLAIM_S: Final = 10.0


class ArrivalRate:
    """Requests per second, by an exponential moving average."""

    one: Final = 1 / AVERAGE_S  # what one arrival adds at its moment

    def __init__(self) -> None:
        self._rate = 0.0
        self._at = 0.0

    def arrived(self, now: float) -> None:
        self._rate = self._rate * exp((self._at - now) / AVERAGE_S) + self.one
        self._at = now

    def per_second(self, now: float) -> float:
        return self._rate * exp((self._at - now) / AVERAGE_S)


class RecentPeak:
    """The largest of the values seen in the last CLAIM_S / 2 to CLAIM_S seconds."""

    def __init__(self) -> None:
        self._since = float("-inf")
        self._now = 0
        self._before = 0

    def saw(self, value: int, now: float) -> None:
        if now - self._since >= CLAIM_S / 2:
            self._turn(now)
        if value > self._now:
            self._now = value

    def value(self, now: float) -> int:
        self._turn(now)
        return max(self._now, self._before)

    def _turn(self, now: float) -> None:
        """Two halves of the window take turns."""
        passed = now - self._since
        if passed >= CLAIM_S / 2:
            self._before = self._now if passed < CLAIM_S else 0
            self._now = 0
            # From half to half, however late somebody looks.
            self._since = self._since + CLAIM_S / 2 if passed < CLAIM_S else now

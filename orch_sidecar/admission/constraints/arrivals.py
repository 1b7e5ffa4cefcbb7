"""How often requests come.

Pure: times are seconds of a monotonic clock.
"""

from __future__ import annotations

from math import exp
from typing import Final

# An exponential average over 250 to 500 ms follows a burst, and outlives the gap in it.
AVERAGE_S: Final = 0.4


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

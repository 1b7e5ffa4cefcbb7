"""Measures how many requests are refused for each that is served.

Pure: times are seconds of a monotonic clock. Where not all can be served, a long prompt takes the
place of several short ones. So a request must be in time with its own prompt counted several times
over: the more are refused, the more often. Without refusals each is counted once.
"""

from __future__ import annotations

from math import exp
from typing import Final

# Follows a change of the load within this time.
WINDOW_S: Final = 10.0
ROLL_S: Final = 0.25
# How often a prompt counts beyond once, for each request that is refused per one that is served;
# and at most, for it would keep long prompts out.
PER_REFUSED: Final = 4.0
MOST: Final = 4.0
# A refusal counts in full from this share of the slots that interactive requests have.
FULL_SHARE: Final = 0.25


class Pressure:
    """The load on one engine that its interactive requests put on it beyond what it can serve."""

    def __init__(self) -> None:
        self.again = 0.0  # how often a prompt counts beyond once
        self._new = 0.0  # refused since the last update
        self._refused = self._served = 0.0
        self._served_in_all = 0
        self._at = float("-inf")

    def refused(self, share: float) -> None:
        """A request was refused that would have missed its SLO. `share`: of the slots that its
        class has; where bulk requests hold nearly all, long prompts are not the cause."""
        self._new += min(1.0, share / FULL_SHARE)

    def update(self, served: int, now: float) -> float:
        """Returns how often a prompt counts beyond once. `served`: requests since the start."""
        passed_s = now - self._at
        if passed_s >= ROLL_S:
            kept = exp(-passed_s / WINDOW_S)
            self._refused = kept * self._refused + self._new
            self._served = kept * self._served + served - self._served_in_all
            self._at, self._new, self._served_in_all = now, 0.0, served
            self.again = min(MOST, PER_REFUSED * self._refused / (1 + self._served))
        return self.again

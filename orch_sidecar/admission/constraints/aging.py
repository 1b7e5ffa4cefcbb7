"""How long interactive requests have kept bulk ones waiting.

Pure: times are seconds of a monotonic clock. The clock runs while bulk requests wait, at the
share of their slots that interactive traffic takes from them (its reserve is not theirs): where
it takes a quarter, they are delayed by a second in four. So it shows how much longer a bulk
request has waited than it would have alone, whatever else it waits for; the one whose delay
reaches the bound goes next.
"""

from __future__ import annotations


class DelayClock:
    """Seconds of delay, since the beginning."""

    def __init__(self) -> None:
        self.delay_s = 0.0
        self._at = 0.0
        self._share = 0.0

    def turn(self, now: float, share: float) -> None:
        """From now on interactive traffic takes `share` (0 to 1) of what bulk could have."""
        self.delay_s += max(0.0, now - self._at) * self._share
        self._at, self._share = now, share

    def value(self, now: float) -> float:
        """What it shows."""
        return self.delay_s + max(0.0, now - self._at) * self._share

    def reaches_at(self, delay_s: float) -> float | None:
        """When it will show `delay_s` if nothing changes; None: never."""
        missing = delay_s - self.delay_s
        if missing <= 0:
            return self._at
        return self._at + missing / self._share if self._share else None

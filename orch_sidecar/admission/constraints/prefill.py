"""What else than slots and the KV cache is scarce: the engine's time for prompts.

Pure: times are seconds of a monotonic clock. Counts are tokens.
"""

from __future__ import annotations

from typing import Final

# Bulk prompts may keep the engine busy for so long while interactive requests wait or stream:
# a quarter of the time in which an interactive answer must begin, and never long enough for a
# reader to notice.
STALL_SHARE: Final = 0.25
LONGEST_STALL_S: Final = 0.5


class PrefillBudget:
    """Bulk prompts that the engine was given and has yet to read.

    Drains at the engine's measured rate; until that is known, one prompt at a time.
    """

    def __init__(self) -> None:
        self.tokens_per_s: float | None = None
        self._level = 0.0
        self._at = 0.0

    def begin_epoch(self) -> None:
        """Another engine: it was given nothing yet."""
        self._level = 0.0

    def granted(self, tokens: float, now: float) -> None:
        self._level = self._left(now) + tokens
        self._at = now

    def settled(self) -> None:
        """A bulk request ended: without a rate, this says that its prompt was read."""
        if self.tokens_per_s is None:
            self._level = 0.0

    def fits(self, tokens: float, stall_s: float, now: float) -> bool:
        """Whether a prompt may be admitted beside interactive requests; one always may."""
        left = self._left(now)
        rate = self.tokens_per_s
        return left <= 0 or (rate is not None and left + tokens <= rate * stall_s)

    def fits_at(self, tokens: float, stall_s: float, now: float) -> float | None:
        """When it will fit, at the latest; None while no rate is known."""
        rate = self.tokens_per_s
        if rate is None:
            return None
        left = self._left(now)
        return now + min(left, max(0.0, left + tokens - rate * stall_s)) / rate

    def _left(self, now: float) -> float:
        drained = (now - self._at) * (self.tokens_per_s or 0.0)
        return max(0.0, self._level - drained)


def stall_s(ttft_p95_ms: float | None) -> float:
    """For how long bulk prompts may keep the engine busy, by the interactive SLO."""
    if ttft_p95_ms is None:
        return LONGEST_STALL_S
    return min(LONGEST_STALL_S, STALL_SHARE * ttft_p95_ms / 1000)

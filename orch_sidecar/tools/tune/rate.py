"""Searches the largest rate that keeps the SLO, with few trials around a predicted one.

Pure. A trial keeps the SLO if 95 % of its requests do, as the SLOs of a profile are of the 95th
percentile.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Final

KEPT_SHARE: Final = 0.95
# From one trial to the next.
FACTOR: Final = 1.25
MOST_TRIALS: Final = 5
# Of the rate at which all slots are always full: below it queues stay short.
FIRST_SHARE: Final = 0.8
# Of a normal distribution, two-sided 95 %.
_Z: Final = 1.96


@dataclass(frozen=True, slots=True)
class Trial:
    """A rate that was tried, and how many of its requests met the SLO."""

    rate_per_s: float
    requests: int
    met: int

    @property
    def share(self) -> float:
        return self.met / self.requests if self.requests else 0.0

    @property
    def kept(self) -> bool:
        return self.share >= KEPT_SHARE

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval of the share of requests that would meet the SLO."""
        n, p = max(1, self.requests), self.share
        middle = (p + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
        half = _Z * sqrt(p * (1 - p) / n + _Z**2 / (4 * n * n)) / (1 + _Z**2 / n)
        return middle - half, middle + half


class RateBracket:
    """Finds a rate that keeps the SLO and one, FACTOR above it, that does not."""

    def __init__(self, first_per_s: float) -> None:
        """Raises ValueError for a rate that is not above 0."""
        if not first_per_s > 0:
            raise ValueError(f"the first rate is {first_per_s}: it must be above 0")
        self.next_per_s = first_per_s
        self.trials: list[Trial] = []

    @property
    def best(self) -> Trial | None:
        """The largest rate that kept the SLO, below all that did not."""
        missed = self.missed
        kept = [
            each
            for each in self.trials
            if each.kept and (missed is None or each.rate_per_s < missed.rate_per_s)
        ]
        return max(kept, key=lambda each: each.rate_per_s, default=None)

    @property
    def missed(self) -> Trial | None:
        """The smallest rate that did not keep it."""
        missed = [each for each in self.trials if not each.kept]
        return min(missed, key=lambda each: each.rate_per_s, default=None)

    @property
    def done(self) -> bool:
        return len(self.trials) >= MOST_TRIALS or (
            self.best is not None and self.missed is not None
        )

    def record(self, trial: Trial) -> None:
        """Records the trial at `next_per_s` and chooses the next rate."""
        self.trials.append(trial)
        self.next_per_s *= FACTOR if trial.kept else 1 / FACTOR

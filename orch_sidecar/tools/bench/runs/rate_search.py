"""Chooses the rates of trials that find the largest rate meeting an SLO (MLPerf Server)."""

from __future__ import annotations

from typing import Final

from orch_sidecar.tools.bench.results.result import Result, Trial

# MLPerf Server: the 99th percentile is within the bound.
KEPT_SHARE: Final = 0.99
# With fewer requests the 99th percentile is the slowest one, and a single outlier decides.
LEAST_REQUESTS: Final = 100
# The result is within this fraction of the largest rate.
PRECISION: Final = 0.05
MAX_TRIALS: Final = 24


class RateSearch:
    """Doubles the rate until the SLO is missed, then bisects.

    `best_per_s`: the largest rate so far that met the SLO, None without one.
    """

    def __init__(self, first_per_s: float, least_per_s: float = 0.0) -> None:
        """`least_per_s`: the lowest rate to try after the first one.

        Raises ValueError for a first rate that is not above 0.
        """
        if not first_per_s > 0:
            raise ValueError(f"the first rate is {first_per_s}: it must be above 0")
        self.next_per_s = first_per_s
        self.best_per_s: float | None = None
        self._least_per_s = least_per_s
        self.trials: list[Trial] = []
        self._missed_per_s: float | None = None

    @property
    def done(self) -> bool:
        """Whether the search has ended."""
        best, missed = self.best_per_s, self._missed_per_s
        if len(self.trials) >= MAX_TRIALS or self.too_slow:
            return True
        return best is not None and missed is not None and missed / best <= 1 + PRECISION

    @property
    def too_slow(self) -> bool:
        """Whether no rate met the SLO and the next one is below the lowest to try."""
        below = self.next_per_s < self._least_per_s
        return bool(self.trials) and self.best_per_s is None and below

    def record(self, result: Result) -> Trial:
        """Records the trial at `next_per_s` and chooses the next rate."""
        trial = Trial(
            rate_per_s=self.next_per_s,
            requests=len(result.calls),
            share=0.0 if result.goodput is None else result.goodput.share,
            kept=kept(result),
        )
        self.trials.append(trial)
        if trial.kept:
            self.best_per_s = self.next_per_s
        else:
            self._missed_per_s = self.next_per_s
        if self._missed_per_s is None:
            self.next_per_s *= 2
        elif self.best_per_s is None:
            self.next_per_s /= 2
        else:
            self.next_per_s = (self.best_per_s * self._missed_per_s) ** 0.5
        return trial


def kept(result: Result) -> bool:
    """Returns whether 99 % of all sent requests met the SLO; a rejected one did not."""
    return result.goodput is not None and (
        result.goodput.requests >= KEPT_SHARE * len(result.calls)
    )

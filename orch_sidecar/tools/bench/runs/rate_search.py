"""The largest rate at which an SLO is kept, found by trials (MLPerf Server).

Pure: told what became of each trial, it says what to try next.
"""

from __future__ import annotations

from typing import Final

from orch_sidecar.tools.bench.results.result import Result, Trial

# MLPerf Server: the 99th percentile is within the bound.
KEPT_SHARE: Final = 0.99
# Of fewer requests the 99th percentile is the slowest, and one that is late by chance decides.
LEAST_REQUESTS: Final = 100
# The answer is within so much of the largest rate, as far as trials can tell.
PRECISION: Final = 0.05
MOST_TRIALS: Final = 24


class RateSearch:
    """Doubles the rate until it is too much, then halves the interval.

    `best_per_s`: the largest that was kept so far, None if none was.
    """

    def __init__(self, first_per_s: float, least_per_s: float = 0.0) -> None:
        """`least_per_s`: no lower rate is tried, but for the first one.

        Raises ValueError for a rate that is not above 0.
        """
        if not first_per_s > 0:
            raise ValueError(f"the first rate to try must be above 0, not {first_per_s}")
        self.next_per_s = first_per_s
        self.best_per_s: float | None = None
        self._least_per_s = least_per_s
        self.trials: list[Trial] = []
        self._too_much_per_s: float | None = None

    @property
    def done(self) -> bool:
        """Whether no trial would say more."""
        best, too_much = self.best_per_s, self._too_much_per_s
        if len(self.trials) >= MOST_TRIALS or self.too_slow:
            return True
        return best is not None and too_much is not None and too_much / best <= 1 + PRECISION

    @property
    def too_slow(self) -> bool:
        """Whether none was kept, and what would be next is lower than is to be tried."""
        below = self.next_per_s < self._least_per_s
        return bool(self.trials) and self.best_per_s is None and below

    def tell(self, result: Result) -> Trial:
        """What became of the trial at `next_per_s`."""
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
            self._too_much_per_s = self.next_per_s
        if self._too_much_per_s is None:
            self.next_per_s *= 2
        elif self.best_per_s is None:
            self.next_per_s /= 2
        else:
            self.next_per_s = (self.best_per_s * self._too_much_per_s) ** 0.5
        return trial


def kept(result: Result) -> bool:
    """Whether a trial kept its SLO: at least 99 in 100 of all that were sent did.

    One that was refused has not kept it.
    """
    return result.goodput is not None and (
        result.goodput.requests >= KEPT_SHARE * len(result.calls)
    )

"""The samples that a percentile takes, and the length of a run that may be published, as MLPerf's.

Pure. A percentile of few samples is too low by chance as often as it is too high. MLPerf Inference
(rules, appendix "Early Stopping Criterion"; loadgen, SingleStream and MultiStream) therefore
publishes a value that is, with a confidence of 99 %, not below the true percentile.

If the true p-th percentile were above a value, each sample would exceed that value with a
probability of more than 1 - p. So t or fewer of n samples would exceed it with a probability of
less than the binomial distribution's B(t; n, 1 - p). With the largest t for which B is below 1 %
the estimate is the t-th largest sample: the t - 1 samples above it are discarded. MLPerf requires
t >= 1 and, in its formula, counts the estimate itself among the t that exceed.

Its tolerance is 0. Its own percentiles are of the nearest rank, those of `figures` interpolate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import count
from typing import Final

from orch_sidecar.tools.facts.tables.row import Label

CONFIDENCE: Final = 0.99
# MLPerf's minimum duration of a run.
MIN_DURATION_S: Final = 600.0
# The percentiles by which MLPerf Inference judges its scenarios SingleStream and Server.
_JUDGED_BY: Final = {Label.SINGLE_STREAM: 90, Label.BATCHED_ONLINE: 99}


def estimate(ordered: Sequence[float], percentile: float) -> float | None:
    """Returns the estimate of a percentile, 0 < percentile < 100, in the unit of the samples.

    `ordered`: the samples, ascending. None where they are fewer than `least_samples`.
    """
    over = allowed_over(len(ordered), percentile)
    return None if over == 0 else ordered[-over]


def allowed_over(samples: int, percentile: float) -> int:
    """Returns how many samples may lie at or above the estimate; 0 where there is none."""
    under = percentile / 100
    # Of the binomial distribution; as a logarithm, since the first terms are below any float.
    log_term, together, over = samples * math.log(under), 0.0, -1
    while together < 1 - CONFIDENCE:
        over += 1
        together += math.exp(log_term)
        log_term += math.log(max(1, samples - over) / (over + 1) * (1 - under) / under)
    return max(0, over - 1)


@cache
def least_samples(percentile: float) -> int:
    """Returns how many samples an estimate takes: 64 for the 90th percentile, 662 for the 99th."""
    return next(samples for samples in count(1) if allowed_over(samples, percentile))


# The fewest queries for which early stopping, MLPerf's test of a percentile, can give a value at
# all. No percentile is judged offline: MLPerf requires one query there, of 24 576 samples at least.
# A request is a sample here, and their number is not required: the duration is.
MIN_QUERIES: Final[Mapping[Label, int]] = {
    **{label: least_samples(at) for label, at in _JUDGED_BY.items()},
    Label.OFFLINE: 1,
}


def shortfalls(label: Label, queries: int, seconds: float) -> list[str]:
    """Returns what a valid measurement lacks for publication; with any it is preliminary."""
    minimum = MIN_QUERIES[label]
    missing = []
    if queries < minimum:
        at = f"{_JUDGED_BY[label]}th percentile"
        missing.append(f"{queries} queries, MLPerf's estimate of the {at} takes at least {minimum}")
    if seconds < MIN_DURATION_S:
        missing.append(f"{seconds:.1f} s, MLPerf's minimum duration is {MIN_DURATION_S:.0f} s")
    return missing

"""Estimates percentiles of few samples as MLPerf's early stopping does.

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
from collections.abc import Sequence
from typing import Final

CONFIDENCE: Final = 0.99

# The terms of a sum that are smaller than this share of it do not change a float.
_NEGLIGIBLE: Final = 1e-17


def estimate(ordered: Sequence[float], percentile: float) -> float | None:
    """Returns the estimate of a percentile, 0 < percentile < 100, in the unit of the samples.

    `ordered`: the samples, ascending. None where they are fewer than `least_samples`.
    """
    over = allowed_over(len(ordered), percentile)
    return None if over == 0 else ordered[-over]


def allowed_over(samples: int, percentile: float) -> int:
    """Returns how many samples may lie at or above the estimate; 0 where there is none."""
    _check(percentile)
    # The probability grows with the count, and is about a half at the expected count.
    low, high = 0, math.floor(samples * (1 - percentile / 100))
    while low < high:
        middle = (low + high + 1) // 2
        if _at_most(middle, samples, percentile) < 1 - CONFIDENCE:
            low = middle
        else:
            high = middle - 1
    return low


def least_samples(percentile: float) -> int:
    """Returns how many samples an estimate takes: 64 for the 90th percentile, 662 for the 99th."""
    _check(percentile)
    low, high = 1, 2
    while not allowed_over(high, percentile):
        low, high = high, 2 * high
    while low + 1 < high:
        middle = (low + high) // 2
        if allowed_over(middle, percentile):
            high = middle
        else:
            low = middle
    return high


def _at_most(count: int, samples: int, percentile: float) -> float:
    """Returns the probability that at most `count` of the samples exceed the percentile.

    `count`: at most the expected one, so that the terms of the sum fall towards 0.
    """
    under = percentile / 100
    over = 1 - under
    log_term = (
        math.lgamma(samples + 1)
        - math.lgamma(count + 1)
        - math.lgamma(samples - count + 1)
        + count * math.log(over)
        + (samples - count) * math.log(under)
    )
    term = total = math.exp(log_term)
    for number in range(count, 0, -1):
        term *= number / (samples - number + 1) * under / over
        total += term
        if term < _NEGLIGIBLE * total:
            break
    return total


def _check(percentile: float) -> None:
    if not 0 < percentile < 100:
        raise ValueError(f"the percentile {percentile} must be above 0 and below 100")

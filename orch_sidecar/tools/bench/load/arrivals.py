"""Arrival times of an open loop, which sends requests whether or not earlier ones were answered.

Times are ascending seconds from the start and depend on the seed alone. The first request arrives
one interval after the start, as in `vllm bench serve`. Unlike there, times are not rescaled so
that the last one falls exactly on requests / rate: that would change the distribution of the
intervals and the length of bursts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import accumulate, count
from random import Random
from typing import Final

# 80 MB of times. A mistyped rate, or bursts so large that time never advances, ends in an error
# instead of exhausting memory.
MAX_REQUESTS: Final = 10_000_000


def poisson(rate_per_s: float, seed: int) -> Iterator[float]:
    """Yields times with exponential intervals of mean 1/rate, as MLPerf's Server scenario; endless.

    Raises ValueError for a rate that is not above 0 and finite.
    """
    return gamma(rate_per_s, 1.0, seed)


def gamma(rate_per_s: float, burstiness: float, seed: int) -> Iterator[float]:
    """Yields times with gamma-distributed intervals of shape `burstiness` and mean 1/rate; endless.

    The same parameter as `vllm bench serve --burstiness`: 1 is Poisson, below 1 is burstier,
    above 1 more regular. The coefficient of variation of an interval is 1/sqrt(burstiness).

    Raises ValueError for a rate or a burstiness that is not above 0 and finite.
    """
    _check("rate", rate_per_s)
    _check("burstiness", burstiness)
    random = Random(f"{seed} arrivals")  # noqa: S311 (no secret)
    # Two divisions: the product of the divisors may underflow or overflow a float.
    return accumulate(
        random.gammavariate(burstiness, 1.0) / burstiness / rate_per_s for _ in count()
    )


def constant(rate_per_s: float) -> Iterator[float]:
    """Yields times with an interval of exactly 1/rate, the limit of `gamma`; endless.

    Raises ValueError for a rate that is not above 0 and finite.
    """
    _check("rate", rate_per_s)
    # Not a running sum: its rounding errors would add up over a million requests.
    return (number / rate_per_s for number in count(1))


def until(
    arrivals: Iterable[float], least_requests: int, least_seconds: float
) -> tuple[float, ...]:
    """Returns the shortest prefix with at least that many requests and that many seconds.

    Seconds count from the first arrival, where the measured window begins.

    Raises ValueError for fewer than one request, seconds that are negative or not finite,
    arrivals that end too early, and a schedule of more than MAX_REQUESTS.
    """
    if least_requests < 1:
        raise ValueError(f"requests is {least_requests}: it must be at least 1")
    if not (math.isfinite(least_seconds) and least_seconds >= 0):
        raise ValueError(f"seconds is {least_seconds}: it must be finite and at least 0")
    taken: list[float] = []
    for at in arrivals:
        if len(taken) == MAX_REQUESTS:
            raise ValueError(
                f"a schedule of {least_requests} requests and {least_seconds:g} s is too long: "
                f"{MAX_REQUESTS} requests, the limit, arrive within {at:g} s; lower the rate or "
                "the duration"
            )
        taken.append(at)
        if len(taken) >= least_requests and at - taken[0] >= least_seconds:
            return tuple(taken)
    raise ValueError(
        f"a schedule of {least_requests} requests and {least_seconds:g} s needs more arrivals: "
        f"they end after {len(taken)} requests and {taken[-1] if taken else 0.0:g} s"
    )


def _check(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} is {value}: it must be finite and above 0")

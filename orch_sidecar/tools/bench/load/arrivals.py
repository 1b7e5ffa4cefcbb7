"""When requests come in an open loop: whether or not those before them have been answered.

Pure. Times are seconds from the start, ascending, drawn from a seed: the same seed, the same
times. The first request comes one interval after the start, as with `vllm bench serve`. Unlike
there, drawn times are not stretched afterwards so that the last one comes exactly at requests
over rate: stretched intervals have another distribution, and bursts another length.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import accumulate, count
from random import Random
from typing import Final

# What a schedule may have: 80 MB of times. A rate mistyped, or bursts so large that no time ever
# passes, ends in an error and not in a full memory.
MOST_REQUESTS: Final = 10_000_000


def poisson(rate_per_s: float, seed: int) -> Iterator[float]:
    """Without end: intervals are exponential, with a mean of 1/rate, as in MLPerf's Server.

    Raises ValueError for a rate that is not above 0 and finite.
    """
    return gamma(rate_per_s, 1.0, seed)


def gamma(rate_per_s: float, burstiness: float, seed: int) -> Iterator[float]:
    """Without end: intervals have a gamma distribution of shape `burstiness` and mean 1/rate.

    So `vllm bench serve --burstiness` has it: 1 is Poisson, below come bursts, above it is more
    even. The coefficient of variation of an interval is 1/sqrt(burstiness).

    Raises ValueError for a rate or a burstiness that is not above 0 and finite.
    """
    _check("rate", rate_per_s)
    _check("burstiness", burstiness)
    random = Random(f"{seed} arrivals")  # noqa: S311 (no secret)
    # Divided one by one: their product may be too small or too large for a float.
    return accumulate(
        random.gammavariate(burstiness, 1.0) / burstiness / rate_per_s for _ in count()
    )


def constant(rate_per_s: float) -> Iterator[float]:
    """Without end: every interval is 1/rate: what `gamma` becomes of an endless burstiness.

    Raises ValueError for a rate that is not above 0 and finite.
    """
    _check("rate", rate_per_s)
    # Multiplied, not added up: after a million requests a sum would be off.
    return (number / rate_per_s for number in count(1))


def until(
    arrivals: Iterable[float], least_requests: int, least_seconds: float
) -> tuple[float, ...]:
    """The shortest beginning with so many requests, whose last one comes so long after the first.

    From the first arrival on a window counts: what passes before it is no part of it.

    Raises ValueError for fewer than one request, seconds that are negative or not finite,
    arrivals that end before, and a schedule of more than MOST_REQUESTS.
    """
    if least_requests < 1:
        raise ValueError(f"requests {least_requests}: must be at least 1")
    if not (math.isfinite(least_seconds) and least_seconds >= 0):
        raise ValueError(f"seconds {least_seconds}: must be at least 0, and finite")
    taken: list[float] = []
    for at in arrivals:
        if len(taken) == MOST_REQUESTS:
            raise ValueError(
                f"{least_requests} requests and {least_seconds:g} s at least: {MOST_REQUESTS} "
                f"requests come within {at:g} s, and a schedule must not have more"
            )
        taken.append(at)
        if len(taken) >= least_requests and at - taken[0] >= least_seconds:
            return tuple(taken)
    raise ValueError(
        f"{least_requests} requests and {least_seconds:g} s at least: the arrivals end after "
        f"{len(taken)} requests and {taken[-1] if taken else 0.0:g} s"
    )


def _check(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} {value}: must be above 0, and finite")

"""A family of samples, taken from all pools at the moment of a scrape.

Every family is given for all pools, at 0 where there is nothing yet, so that a rate can be taken
from the start; what is not known (no step time, no document) is left out, and never 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from orch_sidecar.pools.pool import Pool

Sample = tuple[Sequence[str], float | None]


@dataclass(frozen=True, slots=True)
class Family:
    """A family of samples, one or more for each pool; `pool` is always the first label."""

    name: str
    text: str
    samples: Callable[[Pool], Iterable[Sample]]
    labels: tuple[str, ...] = ()
    counts: bool = False  # a counter; else a gauge

    def collect(self, pools: Sequence[Pool]) -> Metric:
        """The family, as the library exposes it."""
        kind = CounterMetricFamily if self.counts else GaugeMetricFamily
        family = kind(self.name, self.text, labels=["pool", *self.labels])
        for pool in pools:
            for values, number in self.samples(pool):
                if number is not None:
                    family.add_metric([pool.name, *values], number)
        return family


def one(number: Callable[[Pool], float | None]) -> Callable[[Pool], Iterable[Sample]]:
    """The samples of a family that has one for each pool."""
    return lambda pool: [((), number(pool))]

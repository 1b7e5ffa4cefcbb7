"""Metric families that are sampled from all pools at a scrape.

Every family has samples of all pools, 0 before anything has happened, so that rates are correct
from the start. Unknown values (no step time, no report) have no sample, and are never 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from orch_sidecar.pools.pool import Pool

Sample = tuple[Sequence[str], float | None]


@dataclass(frozen=True, slots=True)
class Family:
    """A metric with one sample or more for each pool; `pool` is always its first label."""

    name: str
    text: str
    samples: Callable[[Pool], Iterable[Sample]]
    labels: tuple[str, ...] = ()
    counts: bool = False  # a counter; else a gauge

    def collect(self, pools: Sequence[Pool]) -> Metric:
        """Samples all pools. Returns the family for the library."""
        kind = CounterMetricFamily if self.counts else GaugeMetricFamily
        family = kind(self.name, self.text, labels=["pool", *self.labels])
        for pool in pools:
            for values, number in self.samples(pool):
                if number is not None:
                    family.add_metric([pool.name, *values], number)
        return family


def per_pool(number: Callable[[Pool], float | None]) -> Callable[[Pool], Iterable[Sample]]:
    """Makes the `samples` of a family with one sample for each pool."""
    return lambda pool: [((), number(pool))]

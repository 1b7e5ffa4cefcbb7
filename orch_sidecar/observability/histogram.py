"""A histogram with exemplars that costs one bisection per observation.

Knows buckets and exemplars; the library exposes it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.samples import Exemplar

# The id of a sampled trace, and when its value was observed: seconds of the wall clock.
Traced = tuple[int, float]


class Histogram:
    """Counts by bucket, each with its last value of a sampled trace as exemplar."""

    __slots__ = ("_buckets", "_counts", "_exemplars", "_sum")

    def __init__(self, buckets: tuple[float, ...]) -> None:
        """`buckets`: their upper bounds, ascending; a last one without bound is added."""
        # Comparing numbers of one type takes a third of the time.
        self._buckets = tuple(map(float, buckets))
        self._counts = [0] * (len(buckets) + 1)
        self._exemplars: dict[int, tuple[float, Traced]] = {}
        self._sum = 0.0

    def observe(self, value: float, traced: Traced | None) -> None:
        """Adds a value. `traced`: its trace if that is sampled."""
        at = bisect_left(self._buckets, value)
        self._counts[at] += 1
        self._sum += value
        if traced is not None:
            self._exemplars[at] = (value, traced)

    def observe_times(self, value: float, times: int) -> None:
        """Adds the same value `times` times."""
        self._counts[bisect_left(self._buckets, value)] += times
        self._sum += value * times

    def add_to(self, family: HistogramMetricFamily, labels: Mapping[str, str]) -> None:
        """Adds its samples to a family, with these labels."""
        total = 0
        bounds = [*map(str, self._buckets), "+Inf"]
        for at, (bound, total) in enumerate(zip(bounds, accumulate(self._counts), strict=True)):
            in_bucket = {**labels, "le": bound}
            exemplar = self._exemplar(at)
            family.add_sample(f"{family.name}_bucket", in_bucket, total, exemplar=exemplar)
        family.add_sample(f"{family.name}_count", dict(labels), total)
        family.add_sample(f"{family.name}_sum", dict(labels), self._sum)

    def _exemplar(self, at: int) -> Exemplar | None:
        found = self._exemplars.get(at)
        if found is None:
            return None
        value, (trace_id, at_s) = found
        return Exemplar({"trace_id": f"{trace_id:032x}"}, value, round(at_s, 3))

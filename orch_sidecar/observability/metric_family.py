"""Metric families that are sampled from each pool at a scrape, and their text.

Every family has samples of all pools, 0 before anything has happened, so that rates are correct
from the start. Unknown values (no step time, no report) have no sample, and are never 0. The text
is made pool by pool and without objects in between: a sidecar may have hundreds of pools, of some
hundred samples each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from orch_sidecar.engine_state.document import Document
from orch_sidecar.observability import exposition
from orch_sidecar.observability.exposition import Number, escaped
from orch_sidecar.observability.histogram import Histogram
from orch_sidecar.pools.pool import Pool
from orch_sidecar.pools.status import AdmissionStatus, PoolStatus

Sample = tuple[Sequence[str], Number | None]


class ScrapedPool(NamedTuple):
    """A pool at a scrape, and its status then."""

    pool: Pool
    status: PoolStatus

    @property
    def admission(self) -> AdmissionStatus:
        return self.status.admission

    @property
    def document(self) -> Document:
        return self.status.document


def scraped_pool(pool: Pool) -> ScrapedPool:
    """Returns a pool as it is now."""
    return ScrapedPool(pool, pool.status())


@dataclass(frozen=True)
class Family:
    """A metric with one sample or more for each pool; `pool` is always one of its labels.

    `private`: of clients, or of what they asked. `of_requests`: it counts clients' requests, or
    what they used: `measurement_type` is a label, too. `others`: values of these two labels and
    the samples of what no scraped pool has.
    """

    name: str
    text: str
    samples: Callable[[ScrapedPool], Iterable[Sample]]
    labels: tuple[str, ...] = ()
    counts: bool = False  # a counter; else a gauge
    info: bool = False  # constant 1; its labels are what it is for
    private: bool = False
    of_requests: bool = False
    others: Callable[[], Iterable[tuple[str, str, Iterable[Sample]]]] = tuple

    @property
    def _kind(self) -> str:
        if self.info:
            return exposition.INFO
        return exposition.COUNTER if self.counts else exposition.GAUGE

    @cached_property
    def _sample(self) -> tuple[str, list[int]]:
        """A sample in the form of a `%` operation, and the order of the labels in it."""
        labels = ["pool", "measurement_type", *self.labels]
        shown = [at for at, name in enumerate(labels) if self.of_requests or at != 1]
        order = sorted(shown, key=labels.__getitem__)
        inside = ",".join(f'{labels[at]}="%s"' for at in order)
        return f"{exposition.sample_name(self.name, self._kind)}{{{inside}}} %s\n", order

    def head(self, *, openmetrics: bool) -> str:
        head = exposition.head(self.name, self.text, self._kind, openmetrics=openmetrics)
        return head + "".join(self._lines(*other) for other in self.others())

    def lines(self, at: ScrapedPool, *, openmetrics: bool) -> str:
        pool = at.pool
        return self._lines(pool.name, pool.profile.measurement_type.value, self.samples(at))

    def _lines(self, pool: str, measurement_type: str, samples: Iterable[Sample]) -> str:
        text, (sample, order) = "", self._sample
        for values, number in samples:
            if number is not None:
                labels = (pool, measurement_type, *values)
                shown = [escaped(labels[place]) for place in order]
                text += sample % (*shown, exposition.number(number))
        return text


@dataclass(frozen=True, slots=True)
class HistogramFamily:
    """A metric with histograms of each pool, each by its labels."""

    name: str
    text: str
    histograms: Callable[[ScrapedPool], Iterable[tuple[Mapping[str, str], Histogram]]]
    unit: str = ""
    private: bool = False

    def head(self, *, openmetrics: bool) -> str:
        kind = exposition.HISTOGRAM
        return exposition.head(self.name, self.text, kind, self.unit, openmetrics=openmetrics)

    def lines(self, at: ScrapedPool, *, openmetrics: bool) -> str:
        return "".join(
            histogram.lines(self.name, labels, exemplars=openmetrics)
            for labels, histogram in self.histograms(at)
        )


# A family whose text is made pool by pool.
PoolFamily = Family | HistogramFamily


def per_pool(
    number: Callable[[ScrapedPool], Number | None],
) -> Callable[[ScrapedPool], Iterable[Sample]]:
    """Makes the `samples` of a family with one sample for each pool."""
    return lambda at: [((), number(at))]

"""Prometheus metrics: the pools' numbers as they are at the scrape, and what happened.

Label sets are closed: pools and routes of this sidecar, classes, outcomes, states. Nothing a
client sends becomes a label.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.process_collector import ProcessCollector

from orch_sidecar.exchange import Ending, Exchange
from orch_sidecar.pool import Pool
from orch_sidecar.readings import readings
from orch_sidecar.reasons import Reason
from vllm_plugin.profile import ServiceClass

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_WAIT_BUCKETS: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300,
)  # fmt: skip
_ERROR_BUCKETS: Final = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1, 2, 5)
_BULK: Final = ServiceClass.BULK

# Of a shorter wait, any prediction is off by a multiple.
_FORESEEABLE_S: Final = 0.1


class _Distribution:
    """A histogram that costs a request a bisection; the library exposes it."""

    __slots__ = ("_buckets", "_counts", "_sum")

    def __init__(self, buckets: tuple[float, ...]) -> None:
        self._buckets = buckets
        self._counts = [0] * (len(buckets) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._buckets, value)] += 1
        self._sum += value

    def add_to(self, family: HistogramMetricFamily, labels: list[str]) -> None:
        bounds = [*(str(float(bound)) for bound in self._buckets), "+Inf"]
        buckets = list(zip(bounds, accumulate(self._counts), strict=True))
        family.add_metric(labels, buckets, self._sum)


class _Served:
    """The requests of one class that a pool has admitted."""

    __slots__ = ("error", "first_byte", "wait")

    def __init__(self) -> None:
        self.wait = _Distribution(_WAIT_BUCKETS)
        self.first_byte = _Distribution(_WAIT_BUCKETS)
        self.error = _Distribution(_ERROR_BUCKETS)

    def admitted(self, exchange: Exchange, admitted: int) -> None:
        self.wait.observe((admitted - exchange.arrived) / 1e9)
        if exchange.queued is not None and exchange.predicted_start_ms is not None:
            waited_s = (admitted - exchange.queued) / 1e9
            if waited_s > _FORESEEABLE_S:
                self.error.observe(abs(exchange.predicted_start_ms / 1000 - waited_s) / waited_s)


_FAMILIES: Final = (
    (
        "wait",
        "orch_admission_wait_seconds",
        "Time from arrival to the slot, of admitted requests.",
    ),
    (
        "first_byte",
        "orch_time_to_first_byte_seconds",
        "Time from arrival to the first byte of the answer's body, of admitted requests.",
    ),
    (
        "error",
        "orch_prediction_error_ratio",
        "|predicted - actual wait| / actual wait, of admitted requests that waited over 100 ms.",
    ),
)


class _Collector:
    """A collector of what was served, and of how the pools are at the scrape."""

    def __init__(self, pools: Iterable[Pool], state_of: Callable[[Pool], str]) -> None:
        self._pools = tuple(pools)
        self._state_of = state_of
        # Interactive, bulk. Found by the pool's name, and not by a class: enums hash slowly.
        # Route, outcome, status. Not the outcome's value: enums take long to tell theirs.
        self.requests: dict[tuple[str, Ending | Reason, int], int] = {}
        self.served = {pool.name: (_Served(), _Served()) for pool in self._pools}
        self.coalesced = {pool.name: 0 for pool in self._pools}

    def collect(self) -> Iterable[Metric]:
        yield from readings(self._pools, self._state_of)
        for attribute, name, text in _FAMILIES:
            labels = ["pool", "class", "measurement_type"]
            family = HistogramMetricFamily(name, text, labels=labels)
            for pool in self._pools:
                for each in pool.classes:
                    served = self.served[pool.name][each is _BULK]
                    values = [pool.name, each.value, pool.profile.measurement_type.value]
                    distribution: _Distribution = getattr(served, attribute)
                    distribution.add_to(family, values)
            yield family
        labels = ["route", "outcome", "status"]
        requests = CounterMetricFamily(
            "orch_requests", "Requests by route, outcome and status.", labels=labels
        )
        for (route, outcome, status), count in self.requests.items():
            requests.add_metric([route, outcome.value, str(status)], count)
        yield requests
        coalesced = CounterMetricFamily(
            "orch_coalesced",
            "Requests that got the answer of another request's decode.",
            labels=["pool"],
        )
        for name, count in self.coalesced.items():
            coalesced.add_metric([name], count)
        yield coalesced
        tasks = len(asyncio.all_tasks())
        yield GaugeMetricFamily("orch_tasks", "Tasks on the event loop.", value=tasks)


class Metrics:
    """All metrics of one sidecar, in a registry of their own."""

    def __init__(self, pools: Iterable[Pool], state_of: Callable[[Pool], str]) -> None:
        self.registry = CollectorRegistry()
        collector = _Collector(pools, state_of)
        self._served = collector.served
        self._coalesced = collector.coalesced
        self.registry.register(collector)
        ProcessCollector(registry=self.registry)
        self._requests = collector.requests

    def finished(self, exchange: Exchange) -> None:
        """Counts an exchange that has ended."""
        key = (exchange.route, exchange.outcome, exchange.status)
        self._requests[key] = self._requests.get(key, 0) + 1
        if exchange.admitted is not None and exchange.cost and exchange.pool is not None:
            served = self._served[exchange.pool][exchange.service_class is _BULK]
            if not exchange.shared:
                served.admitted(exchange, exchange.admitted)
            elif exchange.coalesced:
                self._coalesced[exchange.pool] += 1
            if exchange.first_byte is not None:
                served.first_byte.observe((exchange.first_byte - exchange.arrived) / 1e9)

    def decoded(self, exchange: Exchange) -> None:
        """Counts a decode that several requests could share."""
        if exchange.admitted is not None and exchange.pool is not None:
            served = self._served[exchange.pool][exchange.service_class is _BULK]
            served.admitted(exchange, exchange.admitted)

    def text(self) -> bytes:
        return generate_latest(self.registry)

"""Prometheus metrics: the pools' numbers as they are at the scrape, and what happened.

Label sets are closed: pools and routes of this sidecar, classes, outcomes, states. Nothing a
client sends becomes a label.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.process_collector import ProcessCollector

from orch_sidecar.api.refusal import Reason
from orch_sidecar.observability.gen_ai import GenAi
from orch_sidecar.observability.histogram import Histogram, Traced
from orch_sidecar.observability.pool_metrics import readings
from orch_sidecar.observability.record import Outcome, RequestRecord
from orch_sidecar.pools.pool import Pool
from orch_sidecar.pools.registry import PoolRegistry
from vllm_plugin.profile import ServiceClass

_WAIT_BUCKETS: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300,
)  # fmt: skip
_ERROR_BUCKETS: Final = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1, 2, 5)
# Bound once: looking up a member of an enum is slow.
_BULK: Final = ServiceClass.BULK
_OK: Final = Outcome.OK

# Exchanges that are counted in a row: a few dozen microseconds of the event loop.
_IN_A_ROW: Final = 32

# Of a shorter wait, any prediction is off by a multiple.
_FORESEEABLE_S: Final = 0.1


class _Served:
    """The requests of one class that a pool has admitted."""

    __slots__ = ("error", "first_byte", "input_tokens", "output_tokens", "told", "untold", "wait")

    def __init__(self) -> None:
        self.wait = Histogram(_WAIT_BUCKETS)
        self.first_byte = Histogram(_WAIT_BUCKETS)
        self.error = Histogram(_ERROR_BUCKETS)
        self.input_tokens = self.output_tokens = 0
        self.told = self.untold = 0  # whole answers, by whether their output tokens are known

    def admitted(self, record: RequestRecord, admitted: int, traced: Traced | None) -> None:
        self.wait.observe((admitted - record.arrived) / 1e9, traced)
        if record.queued is not None and record.predicted_start_ms is not None:
            waited_s = (admitted - record.queued) / 1e9
            if waited_s > _FORESEEABLE_S:
                error = abs(record.predicted_start_ms / 1000 - waited_s) / waited_s
                self.error.observe(error, traced)

    def generated(self, record: RequestRecord) -> None:
        """The engine has ended an answer well; once for all requests that share it."""
        if record.output_tokens is None:
            self.untold += 1
        else:
            self.told += 1
            self.output_tokens += record.output_tokens
        if record.input_tokens is not None:
            self.input_tokens += record.input_tokens


_LABELS: Final = ("pool", "class", "measurement_type")
_DISTRIBUTIONS: Final = (
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
_TOKENS: Final = (
    (
        "input_tokens",
        "orch_input_tokens",
        "Tokens of the prompts of whole answers that told them, once for a shared decode.",
    ),
    (
        "output_tokens",
        "orch_output_tokens",
        "Tokens generated in whole answers that told them, once for a shared decode: "
        "orch_answers_total says how many answers told them.",
    ),
)


def _traced(record: RequestRecord, now: int) -> Traced | None:
    """Its trace if that is sampled, for an exemplar. `now`: of the monotonic clock, ns."""
    return (record.trace_id, record.at_ns(now) / 1e9) if record.trace_id else None


class _Collector:
    """A collector of what was served, and of how the pools are at the scrape."""

    def __init__(self, pools: PoolRegistry, state_of: Callable[[Pool], str]) -> None:
        self._pools = pools
        self._state_of = state_of
        # Interactive, bulk. Found by the pool's name, and not by a class: enums hash slowly.
        self.served: defaultdict[str, tuple[_Served, _Served]]
        self.served = defaultdict(lambda: (_Served(), _Served()))
        # Route, outcome, status. Not the outcome's value: enums take long to tell theirs.
        self.requests: dict[tuple[str, Outcome | Reason, int], int] = {}
        self.coalesced: Counter[str] = Counter()
        self.gen_ai = GenAi(
            lambda pool: pools[pool].profile.measurement_type.value,
            lambda pool, model: model in (pools[pool].follower.models or ()),
        )
        # Exchanges and when they ended, nanoseconds of the monotonic clock: not counted yet.
        self.ended: list[tuple[RequestRecord, int]] = []

    def catch_up(self) -> None:
        """Counts those that have ended."""
        ended = self.ended.copy()
        self.ended.clear()  # first: none is counted twice, nor stays for ever
        for record, now in ended:
            self._finished(record, now)

    def decoded(self, record: RequestRecord, now: int) -> None:
        """Counts a decode that was admitted, and that several requests could share."""
        assert record.admitted is not None
        traced = _traced(record, now)
        assert record.pool is not None
        served = self.served[record.pool][record.service_class is _BULK]
        served.admitted(record, record.admitted, traced)
        if record.outcome is _OK:
            served.generated(record)
            self.gen_ai.of(record).generated(record, now, traced)

    def _finished(self, record: RequestRecord, now: int) -> None:
        outcome, pool = record.outcome, record.pool
        key = (record.endpoint.path, outcome, record.status)
        self.requests[key] = self.requests.get(key, 0) + 1
        if not record.cost or pool is None:
            return
        traced = _traced(record, now)
        operation = self.gen_ai.of(record)
        operation.ended(record, now, traced)
        if record.admitted is None:
            return
        served = self.served[pool][record.service_class is _BULK]
        if not record.shared:
            served.admitted(record, record.admitted, traced)
            if outcome is _OK:
                served.generated(record)
                operation.generated(record, now, traced)
        elif record.coalesced:
            self.coalesced[pool] += 1
        if record.first_byte is not None:
            served.first_byte.observe((record.first_byte - record.arrived) / 1e9, traced)

    def collect(self) -> Iterable[Metric]:
        self.catch_up()
        yield from readings(self._pools.all, self._state_of)
        for attribute, name, text in _DISTRIBUTIONS:
            histogram = HistogramMetricFamily(name, text)
            for served, values in self._all_served():
                distribution: Histogram = getattr(served, attribute)
                distribution.add_to(histogram, dict(zip(_LABELS, values, strict=True)))
            yield histogram
        yield from self.gen_ai.collect()
        for attribute, name, text in _TOKENS:
            tokens = CounterMetricFamily(name, text, labels=_LABELS)
            for served, values in self._all_served():
                tokens.add_metric(values, getattr(served, attribute))
            yield tokens
        yield self._answers()
        yield self._requests()
        coalesced = CounterMetricFamily(
            "orch_coalesced",
            "Requests that got the answer of another request's decode.",
            labels=["pool"],
        )
        for pool in self._pools:
            coalesced.add_metric([pool.name], self.coalesced[pool.name])
        yield coalesced
        tasks = len(asyncio.all_tasks())
        yield GaugeMetricFamily("orch_tasks", "Tasks on the event loop.", value=tasks)

    def _all_served(self) -> Iterable[tuple[_Served, list[str]]]:
        """With the values of _LABELS."""
        for pool in self._pools:
            for each in pool.classes:
                values = [pool.name, each.value, pool.profile.measurement_type.value]
                yield self.served[pool.name][each is _BULK], values

    def _answers(self) -> Metric:
        answers = CounterMetricFamily(
            "orch_answers",
            "Whole answers of the engine, by whether it is known how many tokens were generated.",
            labels=[*_LABELS, "tokens"],
        )
        for served, values in self._all_served():
            answers.add_metric([*values, "known"], served.told)
            answers.add_metric([*values, "unknown"], served.untold)
        return answers

    def _requests(self) -> Metric:
        requests = CounterMetricFamily(
            "orch_requests",
            "Requests by route, outcome and status.",
            labels=["route", "outcome", "status"],
        )
        for (route, outcome, status), count in self.requests.items():
            requests.add_metric([route, outcome.value, str(status)], count)
        return requests


class Metrics:
    """All metrics of one sidecar, in a registry of their own."""

    def __init__(self, pools: PoolRegistry, state_of: Callable[[Pool], str]) -> None:
        self.registry = CollectorRegistry()
        self._collector = _Collector(pools, state_of)
        self._ended = self._collector.ended
        self.registry.register(self._collector)
        ProcessCollector(registry=self.registry)

    def finished(self, record: RequestRecord) -> None:
        """Counts an exchange that has ended, and changes no more.

        It only notes it: to count many in a row takes a third of the time.
        """
        ended = self._ended
        ended.append((record, time.monotonic_ns()))
        if len(ended) >= _IN_A_ROW:
            self._collector.catch_up()

    def decoded(self, record: RequestRecord) -> None:
        """Counts a decode that several requests could share."""
        if record.admitted is not None and record.pool is not None:
            self._collector.decoded(record, time.monotonic_ns())

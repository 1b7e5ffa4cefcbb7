"""Prometheus metrics: the ledger's numbers as they are at the scrape, and what happened.

Label sets are closed: routes of this sidecar, outcomes, states. Nothing a client sends becomes
a label.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.process_collector import ProcessCollector

from orch_sidecar.admission.core import Admission
from orch_sidecar.exchange import Exchange

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_WAIT_BUCKETS: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300,
)  # fmt: skip


class _Times:
    """A histogram of seconds that costs a request a bisection; the library exposes it."""

    def __init__(self, name: str, text: str, measurement_type: str) -> None:
        self._name, self._text, self._label = name, text, measurement_type
        self._counts = [0] * (len(_WAIT_BUCKETS) + 1)
        self._sum_s = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(_WAIT_BUCKETS, seconds)] += 1
        self._sum_s += seconds

    def collect(self) -> Iterable[Metric]:
        bounds = [*(str(float(bound)) for bound in _WAIT_BUCKETS), "+Inf"]
        buckets = list(zip(bounds, accumulate(self._counts), strict=True))
        family = HistogramMetricFamily(self._name, self._text, labels=["measurement_type"])
        family.add_metric([self._label], buckets, self._sum_s)
        yield family


class _Now:
    """A collector of what is true at the moment of the scrape."""

    def __init__(self, admission: Admission, state: Callable[[], str], states: Iterable[str]):
        self._admission = admission
        self._state = state
        self._states = tuple(states)

    def collect(self) -> Iterable[Metric]:
        ledger = self._admission.ledger
        for name, text, value in (
            ("orch_slots_total", "Slots of the engine (sequences).", ledger.slots_total),
            ("orch_slots_leased", "Slots given to requests.", ledger.leased),
            ("orch_slots_foreign", "Slots taken past this sidecar.", ledger.foreign),
            ("orch_queue_depth", "Requests waiting for a slot.", self._admission.queue_depth),
            (
                "orch_leases_closing",
                "Leases whose end the engine has yet to confirm.",
                len(ledger.closing()),
            ),
        ):
            yield GaugeMetricFamily(name, text, value=value)
        tasks = len(asyncio.all_tasks())
        yield GaugeMetricFamily("orch_tasks", "Tasks on the event loop.", value=tasks)
        yield CounterMetricFamily(
            "orch_oversubscription_violations",
            "Leases given, or sequences held by the engine, beyond the slots.",
            value=ledger.violations,
        )
        states = GaugeMetricFamily(
            "orch_engine_state", "1 for the state it is in.", labels=["state"]
        )
        now = self._state()
        for state in self._states:
            states.add_metric([state], float(state == now))
        yield states


class Metrics:
    """All metrics of one sidecar, in a registry of their own."""

    def __init__(
        self,
        admission: Admission,
        state: Callable[[], str],
        states: Iterable[str],
        measurement_type: str,
    ) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_Now(admission, state, states))
        ProcessCollector(registry=self.registry)
        self._requests = Counter(
            "orch_requests",
            "Requests by route, outcome and status.",
            ["route", "outcome", "status"],
            registry=self.registry,
        )
        self._wait = _Times(
            "orch_admission_wait_seconds",
            "Time from arrival to the slot, of admitted requests.",
            measurement_type,
        )
        self._first_byte = _Times(
            "orch_time_to_first_byte_seconds",
            "Time from arrival to the first byte of the answer's body, of admitted requests.",
            measurement_type,
        )
        self.registry.register(self._wait)
        self.registry.register(self._first_byte)
        self._known: dict[tuple[str, str, int], Counter] = {}

    def finished(self, exchange: Exchange) -> None:
        """Counts an exchange that has ended."""
        key = (exchange.route, exchange.outcome.value, exchange.status)
        counter = self._known.get(key)
        if counter is None:
            counter = self._known[key] = self._requests.labels(*map(str, key))
        counter.inc()
        if exchange.admitted is not None and exchange.cost:
            self._wait.observe((exchange.admitted - exchange.arrived) / 1e9)
            if exchange.first_byte is not None:
                self._first_byte.observe((exchange.first_byte - exchange.arrived) / 1e9)

    def text(self) -> bytes:
        return generate_latest(self.registry)

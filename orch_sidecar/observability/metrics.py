"""Prometheus metrics: the state of the pools at the scrape, and what happened to requests.

Another one of requests is a row in `request_metrics`. Label sets are closed: pools and
endpoints of this sidecar, classes, outcomes, states, names in the key file. No label is taken from
client data.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Final

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.process_collector import ProcessCollector

from orch_sidecar.observability.collector import Collector, KeyNames, ModelServerMetrics
from orch_sidecar.observability.exposition import (
    END,
    OPENMETRICS,
    TEXT,
    prefers_openmetrics,
    rendered,
)
from orch_sidecar.observability.metric_family import scraped_pool
from orch_sidecar.observability.recent import Ended, RecentRequests
from orch_sidecar.observability.record import RequestRecord
from orch_sidecar.observability.tracing import SpanCounts
from orch_sidecar.pools.registry import PoolRegistry

# Records that are counted at once: it blocks the event loop for a few dozen microseconds.
_BATCH_RECORDS: Final = 32

# How long a piece of the text may take.
PIECE_S: Final = 0.001


class Metrics:
    """All metrics of one sidecar. `registry`: for those that are not of pools."""

    def __init__(
        self,
        pools: PoolRegistry,
        spans: SpanCounts | None = None,
        key_names: KeyNames = dict,
    ) -> None:
        """`spans`: None if traces are not exported; their metrics are missing then. `key_names`:
        returns the names of the known API keys by their digests."""
        self.registry = CollectorRegistry()
        self._collector = Collector(pools, spans, key_names)
        self._ended = self._collector.ended
        self.registry.register(self._collector)
        self._model_server = CollectorRegistry()
        if pools.one is not None:
            model_server = ModelServerMetrics(pools.one)
            self._model_server.register(model_server)
            self.registry.register(model_server)
        ProcessCollector(registry=self.registry)
        self._pools = pools

    def exposition(self, accept: str, *, private: bool = True) -> tuple[AsyncIterator[bytes], str]:
        """Returns the text of all metrics in pieces, and its content type.

        `accept`: the Accept header, "" if absent. `private`: with the private ones. Hundreds of
        pools have megabytes of text: between the pieces, which take a millisecond each, the event
        loop runs.
        """
        openmetrics = prefers_openmetrics(accept)
        text = self._text(openmetrics=openmetrics, private=private)
        return text, OPENMETRICS if openmetrics else TEXT

    def model_server(self, accept: str) -> tuple[bytes, str]:
        """Returns the text of the metrics alone that endpoint pickers read, many times a second,
        and its content type."""
        openmetrics = prefers_openmetrics(accept)
        text = rendered(self._model_server, openmetrics=openmetrics)
        return (text + END, OPENMETRICS) if openmetrics else (text, TEXT)

    async def _text(self, *, openmetrics: bool, private: bool) -> AsyncIterator[bytes]:
        self._collector.catch_up()
        until, pools = time.monotonic() + PIECE_S, []
        for pool in self._pools.all:
            pools.append(scraped_pool(pool))
            if time.monotonic() > until:
                await asyncio.sleep(0)
                until = time.monotonic() + PIECE_S
        parts: list[str] = []
        for family in self._collector.families(pools):
            if family.private and not private:
                continue
            parts.append(family.head(openmetrics=openmetrics))
            for at in pools:
                parts.append(family.lines(at, openmetrics=openmetrics))
                if time.monotonic() > until:
                    yield "".join(parts).encode()
                    await asyncio.sleep(0)
                    parts, until = [], time.monotonic() + PIECE_S
        yield "".join(parts).encode()
        yield rendered(self.registry, openmetrics=openmetrics) + (END if openmetrics else b"")

    def log_to(self, log: Callable[[list[Ended]], None], dropped: Callable[[], int]) -> None:
        """Gives each record to a log, too, when it is counted. `dropped`: lines that were lost."""
        self._collector.log, self._collector.log_dropped = log, dropped

    def watch_key_file(self, error: Callable[[], str | None]) -> None:
        """Adds the metric of the file of API keys. `error`: why it cannot be used; None: it can."""
        gauge = Gauge(
            "orch_api_keys_error",
            "1 while the file of API keys cannot be used: the keys that were read before count. "
            "Only if one is configured.",
            registry=self.registry,
        )
        gauge.set_function(lambda: float(error() is not None))

    def catch_up(self) -> None:
        """Counts the records that have ended until now."""
        self._collector.catch_up()

    def request_ended(self, record: RequestRecord) -> None:
        """Counts a record that is complete.

        Only appends it: counting many records at once takes a third of the time.
        """
        ended = self._ended
        ended.append((record, time.monotonic_ns()))
        if len(ended) >= _BATCH_RECORDS:
            self._collector.catch_up()

    def recent(self) -> RecentRequests:
        """Returns the requests that ended last, up to this moment."""
        self._collector.catch_up()
        return self._collector.recent

    def generation_ended(self, record: RequestRecord) -> None:
        """Counts a generation that several requests could share; appends it, too."""
        if record.admitted is not None and record.pool is not None:
            self._collector.generations.append((record, time.monotonic_ns()))

"""Counts what happened to requests, and samples the pools at a scrape.

For Prometheus, and under vLLM's names for what chooses a pod among several.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import partial
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from orch_sidecar.admission.key_share import KeyShare
from orch_sidecar.api.refusal import Reason
from orch_sidecar.config.configuration import NO_TYPE
from orch_sidecar.engine_state.document import Document
from orch_sidecar.observability import engine_metrics, pool_metrics
from orch_sidecar.observability.exposition import Number
from orch_sidecar.observability.histogram import Traces
from orch_sidecar.observability.metric_family import (
    Family,
    HistogramFamily,
    PoolFamily,
    Sample,
    ScrapedPool,
    per_pool,
)
from orch_sidecar.observability.recent import Ended, RecentRequests
from orch_sidecar.observability.record import OK, Outcome, RequestRecord
from orch_sidecar.observability.request_metrics import (
    COUNTERS,
    GEN_AI_FAMILIES,
    HISTOGRAMS,
    ClassStats,
    GenAi,
    Labelled,
)
from orch_sidecar.observability.tracing import SpanCounts
from orch_sidecar.pools.pool import Pool
from orch_sidecar.pools.registry import PoolRegistry
from vllm_plugin.contracts.profile import INTERACTIVE, ServiceClass

_LABELS: Final = ("class", "key")


def key_families(names: Mapping[bytes, str]) -> Iterable[Family]:
    """Returns the families of the API keys' shares. `names`: of the known keys, by their digests.

    A key is labelled by the name of its entry: neither the key nor its digest appears.
    """

    def of_each(number: Callable[[KeyShare], Number]) -> Callable[[ScrapedPool], Iterable[Sample]]:
        return lambda at: [
            ([service_class.value, name], number(share))
            for service_class, name, share, _ in at.pool.queues.shares(names)
        ]

    return (
        Family(
            "orch_key_tokens",
            "Tokens of the key's requests that ended: prompt, and twice the generated.",
            of_each(lambda share: share.served),
            _LABELS,
            counts=True,
            private=True,
            of_requests=True,
        ),
        Family(
            "orch_key_queue_depth",
            "Queued requests of the key.",
            of_each(lambda share: len(share.queue)),
            _LABELS,
            private=True,
            of_requests=True,
        ),
        Family(
            "orch_key_running",
            "Requests of the key that have slots.",
            of_each(lambda share: share.running),
            _LABELS,
            private=True,
            of_requests=True,
        ),
    )


KeyNames = Callable[[], Mapping[bytes, str]]

# The label `pool` of requests for which none was chosen.
NO_POOL: Final = "none"

_WITHOUT_LORA: Final[dict[str, Any]] = {"adapters": (), "running": (), "waiting": ()}


def _traces(ended: Sequence[Ended]) -> Traces:
    """Returns what has the traces of records that are alike, as exemplars."""
    return ended if ended[0][0].trace_id else None


def _alike(ended: Iterable[Ended]) -> Iterable[list[Ended]]:
    """Divides records into groups that count in the same metrics and by the same labels."""
    groups: dict[tuple[object, ...], list[Ended]] = {}
    for each in ended:
        record = each[0]
        key = (
            record.pool, record.endpoint, record.outcome, record.status,
            record.service_class, record.model, record.cost > 0, record.stream, record.shared,
            record.coalesced, record.admitted is None, not record.trace_id,
        )  # fmt: skip
        group = groups.get(key)
        if group is None:
            groups[key] = [each]
        else:
            group.append(each)
    return groups.values()


def _span_metrics(spans: SpanCounts) -> Iterable[Metric]:
    yield CounterMetricFamily(
        "orch_spans_exported",
        "Spans that the collector accepted; only if traces are exported.",
        value=spans.exported,
    )
    dropped = CounterMetricFamily(
        "orch_spans_dropped",
        "Spans that did not reach the collector: more than the queue takes, undelivered until the "
        "export timed out, rejected by it, or invalid.",
        labels=["reason"],
    )
    for reason, count in spans.dropped.items():
        dropped.add_metric([reason], count)
    yield dropped


class Collector:
    """Collects what happened to requests, and the state of the pools at the scrape."""

    def __init__(self, pools: PoolRegistry, spans: SpanCounts | None, key_names: KeyNames) -> None:
        self._pools = pools
        self._key_names = key_names
        self._spans = spans
        # By name of the pool, and by the rank of the class.
        self.stats: defaultdict[str, tuple[ClassStats, ...]]
        self.stats = defaultdict(lambda: tuple(ClassStats() for _ in ServiceClass))
        # By name of the pool, None without one; by endpoint, outcome and status. Not by the
        # outcome's value, which is slow to look up.
        self.requests: defaultdict[str | None, dict[tuple[str, Outcome | Reason, int], int]]
        self.requests = defaultdict(dict)
        self.coalesced: Counter[str] = Counter()
        self.gen_ai = GenAi(
            lambda pool: pools[pool].profile.measurement_type.value,
            lambda pool, model: model in (pools[pool].watcher.models or ()),
        )
        self._of_requests = tuple(self._families_of_requests())
        self.ended: list[Ended] = []  # not counted yet
        self.generations: list[Ended] = []  # admitted ones that several requests could share
        self.log: Callable[[list[Ended]], None] | None = None
        self.log_dropped: Callable[[], int] | None = None
        self.recent = RecentRequests()

    def catch_up(self) -> None:
        """Counts the records that have ended."""
        ended = self.ended.copy()
        self.ended.clear()  # first, so that an error neither repeats nor keeps any of them
        self.recent.add(ended)
        if self.log is not None:
            self.log(ended)
        for group in _alike(ended):
            self._requests_ended(group)
        generations, self.generations = self.generations, []
        for group in _alike(generations):
            self._generations_ended(group, _traces(group))

    def _generations_ended(self, group: Sequence[Ended], traced: Traces) -> None:
        first = group[0][0]
        self._stats_of(first).generations_ended([record for record, _ in group], traced)
        if first.outcome is OK:
            self.gen_ai.of(first).generated(group, traced)

    def _requests_ended(self, group: Sequence[Ended]) -> None:
        first = group[0][0]
        key, pool = (first.endpoint.path, first.outcome, first.status), first.pool
        requests = self.requests[pool]
        requests[key] = requests.get(key, 0) + len(group)
        if not first.cost or pool is None:
            return
        traced = _traces(group)
        self.gen_ai.of(first).ended(group, traced)
        if first.admitted is None:
            return
        if not first.shared:
            self._generations_ended(group, traced)
        elif first.coalesced:
            self.coalesced[pool] += len(group)
        self._stats_of(first).requests_ended([record for record, _ in group], traced)

    def _stats_of(self, record: RequestRecord) -> ClassStats:
        of_class = record.service_class or INTERACTIVE
        return self.stats[record.pool or ""][of_class.rank]

    def families(self, pools: Iterable[ScrapedPool]) -> Iterable[PoolFamily]:
        """Returns the families whose text is made pool by pool. `pools`: those of this scrape."""
        yield from pool_metrics.FAMILIES
        yield from engine_metrics.FAMILIES
        yield from key_families(self._key_names())
        yield from self._of_requests
        yield Family(
            "orch_requests",
            "Requests by endpoint (route), outcome and status; pool and measurement_type are none "
            "where no pool was chosen.",
            lambda at: self._requests(at.pool.name),
            ("route", "outcome", "status"),
            counts=True,
            of_requests=True,
            others=partial(self._requests_elsewhere, {at.pool.name for at in pools}),
        )

    def collect(self) -> Iterable[Metric]:
        """Returns the other families, for the library."""
        self.catch_up()
        if self._spans is not None:
            yield from _span_metrics(self._spans)
        if self.log_dropped is not None:
            yield CounterMetricFamily(
                "orch_request_log_dropped",
                "Lines of the request log that could not be written, or not fast enough; only if "
                "there is one.",
                value=self.log_dropped(),
            )
        tasks = len(asyncio.all_tasks())
        yield GaugeMetricFamily("orch_tasks", "Tasks on the event loop.", value=tasks)

    def _families_of_requests(self) -> Iterable[PoolFamily]:
        for index, row in enumerate(HISTOGRAMS):
            yield HistogramFamily(row.name, row.text, partial(self._histograms, index))
        for name, text in GEN_AI_FAMILIES.items():
            histograms = partial(self._gen_ai_histograms, name)
            yield HistogramFamily(name, text, histograms, unit="seconds")
        for index, counter in enumerate(COUNTERS):
            totals = partial(self._totals, index)
            yield Family(
                counter.name, counter.text, totals, ("class",), counts=True, of_requests=True
            )
        yield Family(
            "orch_answers",
            "Complete answers of the engine, by whether their number of output tokens is known.",
            self._answers,
            ("class", "tokens"),
            counts=True,
            of_requests=True,
        )
        yield Family(
            "orch_coalesced",
            "Requests that were answered by the generation of another request.",
            per_pool(lambda at: self.coalesced[at.pool.name]),
            counts=True,
            of_requests=True,
        )

    def _stats_of_pool(self, at: ScrapedPool) -> Iterable[tuple[ClassStats, str]]:
        """Yields the statistics of its classes, each with its name."""
        for each in at.admission.classes:
            yield self.stats[at.pool.name][each.rank], each.value

    def _histograms(self, index: int, at: ScrapedPool) -> Iterable[Labelled]:
        kind = at.pool.profile.measurement_type.value
        for stats, name in self._stats_of_pool(at):
            labels = {"class": name, "measurement_type": kind, "pool": at.pool.name}
            yield labels, stats.histograms[index]

    def _gen_ai_histograms(self, name: str, at: ScrapedPool) -> Iterable[Labelled]:
        return self.gen_ai.histograms(name, at.pool.name)

    def _totals(self, index: int, at: ScrapedPool) -> Iterable[Sample]:
        for stats, name in self._stats_of_pool(at):
            yield [name], stats.totals[index]

    def _answers(self, at: ScrapedPool) -> Iterable[Sample]:
        for stats, name in self._stats_of_pool(at):
            yield [name, "known"], stats.with_usage
            yield [name, "unknown"], stats.without_usage

    def _requests(self, pool: str | None) -> Iterable[Sample]:
        for (route, outcome, status), count in self.requests.get(pool, {}).items():
            yield [route, outcome.value, str(status)], count

    def _requests_elsewhere(self, scraped: Set[str]) -> Iterable[tuple[str, str, Iterable[Sample]]]:
        """Returns those of no pool, and of pools that are gone."""
        for name in self.requests.keys() - scraped:
            kind = NO_TYPE if name is None else self._pools[name].profile.measurement_type.value
            yield name or NO_POOL, kind, self._requests(name)


class ModelServerMetrics:
    """Collects the metrics of the one pool of a sidecar, as those of a model server: by them
    endpoint pickers choose a pod.

    As the model server protocol of llm-d's router requires them, formerly that of the Gateway API
    inference extension:
    https://github.com/llm-d/llm-d-router/blob/main/docs/model-server-protocol.md
    https://github.com/kubernetes-sigs/gateway-api-inference-extension/tree/main/docs/proposals/003-model-server-protocol
    Requests wait here, and not in vLLM: a picker that read vLLM's own metrics would see no queue.

    A picker reads one sample of each family, whatever its labels (pkg/epp/framework/plugins/
    datalayer/extractor/metrics/spec.go): so there is one, and none for a sidecar of several pools.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def collect(self) -> Iterable[Metric]:
        """Yields all families that are known: those of the engine once it has reported."""
        pool = self._pool
        yield GaugeMetricFamily(
            "vllm:num_requests_waiting",
            "Requests that this sidecar queues for its engine.",
            value=pool.queues.urgent,
        )
        yield GaugeMetricFamily(
            "vllm:num_requests_running",
            "Sequences in the engine, those that bypass this sidecar included.",
            value=pool.ledger.leased + pool.ledger.foreign,
        )
        document = pool.watcher.document
        if document is None:
            return
        if "kv_cache_usage" in document:
            yield GaugeMetricFamily(
                "vllm:kv_cache_usage_perc",
                "Share of the engine's KV cache that is in use, 0 to 1.",
                value=document["kv_cache_usage"],
            )
        sizes = {group["block_tokens"] for group in document.get("kv_groups", ())}
        if len(sizes) == 1:  # layers with blocks of several sizes have no one size
            blocks = str(document.get("kv_blocks_total", 0))
            config = {"block_size": str(*sizes), "num_gpu_blocks": blocks}
            yield _labelled("vllm:cache_config_info", "The engine's KV cache.", config, 1)
        text = "LoRA adapters of requests that run, and that wait, and when this was so."
        queued = (ticket.request.adapter for ticket in pool.gate.waiting.values())
        lora = _lora(document, filter(None, queued))
        yield _labelled("vllm:lora_requests_info", text, lora, time.time())


def _lora(document: Document, queued_adapters: Iterable[str]) -> dict[str, str]:
    """Returns the labels by which a picker knows the adapters. Without LoRA there are none, and it
    is not missing: a picker would log that at every scrape."""
    lora = document.get("lora", _WITHOUT_LORA)
    return {
        "max_lora": str(document.get("features", {}).get("max_loras", 0)),
        "running_lora_adapters": ",".join(lora["running"]),
        "waiting_lora_adapters": ",".join(sorted({*queued_adapters, *lora["waiting"]})),
    }


def _labelled(name: str, text: str, labels: dict[str, str], value: float) -> Metric:
    family = GaugeMetricFamily(name, text, labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family

"""Metrics by which endpoint pickers choose a pod, under the names of vLLM.

As the model server protocol of llm-d's router requires them, formerly that of the Gateway API
inference extension:
https://github.com/llm-d/llm-d-router/blob/main/docs/model-server-protocol.md
https://github.com/kubernetes-sigs/gateway-api-inference-extension/tree/main/docs/proposals/003-model-server-protocol
Requests wait here, and not in vLLM: a picker that read vLLM's own metrics would see no queue.

A picker reads one sample of each family, whatever its labels (pkg/epp/framework/plugins/datalayer/
extractor/metrics/spec.go): so there is one, and none for a sidecar of several pools.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, Final

from prometheus_client.core import GaugeMetricFamily, Metric

from orch_sidecar.engine_state.document import Document
from orch_sidecar.pools.pool import Pool

_WITHOUT_LORA: Final[dict[str, Any]] = {"adapters": (), "running": (), "waiting": ()}


class ModelServerMetrics:
    """Collects the metrics of the one pool of a sidecar, as those of a model server."""

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

"""Prometheus metrics from the last reports of the engines.

Counters are those of the engine since its start: they are reset to 0 when it restarts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import fsum
from typing import Final

from orch_sidecar.engine_state import report
from orch_sidecar.observability.exposition import Number
from orch_sidecar.observability.histogram import Histogram
from orch_sidecar.observability.metric_family import (
    Family,
    HistogramFamily,
    PoolFamily,
    Sample,
    ScrapedPool,
    per_pool,
)

# An engine runs up to some hundreds of sequences at once.
_BATCH_BUCKETS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


def _reported(name: str) -> Callable[[ScrapedPool], Iterable[Sample]]:
    """Returns the samples of a number in the engine's report."""
    return per_pool(lambda at: at.document.get(name))


def _step_time(at: ScrapedPool) -> Iterable[Sample]:
    fit = report.step_time_of(at.document)
    if fit is not None and fit.good:
        yield ["t0_ms"], fit.t0_ms
        yield ["c_ms"], fit.c_ms
        yield ["alpha"], fit.alpha
        yield ["tokens"], fit.tokens
        yield ["traffic"], fit.traffic


def _prompt_tokens(at: ScrapedPool) -> Number | None:
    prefill: Mapping[str, Number] = at.document.get("prefill", {})
    return prefill.get("tokens")


def _prefix_cache(at: ScrapedPool) -> Mapping[str, Number]:
    found: Mapping[str, Number] = at.document.get("prefix_cache") or {}
    return found


def _age_s(at: ScrapedPool) -> float | None:
    age_ms = at.status.age_ms
    return None if age_ms is None else age_ms / 1000


def _decode_seconds(at: ScrapedPool) -> float | None:
    steps = report.decode_steps_of(at.document)
    return None if steps is None else fsum(seconds for _, _, seconds in steps)


def _batch_sizes(at: ScrapedPool) -> Iterable[tuple[Mapping[str, str], Histogram]]:
    steps = report.decode_steps_of(at.document)
    if steps is not None:
        sizes = Histogram(_BATCH_BUCKETS)
        for batch, count, _ in steps:
            sizes.observe_times(batch, count)
        yield {"pool": at.pool.name}, sizes


FAMILIES: Final[tuple[PoolFamily, ...]] = (
    Family(
        "orch_engine_state_age_seconds",
        "Time since the last report of the engine; it reports at least every second.",
        per_pool(_age_s),
    ),
    Family(
        "orch_step_time",
        "Measured step time of the engine, as t0_ms + c_ms * batch ** alpha; the tokens of a "
        "sequence in a step; and by which factor real traffic takes longer.",
        _step_time,
        ("parameter",),
    ),
    Family(
        "orch_prefill_tokens_per_second",
        "Measured prefill speed of the engine, prompt tokens per second.",
        _reported("prefill_tokens_per_s"),
    ),
    Family(
        "orch_kv_cache_usage_ratio",
        "Share of the engine's KV cache that is in use.",
        _reported("kv_cache_usage"),
    ),
    Family(
        "orch_engine_preemptions",
        "Sequences that the engine preempted because its KV cache was full.",
        _reported("preemptions_total"),
        counts=True,
    ),
    Family(
        "orch_engine_busy_seconds",
        "Time that the engine spent in steps.",
        _reported("busy_seconds_total"),
        counts=True,
    ),
    Family(
        "orch_engine_busy_ratio",
        "Fraction of the time between the last two heartbeats that the engine spent in steps.",
        per_pool(lambda at: at.status.busy_ratio),
    ),
    Family(
        "orch_decode_seconds",
        "Time that the engine spent in decode steps; orch_decode_batch_size_count is their number.",
        per_pool(_decode_seconds),
        counts=True,
    ),
    Family(
        "orch_engine_prompt_tokens",
        "Prompt tokens that the engine has processed.",
        per_pool(_prompt_tokens),
        counts=True,
    ),
    Family(
        "orch_engine_prefix_queries_tokens",
        "Prompt tokens that the engine looked up in its prefix cache.",
        per_pool(lambda at: _prefix_cache(at).get("queries_total")),
        counts=True,
        private=True,
    ),
    Family(
        "orch_engine_prefix_hits_tokens",
        "Prompt tokens that it found there; over those looked up: the hit ratio.",
        per_pool(lambda at: _prefix_cache(at).get("hits_total")),
        counts=True,
        private=True,
    ),
    Family(
        "orch_engine_generated_tokens",
        "Tokens that the engine has generated.",
        _reported("generated_tokens_total"),
        counts=True,
    ),
    HistogramFamily(
        "orch_decode_batch_size",
        "Sequences in each decode step, which is a step without prefill.",
        _batch_sizes,
    ),
)

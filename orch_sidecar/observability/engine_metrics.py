"""What engines said of themselves last, as Prometheus metrics.

Counts are the engine's own, since it started: they fall to 0 when it restarts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from prometheus_client.core import HistogramMetricFamily, Metric

from orch_sidecar.engine_state import report
from orch_sidecar.observability.histogram import Histogram
from orch_sidecar.observability.metric_family import Family, Sample, one
from orch_sidecar.pools.pool import Pool

# As slots are given out: an engine has up to some hundreds.
_BATCH_BUCKETS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


def engine_stats(pools: Sequence[Pool]) -> Iterable[Metric]:
    """All families."""
    for family in _FAMILIES:
        yield family.collect(pools)
    batches = HistogramMetricFamily(
        "orch_decode_batch_size",
        "Sequences in each decode step (one that reads no prompt); each of them gets a token.",
    )
    for pool in pools:
        steps = _decode_steps(pool)
        if steps is not None:
            sizes = Histogram(_BATCH_BUCKETS)
            for batch, count, _ in steps:
                sizes.observe_times(batch, count)
            sizes.add_to(batches, {"pool": pool.name})
    yield batches


def _said(name: str) -> Callable[[Pool], Iterable[Sample]]:
    """A number that the engine says."""
    return one(lambda pool: (pool.watcher.document or {}).get(name))


def _step_time(pool: Pool) -> Iterable[Sample]:
    fit = report.step_time_of(pool.watcher.document or {})
    if fit is not None:
        yield ["t0_ms"], fit.t0_ms
        yield ["c_ms"], fit.c_ms
        yield ["alpha"], fit.alpha
        yield ["tokens"], fit.tokens


def _prompt_tokens(pool: Pool) -> float | None:
    prefill: Mapping[str, float] = (pool.watcher.document or {}).get("prefill", {})
    return prefill.get("tokens")


def _age_s(pool: Pool) -> float | None:
    age_ms = pool.snapshot().age_ms
    return None if age_ms is None else age_ms / 1000


def _decode_steps(pool: Pool) -> list[tuple[int, int, float]] | None:
    return report.decode_steps_of(pool.watcher.document or {})


def _decode_seconds(pool: Pool) -> float | None:
    steps = _decode_steps(pool)
    return None if steps is None else sum(seconds for _, _, seconds in steps)


_FAMILIES: Final = (
    Family(
        "orch_engine_state_age_seconds",
        "Time since the engine was last heard of; it says something every second at least.",
        one(_age_s),
    ),
    Family(
        "orch_step_time",
        "The engine's measured step time: t0_ms + c_ms * batch ** alpha, for so many tokens of "
        "each sequence.",
        _step_time,
        ("parameter",),
    ),
    Family(
        "orch_prefill_tokens_per_second",
        "Prompt tokens that the engine reads per second, measured.",
        _said("prefill_tokens_per_s"),
    ),
    Family(
        "orch_engine_preemptions",
        "Sequences that the engine took out of its batch for want of KV cache.",
        _said("preemptions_total"),
        counts=True,
    ),
    Family(
        "orch_engine_busy_seconds",
        "Time the engine spent in steps.",
        _said("busy_seconds_total"),
        counts=True,
    ),
    Family(
        "orch_engine_busy_ratio",
        "Share of the time between the last two heartbeats that the engine spent in steps.",
        one(lambda pool: pool.watcher.busy_ratio),
    ),
    Family(
        "orch_decode_seconds",
        "Time the engine spent in decode steps; by orch_decode_batch_size_count, their duration.",
        one(_decode_seconds),
        counts=True,
    ),
    Family(
        "orch_engine_prompt_tokens",
        "Prompt tokens that the engine has read.",
        one(_prompt_tokens),
        counts=True,
    ),
    Family(
        "orch_engine_generated_tokens",
        "Tokens that the engine has generated.",
        _said("generated_tokens_total"),
        counts=True,
    ),
)

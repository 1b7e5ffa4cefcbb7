"""What the pools' numbers are at the moment of a scrape, as Prometheus metrics: admission's.

What engines say of themselves is in `engine_stats`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from prometheus_client.core import InfoMetricFamily, Metric

from orch_sidecar.admission.draining import OrderedBy
from orch_sidecar.admission.types import BlockedBy
from orch_sidecar.engine_state.states import EngineState
from orch_sidecar.observability.engine_metrics import engine_stats
from orch_sidecar.observability.metric_family import Family, Sample, one
from orch_sidecar.pools.pool import Pool
from orch_sidecar.pools.snapshot import BatchingStats, batching_stats


def readings(pools: Sequence[Pool], state_of: Callable[[Pool], str]) -> Iterable[Metric]:
    """All families. `state_of`: an EngineState of each pool."""
    yield _info(pools)
    for family in _FAMILIES:
        yield family.collect(pools)
    yield Family(
        "orch_engine_state",
        "1 for the state it is in.",
        lambda pool: [([each], float(each == state_of(pool))) for each in EngineState],
        ("state",),
    ).collect(pools)
    yield from engine_stats(pools)


def _info(pools: Sequence[Pool]) -> Metric:
    """How the pools batch: to be joined with what is told by `pool` alone."""
    info = InfoMetricFamily("orch_pool", "1; what a pool is.", labels=["pool"])
    for pool in pools:
        profile = pool.profile
        what = {"profile": profile.name, "measurement_type": profile.measurement_type.value}
        info.add_metric([pool.name], what)
    return info


def _stats(name: str) -> Callable[[Pool], Iterable[Sample]]:
    def number(pool: Pool) -> float | None:
        value: float | None = getattr(batching_stats(pool.watcher.document, pool.status()), name)
        return value

    assert name in BatchingStats.__dataclass_fields__
    return one(number)


def _admissions(pool: Pool) -> Iterable[Sample]:
    status = pool.gate.status()
    yield from (([each.value, "admitted"], status.of(each).granted) for each in pool.classes)
    for (each, outcome), count in sorted(pool.not_admitted.items()):
        yield [each.value, outcome], count


def _drained_by(pool: Pool) -> OrderedBy | None:
    drain = pool.gate.draining
    return None if drain is None else drain.ordered_by


_FAMILIES: Final = (
    Family(
        "orch_slots_total",
        "Slots of the engine (sequences).",
        one(lambda pool: pool.gate.slots_total),
    ),
    Family(
        "orch_slots_leased",
        "Slots given to requests.",
        one(lambda pool: pool.gate.status().leased),
    ),
    Family(
        "orch_slots_leased_by_class",
        "Slots given to requests of the class.",
        lambda pool: [([each.value], pool.gate.status().of(each).leased) for each in pool.classes],
        ("class",),
    ),
    Family(
        "orch_slots_foreign",
        "Slots taken past this sidecar.",
        one(lambda pool: pool.gate.status().foreign),
    ),
    Family(
        "orch_leases",
        "Leases that are out, each for one request and all of its sequences.",
        one(lambda pool: pool.gate.status().leases),
    ),
    Family(
        "orch_kv_blocks_committed",
        "Blocks that leases will have in the KV cache at their ends, as far as is known.",
        one(lambda pool: pool.gate.status().kv_committed),
    ),
    Family(
        "orch_queue_depth",
        "Requests waiting for a slot.",
        lambda pool: [([each.value], pool.gate.status().of(each).queued) for each in pool.classes],
        ("class",),
    ),
    Family(
        "orch_queue_hold",
        "1 for what the head of the queue waits for.",
        lambda pool: [
            ([each.value], float(pool.gate.status().blocked_by is each)) for each in BlockedBy
        ],
        ("reason",),
    ),
    Family(
        "orch_batch_limit",
        "Sequences at once, for the class.",
        lambda pool: [
            ([each.value], pool.gate.status().limits.batch(each)) for each in pool.classes
        ],
        ("class",),
    ),
    Family(
        "orch_window_ms",
        "Time to gather bulk requests in before a batch begins, milliseconds; 0: none is gathered.",
        one(lambda pool: pool.gate.status().limits.window_ms),
    ),
    Family(
        "orch_windows",
        "Times that requests were held to gather a batch.",
        one(lambda pool: pool.gate.status().windows),
        counts=True,
    ),
    Family(
        "orch_window_seconds",
        "Time for which requests were held to gather a batch, from the first of each to its end.",
        one(lambda pool: pool.gate.status().windows_s),
        counts=True,
    ),
    Family(
        "orch_leases_closing",
        "Leases whose end the engine has yet to confirm.",
        one(lambda pool: len(pool.gate.closing())),
    ),
    Family(
        "orch_leases_orphaned",
        "Leases that no live request owned, and that were revoked.",
        one(lambda pool: pool.gate.orphans),
        counts=True,
    ),
    Family(
        "orch_drain",
        "1 for who has the pool drain, 0 for others.",
        lambda pool: [([each.value], float(_drained_by(pool) is each)) for each in OrderedBy],
        ("ordered_by",),
    ),
    Family(
        "orch_drain_started_timestamp_seconds",
        "Unix time since which the pool drains.",
        one(lambda pool: None if (drain := pool.gate.draining) is None else drain.since_s),
    ),
    Family(
        "orch_oversubscription_violations",
        "Leases given, or sequences held by the engine, beyond the slots.",
        one(lambda pool: pool.gate.status().violations),
        counts=True,
    ),
    Family(
        "orch_admissions",
        "What became of those who asked for a slot: admitted, or why not.",
        _admissions,
        ("class", "outcome"),
        counts=True,
    ),
    Family("orch_batching_batches", "Decode steps.", _stats("total_batches"), counts=True),
    Family(
        "orch_batching_requests",
        "Requests given to the engine by this sidecar.",
        _stats("total_requests"),
        counts=True,
    ),
    Family(
        "orch_batching_avg_batch_size",
        "Mean sequences per decode step.",
        _stats("avg_batch_size"),
    ),
    Family(
        "orch_batching_avg_batch_duration_ms",
        "Mean duration of a decode step, milliseconds.",
        _stats("avg_batch_duration_ms"),
    ),
    Family("orch_batching_queue_depth", "Requests waiting for a slot.", _stats("queue_depth")),
    Family("orch_batching_max_batch_size", "Sequences at once.", _stats("max_batch_size")),
    Family(
        "orch_batching_max_wait_ms",
        "Longest time to gather a batch in, milliseconds.",
        _stats("max_wait_ms"),
    ),
)

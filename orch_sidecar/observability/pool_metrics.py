"""Prometheus metrics of the pools' admission, sampled at a scrape.

The engines' own metrics are in `engine_metrics`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from prometheus_client.core import InfoMetricFamily, Metric

from orch_sidecar.admission.draining import OrderedBy
from orch_sidecar.admission.types import BlockedBy
from orch_sidecar.engine_state.states import EngineState
from orch_sidecar.observability.engine_metrics import engine_metrics
from orch_sidecar.observability.metric_family import Family, Sample, per_pool
from orch_sidecar.pools.pool import Pool, PrefixUse
from orch_sidecar.pools.snapshot import BatchingStats, batching_stats


def pool_metrics(pools: Sequence[Pool]) -> Iterable[Metric]:
    """Yields all families."""
    yield _info(pools)
    for family in _FAMILIES:
        yield family.collect(pools)
    yield from engine_metrics(pools)


def _info(pools: Sequence[Pool]) -> Metric:
    """Returns labels of the pools, to join with metrics that have only the label `pool`."""
    info = InfoMetricFamily(
        "orch_pool",
        "Constant 1 with the profile and the measurement type of a pool as labels.",
        labels=["pool"],
    )
    for pool in pools:
        profile = pool.profile
        labels = {"profile": profile.name, "measurement_type": profile.measurement_type.value}
        info.add_metric([pool.name], labels)
    return info


def _stats(name: str) -> Callable[[Pool], Iterable[Sample]]:
    def number(pool: Pool) -> float | None:
        value: float | None = getattr(batching_stats(pool.watcher.document, pool.status()), name)
        return value

    assert name in BatchingStats.__dataclass_fields__
    return per_pool(number)


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
        "Slots of the engine, each for one sequence.",
        per_pool(lambda pool: pool.gate.slots_total),
    ),
    Family(
        "orch_slots_leased",
        "Slots leased to requests.",
        per_pool(lambda pool: pool.gate.status().leased),
    ),
    Family(
        "orch_slots_leased_by_class",
        "Slots leased to requests of the class.",
        lambda pool: [([each.value], pool.gate.status().of(each).leased) for each in pool.classes],
        ("class",),
    ),
    Family(
        "orch_slots_foreign",
        "Slots used by requests that bypassed this sidecar.",
        per_pool(lambda pool: pool.gate.status().foreign),
    ),
    Family(
        "orch_slots_free",
        "Slots that the next request of the class would get now.",
        lambda pool: [([each.value], pool.gate.status().of(each).free) for each in pool.classes],
        ("class",),
    ),
    Family(
        "orch_slots_reserved",
        "Slots reserved for interactive requests, those that they use included.",
        per_pool(lambda pool: pool.gate.status().reserved),
    ),
    Family(
        "orch_slots_idle",
        "Reserved slots that are free while bulk requests wait for them.",
        per_pool(lambda pool: pool.gate.status().idle),
    ),
    Family(
        "orch_effective_capacity",
        "Sequences at once that keep the SLO of the time per token.",
        per_pool(lambda pool: pool.gate.status().effective_capacity),
    ),
    Family(
        "orch_demand_slots",
        "Slots that the requests of the class ask for, those that are refused included.",
        lambda pool: [([each.value], pool.gate.status().of(each).demand) for each in pool.classes],
        ("class",),
    ),
    Family(
        "orch_demand_ratio",
        "Slots that are asked for over those that can be served within the SLOs; 1 is full.",
        per_pool(lambda pool: pool.gate.status().demand_ratio),
    ),
    Family(
        "orch_leases",
        "Active leases, each for all sequences of one request.",
        per_pool(lambda pool: pool.gate.status().leases),
    ),
    Family(
        "orch_kv_blocks_committed",
        "KV cache blocks that the active leases are expected to use when they end.",
        per_pool(lambda pool: pool.gate.status().kv_committed),
    ),
    Family(
        "orch_queue_depth",
        "Queued requests.",
        lambda pool: [([each.value], pool.gate.status().of(each).queued) for each in pool.classes],
        ("class",),
    ),
    Family(
        "orch_queue_hold",
        "1 for the constraint that blocks the head of the queue, 0 for all others.",
        lambda pool: [
            ([each.value], float(pool.gate.status().blocked_by is each)) for each in BlockedBy
        ],
        ("reason",),
    ),
    Family(
        "orch_batch_limit",
        "Most sequences at once for the class.",
        lambda pool: [
            ([each.value], pool.gate.status().limits.batch(each)) for each in pool.classes
        ],
        ("class",),
    ),
    Family(
        "orch_engine_sidecars",
        "Sidecars that read the engine's state, this one included.",
        per_pool(lambda pool: pool.gate.offers.sidecars),
    ),
    Family(
        "orch_engine_rejections",
        "Requests that the engine had no slot for, and that were queued again.",
        per_pool(lambda pool: pool.gate.offers.rejections),
        counts=True,
    ),
    Family(
        "orch_leases_closing",
        "Released leases whose end the engine has not confirmed yet.",
        per_pool(lambda pool: len(pool.gate.closing())),
    ),
    Family(
        "orch_leases_orphaned",
        "Leases that were revoked because no request owned them.",
        per_pool(lambda pool: pool.gate.orphans),
        counts=True,
    ),
    Family(
        "orch_drain",
        "1 for what ordered the current drain of the pool, 0 for all others.",
        lambda pool: [([each.value], float(_drained_by(pool) is each)) for each in OrderedBy],
        ("ordered_by",),
    ),
    Family(
        "orch_drain_started_timestamp_seconds",
        "Unix time at which the current drain of the pool began.",
        per_pool(lambda pool: None if (drain := pool.gate.draining) is None else drain.since_s),
    ),
    Family(
        "orch_oversubscription_violations",
        "Times that leases, or sequences in the engine, exceeded the slots.",
        per_pool(lambda pool: pool.gate.status().violations),
        counts=True,
    ),
    Family(
        "orch_admissions",
        "Requests for a slot by outcome: admitted, or the reason of the refusal.",
        _admissions,
        ("class", "outcome"),
        counts=True,
    ),
    Family(
        "orch_refusals_beside_bulk",
        "Interactive requests refused while bulk requests had more than their share of the slots.",
        per_pool(lambda pool: pool.gate.status().refused_beside_bulk),
        counts=True,
    ),
    Family(
        "orch_reclaims",
        "Bulk requests, unseen by their clients, that gave their slots back and were queued again.",
        per_pool(lambda pool: pool.gate.status().reclaimed),
        counts=True,
    ),
    Family(
        "orch_prefix_placements",
        "Requests that were placed among several pools, by whether this one last served the "
        "beginning of their prompts (hit), another one did (moved), or none (new).",
        lambda pool: [([each.value], pool.by_prefix[each]) for each in PrefixUse],
        ("prefix",),
        counts=True,
    ),
    Family("orch_batching_batches", "Decode steps.", _stats("total_batches"), counts=True),
    Family(
        "orch_batching_requests",
        "Requests that this sidecar dispatched to the engine.",
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
    Family("orch_batching_queue_depth", "Queued requests.", _stats("queue_depth")),
    Family("orch_batching_max_batch_size", "Most sequences at once.", _stats("max_batch_size")),
    Family(
        "orch_batching_max_wait_ms",
        "Longest time for which a batch is gathered, milliseconds: none is.",
        _stats("max_wait_ms"),
    ),
    Family(
        "orch_engine_state",
        "1 for the current state of the engine, 0 for all others.",
        lambda pool: [([each], float(each is pool.state)) for each in EngineState],
        ("state",),
    ),
)

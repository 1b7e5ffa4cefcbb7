"""Prometheus metrics of the pools' admission, sampled at a scrape.

The engines' own metrics are in `engine_metrics`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from orch_sidecar.admission.availability import OrderedBy
from orch_sidecar.engine_state.states import PoolState
from orch_sidecar.observability.exposition import Number
from orch_sidecar.observability.metric_family import Family, Sample, ScrapedPool, per_pool
from orch_sidecar.observability.record import CANCELLED
from orch_sidecar.pools.routing import PrefixUse
from orch_sidecar.pools.status import BatchingStats, ClassStatus


def _info(at: ScrapedPool) -> Iterable[Sample]:
    """Returns the labels of the pool, to join with metrics that have only the label `pool`."""
    profile = at.pool.profile
    yield [profile.name, profile.measurement_type.value], 1


def _stats(name: str) -> Callable[[ScrapedPool], Iterable[Sample]]:
    def number(at: ScrapedPool) -> Number | None:
        value: Number | None = getattr(at.status.batching, name)
        return value

    assert name in BatchingStats.__dataclass_fields__
    return per_pool(number)


def _admissions(at: ScrapedPool) -> Iterable[Sample]:
    gate = at.pool.gate
    yield from (
        ([each.value, "admitted"], at.admission.of(each).granted) for each in at.admission.classes
    )
    for (each, reason), count in sorted(gate.refused.items()):
        yield [each.value, reason.value], count
    for each, count in sorted(gate.left.items()):
        yield [each.value, CANCELLED.value], count


def _by_class(
    number: Callable[[ClassStatus], Number],
) -> Callable[[ScrapedPool], Iterable[Sample]]:
    return lambda at: [
        ([each.value], number(at.admission.of(each))) for each in at.admission.classes
    ]


def _blocked_by(at: ScrapedPool) -> Iterable[Sample]:
    blocked_by = at.admission.blocked_by
    reason = None if blocked_by is None else blocked_by.reason
    return [([each], int(each == reason)) for each in at.pool.admission.constraints.reasons]


def _slos(at: ScrapedPool) -> Iterable[Sample]:
    rules = at.admission.rules
    for each in at.admission.classes:
        limits = rules.of(each)
        for name, limit_ms in (("ttft", limits.ttft_p95_ms), ("tpot", limits.tpot_p95_ms)):
            yield [each.value, name], None if limit_ms is None else limit_ms / 1000


def _drained_by(at: ScrapedPool) -> OrderedBy | None:
    drain = at.admission.draining
    return None if drain is None else drain.ordered_by


FAMILIES: Final = (
    Family(
        "orch_pool",
        "Constant 1 with the profile and the measurement type of a pool as labels.",
        _info,
        ("profile", "measurement_type"),
        info=True,
    ),
    Family(
        "orch_slots_total",
        "Slots of the engine, each for one sequence.",
        per_pool(lambda at: at.admission.slots_total),
    ),
    Family(
        "orch_slots_leased",
        "Slots leased to requests.",
        per_pool(lambda at: at.admission.leased),
    ),
    Family(
        "orch_slots_leased_by_class",
        "Slots leased to requests of the class.",
        _by_class(lambda of_class: of_class.leased),
        ("class",),
    ),
    Family(
        "orch_slots_foreign",
        "Slots used by requests that bypassed this sidecar.",
        per_pool(lambda at: at.admission.foreign),
    ),
    Family(
        "orch_slots_free",
        "Slots that the next request of the class would get now.",
        _by_class(lambda of_class: of_class.free),
        ("class",),
    ),
    Family(
        "orch_slots_reserved",
        "Slots reserved for interactive requests, those that they use included.",
        per_pool(lambda at: at.admission.reserved),
    ),
    Family(
        "orch_slots_idle",
        "Reserved slots that are free while bulk requests wait for them.",
        per_pool(lambda at: at.admission.kept_free),
    ),
    Family(
        "orch_effective_capacity",
        "Sequences at once that keep the SLO of the time per token.",
        per_pool(lambda at: at.admission.effective_capacity),
    ),
    Family(
        "orch_slo_seconds",
        "Time to the first token (ttft) and per token (tpot) that 95 % of the requests of the "
        "class are to keep; none where the profile has none.",
        _slos,
        ("class", "slo"),
    ),
    Family(
        "orch_demand_slots",
        "Slots that the requests of the class ask for, those that are refused included.",
        _by_class(lambda of_class: of_class.demand),
        ("class",),
    ),
    Family(
        "orch_demand_ratio",
        "Slots that are asked for over those that can be served within the SLOs: 1 is full, "
        "0.7 comfortable.",
        per_pool(lambda at: at.admission.demand_ratio),
    ),
    Family(
        "orch_leases",
        "Active leases, each for all sequences of one request.",
        per_pool(lambda at: at.admission.leases),
    ),
    Family(
        "orch_kv_blocks_committed",
        "KV cache blocks that the active leases are expected to use when they end.",
        per_pool(lambda at: at.admission.kv_committed),
    ),
    Family(
        "orch_queue_depth",
        "Queued requests.",
        _by_class(lambda of_class: of_class.queued),
        ("class",),
        of_requests=True,
    ),
    Family(
        "orch_queue_blocked_by",
        "1 for the constraint that blocks the head of the queue, 0 for all others.",
        _blocked_by,
        ("reason",),
    ),
    Family(
        "orch_queue_hold",
        "Deprecated: the former name of orch_queue_blocked_by.",
        _blocked_by,
        ("reason",),
    ),
    Family(
        "orch_batch_limit",
        "Most sequences at once for the class.",
        lambda at: [
            ([each.value], at.admission.limits.batch(each)) for each in at.admission.classes
        ],
        ("class",),
    ),
    Family(
        "orch_engine_sidecars",
        "Sidecars that read the engine's state, this one included.",
        per_pool(lambda at: at.pool.gate.offers.sidecars),
    ),
    Family(
        "orch_engine_rejections",
        "Requests that the engine had no slot for, and that were queued again.",
        per_pool(lambda at: at.pool.gate.offers.rejections),
        counts=True,
        of_requests=True,
    ),
    Family(
        "orch_leases_closing",
        "Released leases whose end the engine has not confirmed yet.",
        per_pool(lambda at: len(at.pool.ledger.closing())),
    ),
    Family(
        "orch_leases_orphaned",
        "Leases that were revoked because no request owned them: 0, unless the sidecar has a "
        "fault.",
        per_pool(lambda at: at.pool.gate.orphans),
        counts=True,
    ),
    Family(
        "orch_drain",
        "1 for what ordered the current drain of the pool, 0 for all others.",
        lambda at: [([each.value], int(_drained_by(at) is each)) for each in OrderedBy],
        ("ordered_by",),
    ),
    Family(
        "orch_drain_started_timestamp_seconds",
        "Unix time at which the current drain of the pool began.",
        per_pool(lambda at: None if (drain := at.admission.draining) is None else drain.since_s),
    ),
    Family(
        "orch_oversubscription_violations",
        "Times that leases, or sequences in the engine, exceeded the slots: traffic that bypasses "
        "the sidecar can cause it, the sidecar never should.",
        per_pool(lambda at: at.admission.violations),
        counts=True,
    ),
    Family(
        "orch_admissions",
        "Requests for a slot by outcome: admitted, or the reason of the refusal.",
        _admissions,
        ("class", "outcome"),
        counts=True,
        of_requests=True,
    ),
    Family(
        "orch_refusals_beside_bulk",
        "Interactive requests refused while bulk requests had more than their share of the slots.",
        per_pool(lambda at: at.admission.refused_beside_bulk),
        counts=True,
        of_requests=True,
    ),
    Family(
        "orch_reclaims",
        "Bulk requests, unseen by their clients, that gave their slots back and were queued again.",
        per_pool(lambda at: at.admission.reclaimed),
        counts=True,
        of_requests=True,
    ),
    Family(
        "orch_idle_cuts",
        "Idle requests that gave their slots back to others and were queued again.",
        per_pool(lambda at: at.admission.cut),
        counts=True,
        of_requests=True,
    ),
    Family(
        "orch_prefix_placements",
        "Requests that were placed among several pools, by whether this one last served the "
        "beginning of their prompts (hit), another one did (moved), or none (new).",
        lambda at: [([each.value], at.pool.by_prefix[each]) for each in PrefixUse],
        ("prefix",),
        counts=True,
        private=True,
        of_requests=True,
    ),
    Family("orch_batching_batches", "Decode steps.", _stats("total_batches"), counts=True),
    Family(
        "orch_batching_requests",
        "Requests that this sidecar dispatched to the engine.",
        _stats("total_requests"),
        counts=True,
        of_requests=True,
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
    Family(
        "orch_batching_queue_depth", "Queued requests.", _stats("queue_depth"), of_requests=True
    ),
    Family("orch_batching_max_batch_size", "Most sequences at once.", _stats("max_batch_size")),
    Family(
        "orch_batching_max_wait_ms",
        "Longest time for which a batch is gathered, milliseconds: none is.",
        _stats("max_wait_ms"),
    ),
    Family(
        "orch_engine_state",
        "1 for the current state of the engine, 0 for all others.",
        lambda at: [([each.value], int(each is at.status.state)) for each in PoolState],
        ("state",),
    ),
)

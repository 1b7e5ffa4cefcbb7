"""What the pools' numbers are at the moment of a scrape, as Prometheus metrics.

Every family is given for all pools, at 0 where there is nothing yet, so that a rate can be taken
from the start; what is not known (no step time, no document) is left out, and never 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from orch_sidecar import report
from orch_sidecar.admission.scarce import Hold
from orch_sidecar.capabilities import BatchingStats, batching_stats
from orch_sidecar.engine import EngineState
from orch_sidecar.pool import Pool

Sample = tuple[Sequence[str], float | None]


@dataclass(frozen=True, slots=True)
class _Family:
    """A family of samples, one or more for each pool; `pool` is always the first label."""

    name: str
    text: str
    samples: Callable[[Pool], Iterable[Sample]]
    labels: tuple[str, ...] = ()
    counts: bool = False  # a counter; else a gauge

    def collect(self, pools: Sequence[Pool]) -> Metric:
        kind = CounterMetricFamily if self.counts else GaugeMetricFamily
        family = kind(self.name, self.text, labels=["pool", *self.labels])
        for pool in pools:
            for values, number in self.samples(pool):
                if number is not None:
                    family.add_metric([pool.name, *values], number)
        return family


def readings(pools: Sequence[Pool], state_of: Callable[[Pool], str]) -> Iterable[Metric]:
    """All families. `state_of`: an EngineState of each pool."""
    for family in _FAMILIES:
        yield family.collect(pools)
    yield _Family(
        "orch_engine_state",
        "1 for the state it is in.",
        lambda pool: [([each], float(each == state_of(pool))) for each in EngineState],
        ("state",),
    ).collect(pools)


def _one(number: Callable[[Pool], float | None]) -> Callable[[Pool], Iterable[Sample]]:
    return lambda pool: [((), number(pool))]


def _said(name: str) -> Callable[[Pool], Iterable[Sample]]:
    """A number that the engine says."""
    return _one(lambda pool: report.number(pool.follower.document or {}, name))


def _stats(name: str) -> Callable[[Pool], Iterable[Sample]]:
    def number(pool: Pool) -> float | None:
        value: float | None = getattr(batching_stats(pool.seen("")), name)
        return value

    assert name in BatchingStats.__dataclass_fields__
    return _one(number)


def _step_time(pool: Pool) -> Iterable[Sample]:
    fit = report.step_time_of((pool.follower.document or {}).get("step_time"))
    if fit is not None:
        yield ["t0_ms"], fit.t0_ms
        yield ["c_ms"], fit.c_ms
        yield ["alpha"], fit.alpha


def _admissions(pool: Pool) -> Iterable[Sample]:
    granted = pool.gate.core.statistics.granted
    yield from (([each.value, "admitted"], granted[each]) for each in pool.classes)
    for (each, outcome), count in sorted(pool.turned_down.items()):
        yield [each.value, outcome], count


_FAMILIES: Final = (
    _Family(
        "orch_slots_total",
        "Slots of the engine (sequences).",
        _one(lambda pool: pool.gate.core.ledger.slots_total),
    ),
    _Family(
        "orch_slots_leased",
        "Slots given to requests.",
        _one(lambda pool: pool.gate.core.ledger.leased),
    ),
    _Family(
        "orch_slots_leased_by_class",
        "Slots given to requests of the class.",
        lambda pool: [([each.value], pool.gate.core.leased_by(each)) for each in pool.classes],
        ("class",),
    ),
    _Family(
        "orch_slots_foreign",
        "Slots taken past this sidecar.",
        _one(lambda pool: pool.gate.core.ledger.foreign),
    ),
    _Family(
        "orch_kv_tokens_committed",
        "Tokens that leases will have in the KV cache at their ends, as far as is known.",
        _one(lambda pool: pool.gate.core.scarce.kv.committed),
    ),
    _Family(
        "orch_queue_depth",
        "Requests waiting for a slot.",
        lambda pool: [([each.value], pool.gate.core.queued(each)) for each in pool.classes],
        ("class",),
    ),
    _Family(
        "orch_queue_hold",
        "1 for what the head of the queue waits for.",
        lambda pool: [([each.value], float(pool.gate.core.hold is each)) for each in Hold],
        ("reason",),
    ),
    _Family(
        "orch_batch_limit",
        "Sequences at once, for the class.",
        lambda pool: [([each.value], pool.gate.core.limits.batch(each)) for each in pool.classes],
        ("class",),
    ),
    _Family(
        "orch_window_ms",
        "Time to gather a batch in before it begins, milliseconds.",
        lambda pool: [
            ([each.value], pool.gate.core.limits.window_ms(each)) for each in pool.classes
        ],
        ("class",),
    ),
    _Family(
        "orch_leases_closing",
        "Leases whose end the engine has yet to confirm.",
        _one(lambda pool: len(pool.gate.core.ledger.closing())),
    ),
    _Family(
        "orch_oversubscription_violations",
        "Leases given, or sequences held by the engine, beyond the slots.",
        _one(lambda pool: pool.gate.core.ledger.violations),
        counts=True,
    ),
    _Family(
        "orch_admissions",
        "What became of those who asked for a slot: admitted, or why not.",
        _admissions,
        ("class", "outcome"),
        counts=True,
    ),
    _Family(
        "orch_step_time",
        "The engine's measured step time: t0_ms + c_ms * batch ** alpha.",
        _step_time,
        ("parameter",),
    ),
    _Family(
        "orch_prefill_tokens_per_second",
        "Prompt tokens that the engine reads per second, measured.",
        _said("prefill_tokens_per_s"),
    ),
    _Family(
        "orch_engine_preemptions",
        "Sequences that the engine took out of its batch for want of KV cache.",
        _said("preemptions_total"),
        counts=True,
    ),
    _Family(
        "orch_engine_busy_seconds",
        "Time the engine spent in steps.",
        _said("busy_seconds_total"),
        counts=True,
    ),
    _Family(
        "orch_engine_busy_ratio",
        "Share of the time between the last two heartbeats that the engine spent in steps.",
        _one(lambda pool: pool.follower.busy_ratio),
    ),
    _Family("orch_batching_batches", "Decode steps.", _stats("total_batches"), counts=True),
    _Family(
        "orch_batching_requests",
        "Requests given to the engine by this sidecar.",
        _stats("total_requests"),
        counts=True,
    ),
    _Family(
        "orch_batching_avg_batch_size",
        "Mean sequences per decode step.",
        _stats("avg_batch_size"),
    ),
    _Family(
        "orch_batching_avg_batch_duration_ms",
        "Mean duration of a decode step, milliseconds.",
        _stats("avg_batch_duration_ms"),
    ),
    _Family("orch_batching_queue_depth", "Requests waiting for a slot.", _stats("queue_depth")),
    _Family("orch_batching_max_batch_size", "Sequences at once.", _stats("max_batch_size")),
    _Family(
        "orch_batching_max_wait_ms",
        "Longest time to gather a batch in, milliseconds.",
        _stats("max_wait_ms"),
    ),
)

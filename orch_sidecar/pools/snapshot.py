"""A pool at one moment, as routing, `/v1/capabilities` and the stream for parent sidecars read it.

Its admission in detail is an AdmissionStatus; a snapshot contains what routing needs of it.

Pure.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, NamedTuple

from orch_sidecar.admission.status import AdmissionStatus
from orch_sidecar.api.refusal import Refusal
from orch_sidecar.engine_state import report
from orch_sidecar.engine_state.document import Document
from orch_sidecar.engine_state.states import PoolState
from vllm_plugin.contracts.profile import AdmissionRules, MeasurementType, Profile, ServiceClass


class PoolSnapshot(NamedTuple):
    """The configuration of a pool, the last report of its engine and its free slots.

    `group`: the name that interchangeable pools share, else the pool's own. `on_request`: serves
    only requests that select it. `document`: the engine's state document; it, `models` and
    `ctx_max` are None, and `slots_total` is 0, until the engine reports. `state`, `message`: those
    of the pool, with the reason if it is not ready. `taken_at`, `heard_at`: event loop time of the
    snapshot and of the engine's last valid event. `room`: slots that can be leased, negative while
    foreign sequences take more than are left. `end_ms`: milliseconds until the request that is
    being routed would end here, None where that cannot be predicted.

    A NamedTuple, because one is made of each pool for each routed request: a frozen dataclass of
    so many fields takes several times as long.
    """

    name: str
    group: str
    profile: Profile
    on_request: bool = False
    state: PoolState = PoolState.STARTING
    message: str = ""
    unavailable: Refusal | None = None
    document: Document | None = None
    models: Collection[str] | None = None
    ctx_max: int | None = None
    busy_ratio: float | None = None
    taken_at: float = 0.0
    heard_at: float | None = None
    slots_total: int = 0
    room: int = 0
    queue_depth: int = 0
    end_ms: float | None = None

    @property
    def measurement_type(self) -> MeasurementType:
        return self.profile.measurement_type

    def has_room(self, cost: int) -> bool:
        """Whether that many slots are free, and no request waits for them."""
        return self.room >= cost and not self.queue_depth

    @property
    def load(self) -> int:
        """Sequences that run or wait here; a queued request counts as one."""
        return self.slots_total - self.room + self.queue_depth

    @property
    def age_ms(self) -> int | None:
        """Milliseconds since the engine's last valid event."""
        return None if self.heard_at is None else int((self.taken_at - self.heard_at) * 1e3)

    def has_name(self, name: str | None) -> bool:
        """Whether `name` is the pool's name or its group's."""
        return name in (self.name, self.group)


@dataclass(frozen=True, slots=True)
class BatchingStats:
    """The batching statistics of one pool.

    `total_batches` counts decode steps, sizes are sequences per step; means are over all decode
    steps since the engine started, None before the first. `total_requests`: admitted by this
    sidecar. `max_batch_size`: the current limit. `max_wait_ms`: for how long a batch is gathered
    before it begins: not at all, a running batch takes a request in at its next step.
    """

    total_batches: int
    total_requests: int
    avg_batch_size: float | None
    avg_batch_duration_ms: float | None
    queue_depth: int
    max_batch_size: int
    max_wait_ms: float = 0.0


def batching_stats(document: Document | None, admission: AdmissionStatus) -> BatchingStats:
    """Computes the statistics from the engine's own count of its decode steps."""
    decoded = report.decode_steps_of(document or {}) or []
    steps = sum(count for _, count, _ in decoded)
    sequences = sum(batch * count for batch, count, _ in decoded)
    seconds = sum(time_s for _, _, time_s in decoded)
    return BatchingStats(
        total_batches=steps,
        total_requests=admission.granted,
        avg_batch_size=round(sequences / steps, 3) if steps else None,
        avg_batch_duration_ms=round(1000 * seconds / steps, 3) if steps else None,
        queue_depth=admission.queue_depth,
        max_batch_size=max(admission.limits.batch(each) for each in classes_of(admission.rules)),
    )


def classes_of(rules: AdmissionRules) -> tuple[ServiceClass, ...]:
    """The service classes that `rules` define."""
    return tuple(ServiceClass) if rules.interactive is not None else (ServiceClass.BULK,)


def queued_by_class(admission: AdmissionStatus) -> dict[str, int]:
    """Returns the queued requests of each service class that the rules define."""
    return {each.value: admission.of(each).queued for each in classes_of(admission.rules)}


def slots_free(pool: PoolSnapshot, admission: AdmissionStatus) -> dict[str, Any]:
    """Returns what the next request would get now: one of the most urgent class, and by class."""
    ready = pool.state is PoolState.READY
    free = {
        each.value: admission.of(each).free if ready else 0 for each in classes_of(admission.rules)
    }
    return {"slots_free": next(iter(free.values())), "slots_free_by_class": free}

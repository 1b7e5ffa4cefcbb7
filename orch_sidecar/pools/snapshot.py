"""A pool at one moment, as routing, `/v1/capabilities` and the stream for parent sidecars read it.

Pure.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, NamedTuple

from orch_sidecar.admission.constraints.batch import Limits
from orch_sidecar.admission.draining import Drain
from orch_sidecar.admission.types import BlockedBy
from orch_sidecar.api.refusal import Refusal
from orch_sidecar.engine_state import report
from orch_sidecar.engine_state.document import Document
from orch_sidecar.engine_state.states import EngineState
from vllm_plugin.profile import AdmissionRules, MeasurementType, Profile, ServiceClass

_UNKNOWN_LIMITS: Final = Limits(0, 0, 0, 0.0, measured=False)


class PoolSnapshot(NamedTuple):
    """The configuration of a pool, the last report of its engine and the state of its admission.

    `group`: the name that interchangeable pools share, else the pool's own. `on_request`: serves
    only requests that select it. `document`: the engine's state document; it, `models` and
    `ctx_max` are None, and `slots_total` is 0, until the engine reports. `state`, `message`: those
    of the pool, with the reason if it is not ready. `taken_at`, `heard_at`: event loop time of the
    snapshot and of the engine's last valid event. `slots_total`, `leased` and `foreign` in
    sequences. `end_ms`: milliseconds until the request that is being routed would end here, None
    where that cannot be predicted.

    A NamedTuple, because one is made of each pool for each routed request: a frozen dataclass of
    so many fields takes seven times as long.
    """

    name: str
    group: str
    profile: Profile
    rules: AdmissionRules
    on_request: bool = False
    state: EngineState = EngineState.STARTING
    message: str = ""
    unavailable: Refusal | None = None
    drain: Drain | None = None
    document: Document | None = None
    models: Collection[str] | None = None
    ctx_max: int | None = None
    busy_ratio: float | None = None
    taken_at: float = 0.0
    heard_at: float | None = None
    slots_total: int = 0
    leased: int = 0
    foreign: int = 0
    epoch: str = ""
    violations: int = 0
    limits: Limits = _UNKNOWN_LIMITS
    blocked_by: BlockedBy | None = None
    queue_depth: int = 0
    queued_interactive: int = 0
    admitted: int = 0
    end_ms: float | None = None

    @property
    def measurement_type(self) -> MeasurementType:
        return self.profile.measurement_type

    @property
    def room(self) -> int:
        """Slots that can be leased; negative while foreign sequences take more than are left."""
        return self.slots_total - self.leased - self.foreign

    @property
    def slots_free(self) -> int:
        """Free slots as published: none while the pool is not ready."""
        return max(0, self.room) if self.state is EngineState.READY else 0

    @property
    def age_ms(self) -> int | None:
        """Milliseconds since the engine's last valid event."""
        return None if self.heard_at is None else int((self.taken_at - self.heard_at) * 1e3)

    @property
    def classes(self) -> tuple[ServiceClass, ...]:
        """The service classes that the pool's rules define."""
        return classes_of(self.rules)

    @property
    def queued(self) -> dict[str, int]:
        """Queued requests by service class."""
        interactive = self.queued_interactive
        queued = {"interactive": interactive, "bulk": self.queue_depth - interactive}
        return {each.value: queued[each.value] for each in self.classes}

    def has_name(self, name: str | None) -> bool:
        """Whether `name` is the pool's name or its group's."""
        return name in (self.name, self.group)


@dataclass(frozen=True, slots=True)
class BatchingStats:
    """The batching statistics of one pool.

    `total_batches` counts decode steps, sizes are sequences per step; means are over all decode
    steps since the engine started, None before the first. `total_requests`: admitted by this
    sidecar. `max_batch_size`, `max_wait_ms`: the current limits, the latter the longest time for
    which a batch is gathered before it begins (0: batches are not gathered).
    """

    total_batches: int
    total_requests: int
    avg_batch_size: float | None
    avg_batch_duration_ms: float | None
    queue_depth: int
    max_batch_size: int
    max_wait_ms: float


def batching_stats(pool: PoolSnapshot) -> BatchingStats:
    """Computes the statistics from the engine's own count of its decode steps."""
    decoded = report.decode_steps_of(pool.document or {}) or []
    steps = sum(count for _, count, _ in decoded)
    sequences = sum(batch * count for batch, count, _ in decoded)
    seconds = sum(time_s for _, _, time_s in decoded)
    return BatchingStats(
        total_batches=steps,
        total_requests=pool.admitted,
        avg_batch_size=round(sequences / steps, 3) if steps else None,
        avg_batch_duration_ms=round(1000 * seconds / steps, 3) if steps else None,
        queue_depth=pool.queue_depth,
        max_batch_size=max(pool.limits.batch(each) for each in pool.classes),
        max_wait_ms=pool.limits.window_ms,
    )


def classes_of(rules: AdmissionRules) -> tuple[ServiceClass, ...]:
    """The service classes that `rules` define."""
    return tuple(ServiceClass) if rules.interactive is not None else (ServiceClass.BULK,)

"""Describes a pool's status, from which capabilities, the live page, health, metrics,
`/v1/requests` and the state for parent sidecars are made.

Pure. What routing compares is a PoolSnapshot, which costs less.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property
from math import fsum
from typing import Any

from orch_sidecar.admission.controller import AdmissionController
from orch_sidecar.admission.status import AdmissionStatus
from orch_sidecar.engine_state import report
from orch_sidecar.engine_state.document import Document
from orch_sidecar.engine_state.states import PoolState
from vllm_plugin.contracts.profile import Profile


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


@dataclass(frozen=True)
class PoolStatus:
    """A pool at one moment, in all detail.

    `tier`: it is a sidecar itself. `state`, `message`: of the pool, with the reason if it is not
    ready. `answers`: its engine does, ready or not; `error`: of the engine, empty without one.
    `since_s`: Unix time, since when its engine is ready, or is not. `document`: the engine's state
    document, empty until it reports. `busy_ratio`: of the engine's time between two reports;
    `age_ms`: of its last valid event.
    """

    name: str
    profile: Profile
    admission: AdmissionStatus
    tier: bool = False
    state: PoolState = PoolState.STARTING
    message: str = ""
    answers: bool = False
    error: str = ""
    since_s: float = 0.0
    document: Document = field(default_factory=dict)
    models: Collection[str] = ()
    busy_ratio: float | None = None
    age_ms: int | None = None

    @property
    def queued(self) -> dict[str, int]:
        """The queued requests of each service class."""
        admission = self.admission
        return {each.value: admission.of(each).queued for each in admission.classes}

    @property
    def slots_free(self) -> dict[str, Any]:
        """What the next request would get now: one of the most urgent class, and by class."""
        ready, admission = self.state is PoolState.READY, self.admission
        free = {each.value: admission.of(each).free if ready else 0 for each in admission.classes}
        return {"slots_free": next(iter(free.values())), "slots_free_by_class": free}

    @cached_property
    def batching(self) -> BatchingStats:
        """The statistics by the engine's own count of its decode steps."""
        admission = self.admission
        decoded = report.decode_steps_of(self.document) or []
        steps = sum(count for _, count, _ in decoded)
        sequences = sum(batch * count for batch, count, _ in decoded)
        seconds = fsum(time_s for _, _, time_s in decoded)
        return BatchingStats(
            total_batches=steps,
            total_requests=admission.granted,
            avg_batch_size=round(sequences / steps, 3) if steps else None,
            avg_batch_duration_ms=round(1000 * seconds / steps, 3) if steps else None,
            queue_depth=admission.queue_depth,
            max_batch_size=max(admission.limits.batch(each) for each in admission.classes),
        )


def absent(name: str, profile: Profile) -> PoolStatus:
    """Returns the status of a headless pool without an address."""
    admission = AdmissionController(profile.admission).status(0.0)
    message = "no address of this pool is known"
    return PoolStatus(name, profile, admission, state=PoolState.ABSENT, message=message)

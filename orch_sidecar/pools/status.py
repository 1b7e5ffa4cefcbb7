"""Describes a pool's status, from which capabilities, the live page, health, metrics,
`/v1/requests` and the state for parent sidecars are made: that of its admission and of its engine.

Pure. What routing compares is a PoolSnapshot, which costs less.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property
from math import fsum
from typing import Any, NamedTuple

from orch_sidecar.admission.availability import Drain
from orch_sidecar.admission.constraints.batch import Limits
from orch_sidecar.admission.constraints.constraint import Constraint
from orch_sidecar.admission.controller import AdmissionController
from orch_sidecar.admission.types import AdmissionRequest
from orch_sidecar.api.refusal import Refusal
from orch_sidecar.engine_state.document import Document
from orch_sidecar.engine_state.report import decode_steps_of
from orch_sidecar.engine_state.states import PoolState
from vllm_plugin.contracts.profile import (
    BULK,
    IDLE,
    INTERACTIVE,
    AdmissionRules,
    Profile,
    ServiceClass,
)


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
        decoded = decode_steps_of(self.document) or []
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


class AdmissionStatus(NamedTuple):
    """Slots are counted in sequences.

    `unavailable`: why no request is admitted. `kv_committed`: blocks. `effective_capacity`: the
    largest batch within the SLO per token, of the most urgent class. `demand_ratio`: what is asked
    for over what can be served within the SLOs. `reserved`: slots of interactive requests;
    `kept_free`: those of them that are free while bulk requests wait. `refused_beside_bulk`:
    interactive requests, while bulk ones had more than their share. `reclaimed`: bulk requests that
    gave their slots back; `cut`: idle ones. `violations`: grants, or sequences in the engine,
    beyond the slots.

    A NamedTuple: a frozen dataclass of so many fields takes several times as long to make.
    """

    rules: AdmissionRules
    limits: Limits
    draining: Drain | None
    unavailable: Refusal | None
    epoch: str
    slots_total: int
    foreign: int
    leased: int
    leases: int
    kv_committed: int
    interactive: ClassStatus
    bulk: ClassStatus
    idle: ClassStatus
    blocked_by: Constraint | None
    effective_capacity: int
    demand_ratio: float
    reserved: int
    kept_free: int
    refused_beside_bulk: int
    reclaimed: int
    cut: int
    violations: int

    def of(self, service_class: ServiceClass) -> ClassStatus:
        return (self.interactive, self.bulk, self.idle)[service_class.rank]

    @property
    def room(self) -> int:
        """Free slots; negative while foreign traffic exceeds what is left."""
        return self.slots_total - self.leased - self.foreign

    @property
    def classes(self) -> tuple[ServiceClass, ...]:
        """The service classes that the rules define."""
        return tuple(ServiceClass) if self.rules.interactive is not None else (BULK, IDLE)

    @property
    def queue_depth(self) -> int:
        return self.interactive.queued + self.bulk.queued + self.idle.queued

    @property
    def granted(self) -> int:
        return self.interactive.granted + self.bulk.granted + self.idle.granted

    @property
    def waited_for(self) -> str | None:
        """What completes "it waits for" of the request that is next; None: nothing blocks it."""
        if self.unavailable is not None:
            return f"the engine: {self.unavailable.message}"
        return None if self.blocked_by is None else self.blocked_by.text()


class ClassStatus(NamedTuple):
    """One service class. `leased`: sequences; `granted`: leases since the start; `free`: slots
    that the next requests would get now, none if something blocks the smallest; `demand`: slots
    that its requests ask for."""

    queued: int
    leased: int
    granted: int
    free: int
    demand: float


def status_of(controller: AdmissionController, now: float) -> AdmissionStatus:
    """Returns the current state of an admission."""
    controller.learn()
    constraints, order, reclaim = controller.constraints, controller.order, controller.reclaim
    ledger, queues = controller.ledger, controller.queues
    draining, unavailable = controller.draining, controller.unavailable
    reserve, limits = constraints.reserve, constraints.batch.limits
    demand_ratio = reserve.demand_ratio(limits, now)
    closed = draining is not None or unavailable is not None

    def of(service_class: ServiceClass) -> ClassStatus:
        smallest = AdmissionRequest(service_class, max_tokens=1)  # what the next needs at least
        constraints.set_kv(smallest)
        blocked = closed or order.blocking(smallest, now) is not None
        return ClassStatus(
            queues.size(service_class),
            ledger.of(service_class),
            ledger.granted[service_class.rank],
            0 if blocked else constraints.free_slots(service_class, now),
            reserve.demand(service_class).slots,
        )

    return AdmissionStatus(
        rules=constraints.rules,
        limits=limits,
        draining=draining,
        unavailable=unavailable,
        epoch=ledger.epoch,
        slots_total=ledger.slots_total,
        foreign=ledger.foreign,
        leased=ledger.leased,
        leases=ledger.lease_count,
        kv_committed=ledger.kv_committed,
        interactive=of(INTERACTIVE),
        bulk=of(BULK),
        idle=of(IDLE),
        blocked_by=controller.blocked_by,
        effective_capacity=limits.batch(
            BULK if constraints.rules.interactive is None else INTERACTIVE
        ),
        demand_ratio=demand_ratio,
        reserved=reserve.reserved(now),
        kept_free=reserve.kept_free(now),
        refused_beside_bulk=reserve.refused_beside_bulk,
        reclaimed=reclaim.count,
        cut=reclaim.cut,
        violations=ledger.violations,
    )


def absent(name: str, profile: Profile) -> PoolStatus:
    """Returns the status of a headless pool without an address."""
    admission = status_of(AdmissionController(profile.admission), 0.0)
    message = "no address of this pool is known"
    return PoolStatus(name, profile, admission, state=PoolState.ABSENT, message=message)

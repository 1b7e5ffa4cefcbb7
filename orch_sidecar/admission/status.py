"""The state of one engine's admission at one instant, for metrics and reports. Pure."""

from __future__ import annotations

from typing import NamedTuple

from orch_sidecar.admission.availability import Drain
from orch_sidecar.admission.constraints.batch import Limits
from orch_sidecar.admission.constraints.constraint import Constraint
from orch_sidecar.admission.constraints.rules import AdmissionConstraints
from orch_sidecar.admission.precedence import QueueOrder, Reclaim
from orch_sidecar.admission.types import AdmissionRequest
from orch_sidecar.api.refusal import Refusal
from vllm_plugin.contracts.profile import BULK, IDLE, INTERACTIVE, AdmissionRules, ServiceClass


class ClassStatus(NamedTuple):
    """One service class. `leased`: sequences; `granted`: leases since the start; `free`: slots
    that the next requests would get now, none if something blocks the smallest; `demand`: slots
    that its requests ask for."""

    queued: int
    leased: int
    granted: int
    free: int
    demand: float


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
        return classes_of(self.rules)

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


def classes_of(rules: AdmissionRules) -> tuple[ServiceClass, ...]:
    """Returns the service classes that `rules` define."""
    return tuple(ServiceClass) if rules.interactive is not None else (BULK, IDLE)


def status_of(
    constraints: AdmissionConstraints,
    order: QueueOrder,
    draining: Drain | None,
    unavailable: Refusal | None,
    reclaim: Reclaim,
    now: float,
) -> AdmissionStatus:
    """Returns the current state of an admission with these parts."""
    ledger, queues = constraints.ledger, constraints.queues
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
        blocked_by=order.blocked_by if queues.depth else None,
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

"""The state of one engine's admission at one instant, for metrics and reports. Pure."""

from __future__ import annotations

from typing import NamedTuple

from orch_sidecar.admission.constraints.batch import Limits
from orch_sidecar.admission.constraints.rules import AdmissionConstraints
from orch_sidecar.admission.draining import Drain
from orch_sidecar.admission.ledger import Ledger
from orch_sidecar.admission.queues import Queues
from orch_sidecar.admission.types import BlockedBy
from orch_sidecar.api.refusal import Refusal
from vllm_plugin.profile import AdmissionRules, ServiceClass

_INTERACTIVE, _BULK = ServiceClass.INTERACTIVE, ServiceClass.BULK


class ClassStatus(NamedTuple):
    """One service class. `leased`: sequences; `granted`: leases since the start."""

    queued: int
    leased: int
    granted: int


class AdmissionStatus(NamedTuple):
    """Slots are counted in sequences.

    `unavailable`: why no request is admitted. `kv_committed`: blocks. `windows`, `windows_s`:
    batch windows since the start, and their total duration. `violations`: grants, or sequences in
    the engine, beyond the slots.

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
    blocked_by: BlockedBy | None
    windows: int
    windows_s: float
    violations: int

    def of(self, service_class: ServiceClass) -> ClassStatus:
        return self.bulk if service_class is ServiceClass.BULK else self.interactive

    @property
    def room(self) -> int:
        """Free slots; negative while foreign traffic exceeds what is left."""
        return self.slots_total - self.leased - self.foreign

    @property
    def queue_depth(self) -> int:
        return self.interactive.queued + self.bulk.queued

    @property
    def granted(self) -> int:
        return self.interactive.granted + self.bulk.granted


def status_of(
    ledger: Ledger,
    queues: Queues,
    constraints: AdmissionConstraints,
    blocked_by: BlockedBy | None,
    draining: Drain | None,
    unavailable: Refusal | None,
) -> AdmissionStatus:
    """Returns the current state of an admission with these parts."""
    return AdmissionStatus(
        rules=constraints.rules,
        limits=constraints.limits,
        draining=draining,
        unavailable=unavailable,
        epoch=ledger.epoch,
        slots_total=ledger.slots_total,
        foreign=ledger.foreign,
        leased=ledger.leased,
        leases=ledger.lease_count,
        kv_committed=ledger.kv_committed,
        interactive=ClassStatus(
            queues.size(_INTERACTIVE), ledger.interactive, ledger.granted[_INTERACTIVE]
        ),
        bulk=ClassStatus(queues.size(_BULK), ledger.bulk, ledger.granted[_BULK]),
        blocked_by=blocked_by,
        windows=constraints.window.count,
        windows_s=constraints.window.seconds,
        violations=ledger.violations,
    )

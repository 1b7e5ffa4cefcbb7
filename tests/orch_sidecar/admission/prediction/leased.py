"""Service times of an engine whose batch stays the same."""

from __future__ import annotations

from orch_sidecar.admission.ledger import Ledger
from orch_sidecar.admission.prediction.freed_slots import FreedSlots
from orch_sidecar.admission.prediction.service_time import ServiceTimes
from orch_sidecar.admission.types import AdmissionRequest, EngineReport
from tests.orch_sidecar.admission.examples import STEP_TIME


class LeasedServiceTimes(ServiceTimes):
    """Service times of an engine whose batch stays the same, however much of it is leased."""

    def __init__(self, batch: int = 10) -> None:
        self.ledger = Ledger()
        self.ledger.foreign = batch
        super().__init__(self.ledger)
        self.freed = FreedSlots(self.ledger, self)

    def run(self, lease_id: str, request: AdmissionRequest) -> None:
        self.ledger.grant(lease_id, request, 0.0)
        self.ledger.foreign -= request.cost

    def end(self, lease_id: str) -> None:
        lease = self.ledger.release(lease_id, 0.0)
        assert lease is not None
        self.ledger.foreign += lease.cost


def service_times_of(batch: int = 10) -> LeasedServiceTimes:
    """Steps of 10 ms + 1 ms for each sequence, and 1000 tokens of prompts per second."""
    service_times = LeasedServiceTimes(batch)
    report = EngineReport("e", 2 * batch, prefill_tokens_per_s=1000.0)
    service_times.reported(report, STEP_TIME, 0.0)
    return service_times

"""AdmissionConstraints with the ledger, queues and service times that they read, for tests."""

from __future__ import annotations

from orch_sidecar.admission.constraints.batch import Limits, limits_for
from orch_sidecar.admission.constraints.constraint import Constraint
from orch_sidecar.admission.constraints.rules import AdmissionConstraints
from orch_sidecar.admission.ledger import Ledger
from orch_sidecar.admission.prediction.service_time import ServiceTimes
from orch_sidecar.admission.queues import Queues
from orch_sidecar.admission.types import AdmissionRequest, Lease, QueuedRequest
from orch_sidecar.api.refusal import Reason
from tests.orch_sidecar.admission.examples import BULK, bulk, rules
from vllm_plugin.contracts.profile import AdmissionRules


class Bench:
    """AdmissionConstraints with the ledger, queues and service times that they read."""

    def __init__(self, slots: int, of_rules: AdmissionRules | None = None) -> None:
        self.ledger, self.queues = Ledger(), Queues()
        self.ledger.slots_total = slots
        of_rules = of_rules or rules()
        self.service_times = ServiceTimes(self.ledger)
        self.constraints = AdmissionConstraints(
            of_rules, self.ledger, self.queues, self.service_times
        )
        self.constraints.batch.limits = limits_for(of_rules, slots, None, slots)
        self.constraints.reserve.resized(slots, slots)

    def limit(self, *, interactive: int, bulk: int, mixed: int) -> None:
        self.constraints.batch.limits = Limits(interactive, bulk, mixed, True)
        self.constraints.reserve.resized(self.ledger.slots_total, interactive)

    def grant(self, request: AdmissionRequest, now: float = 0.0) -> Lease:
        self.constraints.set_kv(request)
        lease = self.ledger.grant(f"lease {self.ledger.grants}", request, now)
        for each in self.constraints.granting[request.service_class is BULK]:
            each.granted(lease, request, now)
        return lease

    def release(self, lease: Lease, now: float) -> None:
        self.ledger.release(lease.id, now)
        assert lease.request is not None
        for each in self.constraints.ending[lease.request.service_class is BULK]:
            each.ended(lease.request, now)

    def wait(self, request: AdmissionRequest, name: str = "waiting") -> None:
        delay_s = self.constraints.reserve.clock.delay_s
        self.queues.add(QueuedRequest(name, request, 0.0, 60.0, Reason.QUEUE_TIMEOUT, delay_s))

    def blocked_by(
        self, request: AdmissionRequest, now: float = 0.0, *, due: bool = False
    ) -> Constraint | None:
        self.constraints.set_kv(request)
        return self.constraints.blocking(request, now, due=due)

    def clears_at(self, reason: str, now: float) -> float | None:
        """When the first constraint with this name clears for the head of bulk requests."""
        head = self.queues.head(BULK)
        request = bulk() if head is None else head.request
        [found, *_] = (each for each in self.constraints.all if each.reason == reason)
        return found.clears_at(request, now)

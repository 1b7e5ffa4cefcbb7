"""Scarce with what it looks at, for its tests."""

from __future__ import annotations

from orch_sidecar.admission.constraints.batch import Limits, limits_for
from orch_sidecar.admission.constraints.rules import AdmissionConstraints, BlockedBy
from orch_sidecar.admission.ledger import Ledger
from orch_sidecar.admission.prediction.service_time import RunningRequest, ServiceTimes
from orch_sidecar.admission.queues import QueuedRequest, Queues
from orch_sidecar.admission.types import AdmissionRequest
from orch_sidecar.api.refusal import Reason
from tests.orch_sidecar.admission.examples import rules
from vllm_plugin.profile import AdmissionRules


class Bench:
    """Scarce with what it looks at."""

    def __init__(self, slots: int, of_rules: AdmissionRules | None = None) -> None:
        self.ledger, self.queues = Ledger(), Queues()
        self.ledger.slots_total = slots
        of_rules = of_rules or rules()
        self.outlook = ServiceTimes(self.ledger)
        self.scarce = AdmissionConstraints(of_rules, self.ledger, self.queues, self.outlook)
        self.scarce.limits = limits_for(of_rules, slots, None)
        self.runs: list[RunningRequest] = []

    def limit(self, *, interactive: int, bulk: int, mixed: int) -> None:
        self.scarce.limits = Limits(interactive, bulk, mixed, 50.0, True)

    def grant(self, ask: AdmissionRequest, now: float = 0.0) -> RunningRequest:
        run = RunningRequest(ask, now, self.scarce.need(ask))
        self.ledger.grant(f"lease {len(self.runs)}", ask.cost)
        self.scarce.arrived(ask, now)
        self.scarce.granted(run, now)
        self.runs.append(run)
        return run

    def release(self, run: RunningRequest, now: float) -> None:
        self.ledger.release(f"lease {self.runs.index(run)}")
        self.scarce.released(run, now)

    def wait(self, ask: AdmissionRequest, name: str = "waiting") -> None:
        self.queues.add(QueuedRequest(name, ask, 0.0, 60.0, Reason.QUEUE_TIMEOUT, 0.0))

    def hold(
        self, ask: AdmissionRequest, now: float = 0.0, *, aged: bool = False
    ) -> BlockedBy | None:
        return self.scarce.hold(ask, self.scarce.need(ask), now, aged=aged)

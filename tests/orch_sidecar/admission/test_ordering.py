"""Which request is dispatched next."""

from __future__ import annotations

from orch_sidecar.admission.constraints.batch import Limits
from orch_sidecar.admission.constraints.constraint import Constraint
from orch_sidecar.admission.constraints.rules import AdmissionConstraints
from orch_sidecar.admission.ledger import Ledger
from orch_sidecar.admission.ordering import QueueOrder
from orch_sidecar.admission.prediction.service_time import ServiceTimes
from orch_sidecar.admission.queues import Queues
from orch_sidecar.admission.types import AdmissionRequest, QueuedRequest
from orch_sidecar.api.refusal import Reason
from tests.orch_sidecar.admission.examples import BULK, bulk, interactive, reason, rules
from vllm_plugin.contracts.lease_protocol import Claim


class Line:
    """An order and what it looks at: 4 slots, and an aging bound of 10 s."""

    def __init__(self, interactive_batch: int = 4) -> None:
        self.ledger, self.queues = Ledger(), Queues()
        self.ledger.slots_total = 4
        service_times = ServiceTimes(self.ledger)
        self.constraints = AdmissionConstraints(rules(), self.ledger, self.queues, service_times)
        self.constraints.batch.limits = Limits(interactive_batch, 4, 4, True)
        self.constraints.reserve.resized(4, interactive_batch)
        self.order = QueueOrder(self.constraints)

    def run(self, request: AdmissionRequest) -> None:
        name = f"running {self.ledger.lease_count}"
        lease = self.ledger.grant(name, request, 0.0)
        for each in self.constraints.granting[request.service_class is BULK]:
            each.granted(lease, request, 0.0)

    def wait(self, name: str, request: AdmissionRequest) -> None:
        waiting = QueuedRequest(
            name, request, 0.0, 60.0, Reason.QUEUE_TIMEOUT, self.constraints.reserve.clock.delay_s
        )
        self.queues.add(waiting)

    def next(self, now: float = 0.0) -> str | None:
        waiting = self.order.next(now)
        return None if waiting is None else waiting.ticket

    def blocks(self, request: AdmissionRequest, now: float = 0.0) -> Constraint | None:
        self.constraints.set_kv(request)
        return self.order.blocking(request, now)

    def pause(self, pause_s: float, now: float, *, offered: bool = False) -> None:
        self.constraints.pause.begin(pause_s, now, offered=offered)

    def delay(self) -> None:
        """From 0 s on interactive requests take everything."""
        self.constraints.reserve.clock.set_share(1.0, 0.0)


def test_empty_queue_dispatches_nothing() -> None:
    line = Line()
    assert (line.next(), line.order.blocked_by, line.order.changes_at(0.0)) == (None, None, None)


def test_request_that_arrives_before_a_dispatch_waits_for_those_ahead() -> None:
    line = Line()
    line.wait("b", bulk())
    assert line.order.blocked_by is None
    assert reason(line.blocks(bulk())) == "slot"
    assert line.blocks(interactive()) is None


def test_a_bulk_request_that_is_due_waits_for_slots_only() -> None:
    line = Line()
    line.constraints.reserve.interactive.slots = 4.0
    line.run(interactive())
    line.wait("b", bulk(3))
    assert reason(line.blocks(bulk(3))) == "slot", "one of its class is ahead"
    assert reason(line.constraints.blocking(bulk(3), 0.0)) == "reserve"
    line.delay()
    line.wait("i", interactive(4))
    assert line.next(10.0) == "b"
    line.run(interactive())
    assert line.next(10.0) is None
    assert reason(line.order.blocked_by) == "slot"
    assert reason(line.blocks(interactive(), 10.0)) == "slot", "no other overtakes it now"


def test_offer_ends_a_pause_for_which_slots_are_claimed() -> None:
    line = Line()
    line.constraints.offers.sidecars = 2
    line.wait("b", bulk(2))
    line.pause(0.5, 0.0)
    assert line.next(0.1) is None
    assert (reason(line.order.blocked_by), line.order.changes_at(0.1)) == ("pause", 0.5)
    assert line.order.claim == Claim(2, urgent=False)
    line.constraints.offers.offer(2, 1)
    assert line.next(0.1) == "b"


def test_rejection_under_an_offer_claims_no_slots_until_the_pause_has_ended() -> None:
    """The child lacks something else than slots: it would get offers again and again in vain."""
    line = Line()
    line.constraints.offers.sidecars = 2
    line.wait("b", bulk(2))
    line.pause(0.5, 0.0, offered=True)
    assert line.next(0.1) is None
    assert (reason(line.order.blocked_by), line.order.claim) == ("pause", None)
    assert line.next(0.5) == "b"


def test_the_time_of_a_delayed_request_is_foreseen() -> None:
    line = Line()
    line.run(interactive(4))
    line.wait("b", bulk())
    line.constraints.reserve.clock.set_share(0.5, 0.0)
    line.next(0.0)
    assert reason(line.order.blocked_by) == "slot"
    assert line.order.changes_at(0.0) == 20.0
    assert line.order.changes_at(20.0) is None, "it has come, and the slot has not"


def test_a_moment_that_was_foreseen_is_a_moment_at_which_it_is_so() -> None:
    """However the sums are rounded, also if the clock stands still from then on."""
    for hundredths in range(1, 400):
        line = Line()
        line.run(interactive(4))
        line.constraints.reserve.clock.set_share(1.0, 0.0)
        line.constraints.reserve.clock.set_share(0.3, hundredths / 100)
        line.wait("b", bulk())
        at = line.order.changes_at(hundredths / 100)
        assert at is not None
        line.constraints.reserve.clock.set_share(0.0, at)
        again = line.order.changes_at(at)
        assert again is None or again > at

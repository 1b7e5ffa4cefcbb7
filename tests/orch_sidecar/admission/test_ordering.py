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


def test_interactive_before_bulk_and_first_come_first_served() -> None:
    line = Line()
    for name, request in (
        ("b1", bulk()),
        ("i1", interactive()),
        ("b2", bulk()),
        ("i2", interactive()),
    ):
        line.wait(name, request)
    went = []
    while (goes := line.next()) is not None:
        line.queues.remove(goes)
        went.append(goes)
    assert went == ["i1", "i2", "b1", "b2"]


def test_a_delayed_bulk_request_goes_before_interactive_ones() -> None:
    line = Line()
    line.wait("b", bulk())
    line.delay()
    line.wait("i", interactive())
    assert line.next(9.9) == "i"
    assert line.next(10.0) == "b"


def test_no_request_overtakes_an_aged_bulk_request_that_does_not_fit() -> None:
    line = Line()
    line.run(interactive())
    line.wait("b", bulk(4))
    line.delay()
    line.wait("i", interactive())
    assert line.next(9.9) == "i"
    assert line.next(10.0) is None
    assert reason(line.order.blocked_by) == "slot"
    assert reason(line.blocks(interactive(), 10.0)) == "slot"
    assert reason(line.blocks(bulk(), 10.0)) == "slot"


def test_blocked_request_blocks_those_behind_it() -> None:
    line = Line()
    line.run(interactive())
    line.wait("large", interactive(4))
    line.wait("small", interactive())
    line.wait("bulk", bulk())
    assert line.next() is None
    assert reason(line.order.blocked_by) == "slot"


def test_interactive_requests_that_wait_for_each_other_let_bulk_ones_go() -> None:
    line = Line(interactive_batch=1)
    line.run(interactive())
    line.wait("i", interactive())
    assert line.next() is None
    assert reason(line.order.blocked_by) == "batch"
    assert reason(line.blocks(interactive())) == "batch"
    assert line.blocks(bulk()) is None
    line.wait("b", bulk())
    assert line.next() == "b"
    assert reason(line.order.blocked_by) == "batch"
    assert reason(line.blocks(bulk())) == "batch", "one of its class is ahead"


def test_constraint_of_the_head_is_reported_even_if_another_blocks_the_second() -> None:
    line = Line(interactive_batch=1)
    line.run(interactive())
    line.wait("i", interactive())
    line.wait("b", bulk(4))
    assert line.next() is None
    assert reason(line.order.blocked_by) == "batch"


def test_no_request_overtakes_one_of_its_own_class() -> None:
    line = Line()
    line.run(interactive())
    line.wait("i", interactive(4))
    line.wait("b", bulk(4))
    line.next()
    assert reason(line.blocks(interactive())) == "slot"
    assert reason(line.blocks(bulk())) == "slot"


def test_interactive_requests_pass_by_bulk_ones() -> None:
    line = Line()
    line.run(bulk())
    line.wait("b", bulk(4))
    line.next()
    assert line.blocks(interactive()) is None
    assert reason(line.blocks(bulk())) == "slot"


def test_first_request_waits_only_for_its_own_constraint() -> None:
    line = Line()
    line.run(bulk(3))
    assert line.blocks(bulk()) is None
    assert reason(line.blocks(bulk(2))) == "slot"


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


def test_pause_blocks_all_requests() -> None:
    line = Line()
    line.pause(1.0, 4.0)
    assert reason(line.blocks(interactive(), 4.9)) == "pause"
    line.wait("i", interactive())
    assert line.next(4.9) is None
    assert reason(line.order.blocked_by) == "pause"
    assert line.order.changes_at(4.9) == 5.0
    assert line.next(5.0) == "i"
    line.queues.remove("i")
    assert line.blocks(interactive(), 5.0) is None


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


def test_predictable_ends_of_constraints_are_known() -> None:
    line = Line()
    line.pause(1.0, 4.0)
    constraints, request = line.constraints, interactive()
    assert constraints.pause.clears_at(request, 4.0) == 5.0
    assert constraints.kv.clears_at(request, 4.0) == 4.25, "then it looks again"
    assert constraints.slots.clears_at(request, 4.0) is None


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

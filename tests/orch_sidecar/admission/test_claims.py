"""What a sidecar claims of an engine that others use, too, for those that wait here and at parents,
and how an offer is divided among all."""

from __future__ import annotations

import asyncio

import pytest

from orch_sidecar.admission.availability import OrderedBy
from orch_sidecar.admission.claims import ParentClaims
from orch_sidecar.admission.controller import AdmissionController
from orch_sidecar.admission.types import Queued
from orch_sidecar.api.refusal import Refusal
from tests.orch_sidecar.admission.examples import (
    BULK,
    INTERACTIVE,
    STEP_TIME,
    bulk,
    class_rules,
    core_of,
    fill,
    granted,
    interactive,
    queue,
    reason,
    report,
    rules,
)
from tests.orch_sidecar.admission.gates import gate_of, opened
from vllm_plugin.contracts.lease_protocol import OFFER_S, Claim, ClaimCall
from vllm_plugin.contracts.profile import BatchBounds

# Bulk requests start while no more than four sequences run.
FEW = rules(bulk=class_rules(batch=BatchBounds(least=1, most=4)))


def test_head_of_the_queue_claims_the_slots_that_it_lacks() -> None:
    core = core_of(8, foreign=8, sidecars=2)
    assert isinstance(core.arrive("a", interactive(3), 0.0), Queued)
    assert core.order.claim == Claim(3, urgent=True)
    core.leave("a", 0.0)
    assert core.order.claim is None


def test_request_that_waits_for_something_else_claims_nothing() -> None:
    """Slots would be booked for it in vain, again and again."""
    core = core_of(8, FEW, foreign=8, sidecars=2, contended=True)
    assert isinstance(core.arrive("a", bulk(), 0.0), Queued)
    assert core.order.claim is None
    assert reason(core.order.blocked_by) == "batch"
    assert core.next_event(0.0) is not None, "it looks again, whether anything happens or not"
    core.engine_reports(report(8, foreign=4, sidecars=2, contended=True), 1.0)
    assert core.order.claim is None
    core.engine_reports(report(8, foreign=3, sidecars=2, contended=True), 2.0)
    assert core.order.claim == Claim(1, urgent=False)
    core.constraints.offers.offer(1, 1)
    assert granted(core.dispatch(2.0)) == ["a"]


def test_sidecar_whose_interactive_requests_reach_their_limit_claims_nothing() -> None:
    core = core_of(8, rules(class_rules(batch=BatchBounds(least=1, most=2))), sidecars=2)
    fill(core, interactive(), "a", "b")
    core.engine_reports(report(8, foreign=6, sidecars=2, contended=True), 0.0)
    assert isinstance(core.arrive("c", interactive(), 0.0), Queued)
    assert core.order.claim is None
    core.release("a", 1.0)
    assert core.order.claim == Claim(1, urgent=True)


def test_bulk_request_is_owed_its_share_of_an_engine_that_others_want_for_themselves() -> None:
    """Its own sidecar has no interactive traffic, and others have so much that their claims always
    go before one that is not urgent."""
    core = core_of(8, rules(bulk_share=0.25), foreign=8, sidecars=2, contended=True)
    assert isinstance(core.arrive("a", bulk(), 0.0), Queued)
    assert core.order.claim == Claim(1, urgent=False)
    core.dispatch(10.0)  # it is guaranteed a slot of eight
    assert core.order.claim == Claim(1, urgent=True)


def test_offer_is_not_kept_for_a_later_request() -> None:
    core = core_of(8, foreign=6, sidecars=2, contended=True)
    core.arrive("a", interactive(2), 0.0)
    core.constraints.offers.offer(1, 1)
    core.dispatch(0.0)
    core.constraints.offers.settle()
    core.leave("a", 0.0)
    assert isinstance(core.arrive("b", interactive(), 0.01), Queued)
    assert core.order.claim == Claim(1, urgent=True)
    assert core.constraints.offers.take_unused() == 1


def test_all_that_wait_are_claimed_up_to_twice_the_slots_of_the_engine() -> None:
    core = core_of(8, foreign=8, sidecars=2)
    queue(core, interactive(2), "a")
    queue(core, interactive(1), "b", "c")
    queue(core, bulk(4), "d")
    assert core.order.claim == Claim(2, urgent=True, more=2), "bulk requests are another claim"
    for name in "efghi":
        queue(core, interactive(3), name)
    assert core.order.claim == Claim(2, urgent=True, more=14)


def test_bulk_requests_claim_no_free_slots_that_are_reserved() -> None:
    core = core_of(8, foreign=2, sidecars=2, contended=True)
    for at in range(200):  # three at a time
        core.constraints.reserve.interactive.arrivals.append((at * 1.0, interactive(work=384.0)))
    reserved = core.constraints.reserve.reserved(200.0)
    assert 1 <= reserved <= 5
    queue(core, bulk(), *"abcdefgh", at=200.0)
    claim = core.order.claim
    assert claim is not None
    assert claim.slots == 8 - 2 - reserved


def test_bulk_request_that_is_owed_a_slot_claims_for_itself_alone() -> None:
    core = core_of(8, rules(bulk_share=0.25), foreign=8, sidecars=2, contended=True)
    queue(core, bulk(), "a", "b", "c")
    core.dispatch(10.0)
    assert core.order.claim == Claim(1, urgent=True)


# The batch of interactive requests, of all sidecars together.

BATCH = rules(class_rules(batch=BatchBounds(least=1, most=6)))


def beside(foreign_interactive: int, sidecars: int = 2) -> AdmissionController:
    return core_of(
        16, BATCH, foreign=foreign_interactive, foreign_interactive=foreign_interactive,
        sidecars=sidecars,
    )  # fmt: skip


@pytest.mark.parametrize(("sidecars", "share"), [(2, 3), (3, 2), (8, 1)])
def test_sidecar_may_have_its_share_of_the_batch_whatever_the_others_have(
    sidecars: int, share: int
) -> None:
    core = beside(6, sidecars)
    fill(core, interactive(), *"abc"[:share])
    queue(core, interactive(), "d")
    assert reason(core.blocked_by) == "batch"
    assert core.constraints.free_slots(INTERACTIVE, 0.0) == 0


def test_bulk_requests_yield_to_the_interactive_traffic_of_other_sidecars() -> None:
    tight = rules(class_rules(tpot_p95_ms=30.0), class_rules(tpot_p95_ms=1000.0))
    core = core_of(64, tight, sidecars=2, step_time=STEP_TIME, batch_seen=64)
    limits = core.constraints.batch.limits
    assert limits.mixed < limits.bulk
    taken = limits.mixed
    core.engine_reports(
        report(64, foreign=taken, sidecars=2, step_time=STEP_TIME, batch_seen=64), 1.0
    )
    assert core.constraints.free_slots(BULK, 1.0) > 0
    core.engine_reports(
        report(
            64, foreign=taken, foreign_interactive=1, sidecars=2, step_time=STEP_TIME, batch_seen=64
        ),
        2.0,
    )
    assert core.constraints.free_slots(BULK, 2.0) == 0


OWN, ONE, TWO = "0" * 16, "1" * 16, "2" * 16
SLOTS = 8


def several(slots: int, *, urgent: bool = True) -> Claim:
    return Claim(1, urgent, slots - 1)


@pytest.fixture
def parents() -> ParentClaims:
    """Two parents read the state."""
    made = ParentClaims(OWN)
    made.claim_table.opened(ONE)
    made.claim_table.opened(TWO)
    return made


def sent(parents: ParentClaims, instance: str) -> list[int]:
    return [offer.slots for offer in parents.offers(instance)]


def test_without_claims_of_parents_all_is_for_the_own_queue(parents: ParentClaims) -> None:
    assert parents.total(None, SLOTS) is None
    assert parents.total(several(3), SLOTS) == several(3)
    assert parents.divide(5, several(3), 0.0) == 5
    assert parents.parents_with_offers() == []


def test_claim_is_the_sum_of_all(parents: ParentClaims) -> None:
    parents.claimed(ONE, ClaimCall(several(2)), 0.0)
    assert parents.total(None, SLOTS) == several(2)
    assert parents.total(several(3), SLOTS) == several(5)
    parents.claimed(TWO, ClaimCall(several(12)), 0.0)
    assert parents.total(several(3), SLOTS) == several(16), "twice the slots at most"


def test_urgent_claims_go_first(parents: ParentClaims) -> None:
    parents.claimed(ONE, ClaimCall(Claim(2, urgent=True)), 0.0)
    assert parents.total(several(3, urgent=False), SLOTS) == Claim(2, urgent=True)
    parents.claimed(ONE, ClaimCall(None), 0.0)
    assert parents.total(several(3, urgent=False), SLOTS) == several(3, urgent=False)


def test_offer_is_divided_equally(parents: ParentClaims) -> None:
    for each in (ONE, TWO):
        parents.claimed(each, ClaimCall(several(8)), 0.0)
    own = 0
    got = {ONE: 0, TWO: 0}
    for now in range(30):
        own += parents.divide(2, several(8), now)
        for each in parents.parents_with_offers():
            for slots in sent(parents, each):
                got[each] += slots
                assert parents.consume_booking(each, slots, now)
            parents.claimed(each, ClaimCall(several(8), taken=1000), now)
    assert own + sum(got.values()) == 60
    assert max(own, *got.values()) - min(own, *got.values()) <= 2, (own, got)


def test_offer_to_a_parent_is_booked_for_its_requests(parents: ParentClaims) -> None:
    parents.claimed(ONE, ClaimCall(several(3)), 0.0)
    assert parents.divide(3, None, 0.0) == 0
    assert parents.parents_with_offers() == [ONE]
    assert sent(parents, ONE) == [3]
    assert parents.parents_with_offers() == []
    assert not parents.consume_booking(TWO, 1, 0.0)
    assert parents.consume_booking(ONE, 2, 0.0)
    assert not parents.consume_booking(ONE, 2, 0.0)
    assert parents.consume_booking(ONE, 1, 0.0)
    assert not parents.claim_table.has_claims


def test_parent_gives_slots_back(parents: ParentClaims) -> None:
    parents.claimed(ONE, ClaimCall(several(3)), 0.0)
    parents.divide(3, None, 0.0)
    [offer] = parents.offers(ONE)
    assert parents.claimed(ONE, ClaimCall(None, taken=offer.number, unused=2), 0.0) == 2
    assert not parents.consume_booking(ONE, 2, 0.0)


def test_offer_that_a_parent_does_not_take_expires(parents: ParentClaims) -> None:
    parents.claimed(ONE, ClaimCall(several(2)), 0.0)
    parents.divide(1, None, 0.0)
    assert not parents.consume_booking(ONE, 1, OFFER_S)
    assert parents.total(None, SLOTS) is None, "nor does it claim any longer"


def test_slots_gather_for_the_first_and_the_rest_is_given_back(parents: ParentClaims) -> None:
    parents.claimed(ONE, ClaimCall(Claim(4, urgent=True)), 0.0)
    assert parents.divide(3, None, 0.0) == 3
    assert parents.parents_with_offers() == []


def test_parent_that_disconnects_claims_nothing(parents: ParentClaims) -> None:
    parents.claimed(ONE, ClaimCall(several(2)), 0.0)
    parents.divide(1, None, 0.0)
    parents.closed(ONE)
    assert parents.parents_with_offers() == []
    assert not parents.claim_table.has_claims
    assert not parents.consume_booking(ONE, 1, 0.0)


async def test_slots_of_a_parents_request_that_is_refused_are_given_back_at_once() -> None:
    """Later they would be taken from what is offered then."""
    gate, calls = gate_of(SLOTS), list[int]()
    gate.engine_reports(report(SLOTS, sidecars=2, contended=True))
    gate.claims.parents.claim_table.opened(ONE)
    gate.claims.on_change = lambda: calls.append(gate.offers.unused)
    assert gate.claims.claimed(ONE, ClaimCall(several(2)), asyncio.get_running_loop().time())
    gate.offered(2, 1)
    gate.drain(OrderedBy.OPERATOR)
    request = interactive(2)
    request.parent = ONE
    assert isinstance(await opened(gate, request).lease(), Refusal)
    assert calls[-1] == gate.offers.unused == 2

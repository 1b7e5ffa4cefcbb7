"""What is claimed for the parents of a sidecar, and how an offer is divided among all."""

from __future__ import annotations

import asyncio

import pytest

from orch_sidecar.admission.claims.parent_claims import ParentClaims
from orch_sidecar.admission.draining import OrderedBy
from orch_sidecar.api.refusal import Refusal
from tests.orch_sidecar.admission.examples import interactive, report
from tests.orch_sidecar.admission.gates import gate_of, opened
from vllm_plugin.contracts.lease_protocol import OFFER_S, Claim, ClaimCall

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

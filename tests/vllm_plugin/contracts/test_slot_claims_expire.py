"""Claims of sidecars that are lost without the end of their streams."""

from __future__ import annotations

import pytest

from vllm_plugin.contracts.lease_protocol import CLAIM_S, Claim, ClaimCall
from vllm_plugin.contracts.slot_claims import SlotClaims

LOST, OTHER = "1" * 16, "2" * 16
URGENT = Claim(1, urgent=True)


@pytest.fixture
def claims() -> SlotClaims:
    made = SlotClaims()
    for instance in (LOST, OTHER):
        made.opened(instance)
    return made


@pytest.mark.parametrize(
    "call", [ClaimCall(URGENT, number=1), ClaimCall(None, number=1, waits=True)]
)
def test_claim_that_is_not_repeated_expires(claims: SlotClaims, call: ClaimCall) -> None:
    claims.call(LOST, call, 10.0)
    assert not claims.expire(10.0 + CLAIM_S - 0.1)
    assert claims.contended(OTHER)
    assert claims.expire(10.0 + CLAIM_S)
    assert not claims.contended(OTHER)
    assert (claims.has_claims, claims.any_unclaimed_demand, claims.claim_of(LOST)) == (
        False,
        False,
        None,
    )
    assert not claims.expire(10.0 + 2 * CLAIM_S)


@pytest.mark.parametrize("number", [2, 1], ids=["the next call", "a call of the same number"])
def test_claim_stands_while_calls_repeat_it(claims: SlotClaims, number: int) -> None:
    """A call that does nothing else still proves that its sidecar is there."""
    claims.call(LOST, ClaimCall(URGENT, number=1), 0.0)
    claims.call(LOST, ClaimCall(URGENT, number=number), CLAIM_S - 0.1)
    assert not claims.expire(CLAIM_S)
    assert claims.claim_of(LOST) == URGENT


def test_claim_of_a_rejected_request_expires_if_no_call_follows(claims: SlotClaims) -> None:
    assert not claims.try_enter(LOST, URGENT, free=0, now_s=0.0)
    assert not claims.expire(CLAIM_S / 2)
    assert claims.expire(CLAIM_S)
    assert claims.try_enter(OTHER, Claim(1, urgent=False), free=1, now_s=CLAIM_S)


def test_requests_of_a_sidecar_keep_its_claim(claims: SlotClaims) -> None:
    claims.call(LOST, ClaimCall(Claim(4, urgent=True), number=1), 0.0)
    assert not claims.try_enter(LOST, URGENT, free=0, now_s=CLAIM_S / 2)
    assert not claims.expire(CLAIM_S)
    assert claims.claim_of(LOST) == Claim(4, urgent=True)


def test_claim_that_expired_can_be_made_again(claims: SlotClaims) -> None:
    claims.call(LOST, ClaimCall(URGENT, number=1), 0.0)
    assert claims.expire(CLAIM_S)
    claims.call(LOST, ClaimCall(URGENT, number=2), 2 * CLAIM_S)
    assert [(each.instance, each.slots) for each in claims.offer(1, 2 * CLAIM_S)] == [(LOST, 1)]


def test_clock_that_is_set_back_keeps_no_claim_for_longer(claims: SlotClaims) -> None:
    claims.call(LOST, ClaimCall(URGENT, number=1), 1000.0)
    assert claims.expire(10.0)

"""Sidecars that claim slots all the time get equal shares of them."""

from __future__ import annotations

import pytest

from vllm_plugin.lease_protocol import OFFER_S, Claim
from vllm_plugin.slot_claims import SlotClaims

ONE, TWO, THREE = "1" * 16, "2" * 16, "3" * 16
URGENT = Claim(1, urgent=True)


@pytest.fixture
def claims() -> SlotClaims:
    """Three sidecars read the state."""
    made = SlotClaims()
    for instance in (ONE, TWO, THREE):
        made.opened(instance)
    return made


def granted(claims: SlotClaims, free: int) -> list[tuple[str, int]]:
    """Offers so many slots; returns the offers, all of which were taken."""
    offers = claims.offer(free, 0.0)
    for offer in offers:
        assert claims.enters(offer.instance, Claim(offer.cost, urgent=True), free)
    return [(offer.instance, offer.cost) for offer in offers]


def test_sidecars_get_equal_shares_of_slots_whatever_their_requests_need(
    claims: SlotClaims,
) -> None:
    claims.claim(ONE, Claim(1, urgent=True))
    claims.claim(TWO, Claim(4, urgent=True))
    got = {ONE: 0, TWO: 0}
    for _ in range(400):
        for instance, cost in granted(claims, 4):
            got[instance] += cost
    assert abs(got[ONE] - got[TWO]) <= 8, got


def test_sidecars_whose_requests_end_together_get_equal_shares(claims: SlotClaims) -> None:
    """Each has one offer at a time, so one of three gets the fourth slot, too."""
    got = dict.fromkeys((ONE, TWO, THREE), 0)
    for each in got:
        claims.claim(each, URGENT)
    for _ in range(60):
        for free in (4, 1):
            for instance, cost in granted(claims, free):
                got[instance] += cost
    assert max(got.values()) - min(got.values()) <= 1, got


def test_sidecar_that_claimed_nothing_gets_no_more_for_that(claims: SlotClaims) -> None:
    claims.claim(ONE, URGENT)
    for _ in range(50):
        assert granted(claims, 1) == [(ONE, 1)]
    claims.claim(TWO, URGENT)
    got = [instance for _ in range(10) for instance, _ in granted(claims, 1)]
    assert got.count(TWO) in (5, 6), got


def test_shares_are_kept_when_a_claim_is_withdrawn_and_made_again(claims: SlotClaims) -> None:
    got = {ONE: 0, TWO: 0}
    claims.claim(ONE, URGENT)
    for _ in range(100):
        claims.claim(TWO, Claim(2, urgent=True))
        for instance, cost in granted(claims, 2):
            got[instance] += cost
        claims.withdraw(TWO)
        claims.expire(OFFER_S)
    assert abs(got[ONE] - got[TWO]) <= 4, got

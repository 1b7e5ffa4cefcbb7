"""Sidecars that claim slots all the time get equal shares of them."""

from __future__ import annotations

import pytest

from vllm_plugin.contracts.lease_protocol import OFFER_S, Claim, ClaimCall
from vllm_plugin.contracts.slot_claims import SlotClaims

ONE, TWO, THREE = "1" * 16, "2" * 16, "3" * 16


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
        assert claims.try_enter(offer.instance, Claim(offer.slots, urgent=True), free, 0.0)
    return [(offer.instance, offer.slots) for offer in offers]


def claim(claims: SlotClaims, instance: str, wanted: Claim | None) -> None:
    claims.call(instance, ClaimCall(wanted), 0.0)


def test_sidecars_get_equal_shares_of_slots_whatever_their_requests_need(
    claims: SlotClaims,
) -> None:
    claim(claims, ONE, Claim(1, urgent=True, more=2000))
    claim(claims, TWO, Claim(4, urgent=True, more=2000))
    got = {ONE: 0, TWO: 0}
    for _ in range(400):
        for instance, cost in granted(claims, 4):
            got[instance] += cost
    assert abs(got[ONE] - got[TWO]) <= 8, got


def test_sidecar_that_claimed_nothing_gets_no_more_for_that(claims: SlotClaims) -> None:
    claim(claims, ONE, Claim(1, urgent=True, more=300))
    for _ in range(50):
        assert granted(claims, 1) == [(ONE, 1)]
    claim(claims, TWO, Claim(1, urgent=True, more=300))
    got = [instance for _ in range(10) for instance, _ in granted(claims, 1)]
    assert got.count(TWO) in (5, 6), got


def test_shares_are_kept_when_a_claim_is_withdrawn_and_made_again(claims: SlotClaims) -> None:
    got = {ONE: 0, TWO: 0}
    claim(claims, ONE, Claim(1, urgent=True, more=300))
    for _ in range(100):
        claim(claims, TWO, Claim(2, urgent=True))
        for instance, cost in granted(claims, 2):
            got[instance] += cost
        claim(claims, TWO, None)
        claims.expire(OFFER_S)
    assert abs(got[ONE] - got[TWO]) <= 4, got


def turns(claims: SlotClaims, count: int) -> list[str]:
    """To which sidecars the next single slots go, all of which are used."""
    return [instance for _ in range(count) for instance, _ in granted(claims, 1)]


def test_slots_that_expire_unused_are_charged_twice(claims: SlotClaims) -> None:
    claim(claims, ONE, Claim(2, urgent=True))
    assert [offer.instance for offer in claims.offer(2, 0.0)] == [ONE]
    assert claims.expire(OFFER_S)
    claim(claims, ONE, Claim(1, urgent=True, more=300))
    claim(claims, TWO, Claim(1, urgent=True, more=300))
    assert turns(claims, 6) == [TWO, TWO, TWO, TWO, ONE, TWO]


def test_slots_that_are_given_back_in_time_are_not_charged(claims: SlotClaims) -> None:
    claim(claims, ONE, Claim(2, urgent=True))
    [offer] = claims.offer(2, 0.0)
    claims.call(ONE, ClaimCall(Claim(3, urgent=True), offer.number, unused=2), 0.05)
    claim(claims, ONE, Claim(1, urgent=True, more=300))
    claim(claims, TWO, Claim(1, urgent=True, more=300))
    assert not claims.expire(OFFER_S)
    assert turns(claims, 4) == [ONE, TWO, ONE, TWO]


def test_slots_that_are_given_back_and_claimed_again_at_once_stay_charged(
    claims: SlotClaims,
) -> None:
    """A sidecar that cannot use what it claims, or does not want to, is not first for ever."""
    wanted, first = Claim(1, urgent=True, more=7), []
    for each in (ONE, TWO):
        claim(claims, each, wanted)
    for _ in range(6):
        for offer in claims.offer(1, 0.0):
            first.append(offer.instance)
            claims.call(offer.instance, ClaimCall(wanted, offer.number, unused=1), 0.0)
    assert first == [ONE, TWO, ONE, TWO, ONE, TWO]

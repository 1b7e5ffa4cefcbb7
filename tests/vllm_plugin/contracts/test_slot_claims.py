"""Which sidecar gets the slots that come free: claims, offers, and who may enter.

Claims of sidecars that are lost without the end of their streams expire.

Sidecars that claim slots all the time get equal shares of them.
"""

from __future__ import annotations

from typing import Any

import pytest

from vllm_plugin.contracts.lease_protocol import CLAIM_S, OFFER_S, Claim, ClaimCall
from vllm_plugin.contracts.slot_claims import SlotClaims

ONE, TWO, THREE = "1" * 16, "2" * 16, "3" * 16
URGENT, BULK = Claim(1, urgent=True), Claim(1, urgent=False)


@pytest.fixture
def claims() -> SlotClaims:
    """Three sidecars read the state."""
    made = SlotClaims()
    for instance in (ONE, TWO, THREE):
        made.opened(instance)
    return made


def offered(claims: SlotClaims, free: int, now_s: float = 0.0) -> list[tuple[str, int]]:
    return [(offer.instance, offer.slots) for offer in claims.offer(free, now_s)]


def claim(claims: SlotClaims, instance: str, wanted: Claim | None, **known: Any) -> None:
    claims.call(instance, ClaimCall(wanted, **known), now_s=0.0)


def enters(claims: SlotClaims, instance: str, wanted: Claim, free: int) -> bool:
    return claims.try_enter(instance, wanted, free, now_s=0.0)


def test_request_without_a_slot_leaves_a_claim(claims: SlotClaims) -> None:
    assert not enters(claims, ONE, Claim(2, urgent=False), free=1)
    assert claims.claim_of(ONE) == Claim(2, urgent=False)
    assert not claims.contended(ONE)
    assert claims.contended(TWO)
    assert claims.contended(None)


def test_engine_is_contended_also_by_requests_that_wait_for_something_else(
    claims: SlotClaims,
) -> None:
    claim(claims, ONE, None, number=1, waits=True)
    assert (claims.has_unclaimed_demand(ONE), claims.has_unclaimed_demand(TWO)) == (True, False)
    assert (claims.contended(ONE), claims.contended(TWO)) == (False, True)
    assert not claims.has_claims, "no slot is for them"
    assert enters(claims, TWO, Claim(4, urgent=False), free=4)
    claim(claims, ONE, None, number=2)
    assert not claims.contended(TWO)


def test_sidecar_that_does_not_read_the_state_leaves_no_claim(claims: SlotClaims) -> None:
    assert not enters(claims, "4" * 16, URGENT, free=0)
    assert not claims.has_claims


def test_older_claim_of_a_sidecar_stays_when_a_later_request_of_it_is_rejected(
    claims: SlotClaims,
) -> None:
    enters(claims, ONE, Claim(3, urgent=True), free=0)
    enters(claims, ONE, Claim(1, urgent=True), free=0)
    assert claims.claim_of(ONE) == Claim(3, urgent=True), "it is at the head of the sidecar's queue"
    enters(claims, TWO, BULK, free=0)
    enters(claims, TWO, URGENT, free=0)
    assert claims.claim_of(TWO) == URGENT, "an interactive request goes before a bulk one"


def test_claim_that_becomes_urgent_goes_behind_those_that_are(claims: SlotClaims) -> None:
    claim(claims, ONE, BULK)
    claim(claims, TWO, URGENT)
    claim(claims, ONE, URGENT)
    assert offered(claims, free=2) == [(TWO, 1), (ONE, 1)]


def test_sidecars_that_always_have_something_queued_take_turns(claims: SlotClaims) -> None:
    for instance in (ONE, TWO, THREE):
        claim(claims, instance, Claim(1, urgent=True, more=9))
    turns = []
    for _ in range(6):
        [(instance, _)] = offered(claims, free=1)
        assert enters(claims, instance, URGENT, free=1)
        turns.append(instance)
    assert turns == [ONE, TWO, THREE, ONE, TWO, THREE]


def test_slots_that_are_free_together_are_one_offer_to_each(claims: SlotClaims) -> None:
    claim(claims, ONE, Claim(1, urgent=True, more=9))
    claim(claims, TWO, Claim(2, urgent=True, more=2))
    assert offered(claims, free=9) == [(ONE, 5), (TWO, 4)]
    assert claims.offered == 9
    assert (claims.claim_of(ONE), claims.claim_of(TWO)) == (Claim(1, urgent=True, more=4), None)
    assert [enters(claims, ONE, URGENT, free) for free in (9, 8, 7, 6, 5)] == [True] * 5
    assert not enters(claims, ONE, URGENT, free=4), "those are booked for the other one"
    assert [enters(claims, TWO, Claim(2, urgent=True), free) for free in (4, 2)] == [True] * 2
    assert claims.offered == 0


def test_large_requests_are_offered_slots_for_whole_ones(claims: SlotClaims) -> None:
    claim(claims, ONE, Claim(3, urgent=True, more=6))
    assert offered(claims, free=8) == [(ONE, 6)]
    assert claims.claim_of(ONE) == Claim(3, urgent=True)


def test_slots_gather_for_a_large_claim_and_nobody_overtakes_it(claims: SlotClaims) -> None:
    claim(claims, ONE, Claim(4, urgent=True))
    for free in (1, 2, 3):
        assert offered(claims, free) == []
        assert not enters(claims, TWO, URGENT, free)
    assert offered(claims, free=4) == [(ONE, 4)], "the claim that TWO left is behind it"


def test_request_that_is_more_urgent_than_all_claims_enters(claims: SlotClaims) -> None:
    claim(claims, ONE, Claim(4, urgent=False))
    assert enters(claims, TWO, URGENT, free=1)
    assert not enters(claims, TWO, BULK, free=1)


def test_claim_counts_offers_that_its_sidecar_has_not_heard_of(claims: SlotClaims) -> None:
    claim(claims, ONE, Claim(1, urgent=True, more=2))
    [first] = claims.offer(2, 0.0)
    claim(claims, ONE, Claim(1, urgent=True, more=4))
    assert claims.claim_of(ONE) == Claim(1, urgent=True, more=2), "two are on their way"
    claim(claims, ONE, Claim(1, urgent=True, more=4), taken=first.number)
    assert claims.claim_of(ONE) == Claim(1, urgent=True, more=4), "these have been taken"


def test_claim_for_a_request_that_needs_more_than_is_on_its_way_gathers_all_of_it(
    claims: SlotClaims,
) -> None:
    claim(claims, ONE, URGENT)
    [offer] = claims.offer(1, 0.0)
    claim(claims, ONE, Claim(2, urgent=True))
    assert claims.claim_of(ONE) == Claim(2, urgent=True), (
        "the one that is offered will be given back"
    )
    assert offered(claims, free=2) == []
    claim(claims, ONE, Claim(2, urgent=True), taken=offer.number, unused=1)
    assert offered(claims, free=2) == [(ONE, 2)]


def test_slots_that_are_given_back_are_offered_to_the_next(claims: SlotClaims) -> None:
    claim(claims, ONE, Claim(1, urgent=True, more=3))
    claim(claims, TWO, Claim(1, urgent=False, more=7))
    [offer] = claims.offer(4, 0.0)
    claim(claims, ONE, None, taken=offer.number, unused=3)
    assert claims.offered == 1, "one is for a request that is on its way"
    assert offered(claims, free=4) == [(TWO, 3)]
    assert enters(claims, ONE, URGENT, free=4)


def test_slots_of_an_offer_that_was_not_heard_of_are_not_given_back(claims: SlotClaims) -> None:
    claim(claims, ONE, URGENT)
    [first] = claims.offer(1, 0.0)
    assert enters(claims, ONE, URGENT, free=1)
    claim(claims, ONE, URGENT, taken=first.number)
    claims.offer(1, 0.0)
    claim(claims, ONE, None, taken=first.number, unused=1)
    assert claims.offered == 1


def test_sidecar_is_not_charged_for_what_it_gives_back(claims: SlotClaims) -> None:
    for each in (ONE, TWO):
        claim(claims, each, Claim(1, urgent=True, more=7))
    assert offered(claims, free=4) == [(ONE, 2), (TWO, 2)]
    assert enters(claims, TWO, Claim(2, urgent=True), free=4)
    claim(claims, ONE, Claim(3, urgent=True, more=5), taken=1, unused=2)
    claim(claims, ONE, Claim(1, urgent=True, more=7), taken=1)
    assert offered(claims, free=2) == [(ONE, 2)]


def test_call_that_was_overtaken_by_a_later_one_does_nothing(claims: SlotClaims) -> None:
    claim(claims, ONE, Claim(2, urgent=True), number=2)
    claim(claims, ONE, None, number=1)
    claim(claims, ONE, None, number=2)
    assert (claims.claim_of(ONE), claims.number_of(ONE)) == (Claim(2, urgent=True), 2)
    claim(claims, ONE, None, number=3)
    assert (claims.claim_of(ONE), claims.number_of(ONE)) == (None, 3)
    claims.closed(ONE)
    claims.opened(ONE)
    claim(claims, ONE, URGENT, number=1)
    assert claims.claim_of(ONE) == URGENT, "another run of the engine, or another stream"


def test_offer_is_void_when_foreign_sequences_took_its_slots(claims: SlotClaims) -> None:
    claim(claims, ONE, URGENT)
    claims.offer(1, 0.0)
    assert not enters(claims, ONE, URGENT, free=0)
    assert claims.claim_of(ONE) == URGENT
    assert claims.expire(OFFER_S)
    assert claims.offered == 0


def test_offer_that_is_not_taken_passes_on(claims: SlotClaims) -> None:
    claim(claims, ONE, URGENT)
    claim(claims, TWO, URGENT)
    claims.offer(1, 1.0)
    assert claims.expires_at == 1.0 + OFFER_S
    assert not claims.expire(1.0 + OFFER_S / 2)
    assert claims.expire(1.0 + OFFER_S)
    assert claims.claim_of(ONE) is None
    assert offered(claims, free=1) == [(TWO, 1)]


def test_clock_that_is_set_back_books_no_slots_for_longer(claims: SlotClaims) -> None:
    claim(claims, ONE, URGENT)
    claims.offer(1, 1000.0)
    assert claims.expire(10.0)


def test_claim_and_offer_end_with_the_last_stream_of_a_sidecar(claims: SlotClaims) -> None:
    claims.opened(ONE)
    claim(claims, ONE, Claim(1, urgent=True, more=1))
    claims.offer(1, 0.0)
    claims.closed(ONE)
    assert claims.claim_of(ONE) == URGENT
    claims.closed(ONE)
    assert (claims.claim_of(ONE), claims.offered, claims.sidecars) == (None, 0, 2)


@pytest.mark.parametrize("wanted", [Claim(8, urgent=True), None])
def test_offer_that_was_taken_stays_booked_for_the_request_that_is_on_its_way(
    claims: SlotClaims, wanted: Claim | None
) -> None:
    """Its sidecar's next claim, or that it has none, may arrive first."""
    claim(claims, ONE, URGENT)
    claim(claims, TWO, URGENT)
    [offer] = claims.offer(1, 0.0)
    claim(claims, ONE, wanted, taken=offer.number)
    assert not enters(claims, TWO, URGENT, free=1)
    assert enters(claims, ONE, URGENT, free=1)
    assert claims.claim_of(ONE) == wanted
    assert claims.offered == 0


def test_offer_that_was_taken_and_whose_request_never_came_passes_on(claims: SlotClaims) -> None:
    claim(claims, ONE, URGENT)
    [offer] = claims.offer(1, 0.0)
    claim(claims, ONE, None, taken=offer.number)
    assert claims.has_claims
    assert claims.expire(OFFER_S)
    assert not claims.has_claims


def test_all_slots_of_urgent_claims_are_offered_before_any_of_others(claims: SlotClaims) -> None:
    claim(claims, ONE, Claim(1, urgent=False, more=7))
    claim(claims, TWO, Claim(1, urgent=True, more=4))
    assert offered(claims, free=8) == [(TWO, 5), (ONE, 3)]


@pytest.mark.parametrize(
    "call", [ClaimCall(URGENT, number=1), ClaimCall(None, number=1, waits=True)]
)
def test_claim_that_is_not_repeated_expires(claims: SlotClaims, call: ClaimCall) -> None:
    claims.call(ONE, call, 10.0)
    assert not claims.expire(10.0 + CLAIM_S - 0.1)
    assert claims.contended(TWO)
    assert claims.expire(10.0 + CLAIM_S)
    assert not claims.contended(TWO)
    assert (claims.has_claims, claims.any_unclaimed_demand, claims.claim_of(ONE)) == (
        False,
        False,
        None,
    )
    assert not claims.expire(10.0 + 2 * CLAIM_S)


@pytest.mark.parametrize("number", [2, 1], ids=["the next call", "a call of the same number"])
def test_claim_stands_while_calls_repeat_it(claims: SlotClaims, number: int) -> None:
    """A call that does nothing else still proves that its sidecar is there."""
    claims.call(ONE, ClaimCall(URGENT, number=1), 0.0)
    claims.call(ONE, ClaimCall(URGENT, number=number), CLAIM_S - 0.1)
    assert not claims.expire(CLAIM_S)
    assert claims.claim_of(ONE) == URGENT


def test_claim_of_a_rejected_request_expires_if_no_call_follows(claims: SlotClaims) -> None:
    assert not claims.try_enter(ONE, URGENT, free=0, now_s=0.0)
    assert not claims.expire(CLAIM_S / 2)
    assert claims.expire(CLAIM_S)
    assert claims.try_enter(TWO, Claim(1, urgent=False), free=1, now_s=CLAIM_S)


def test_requests_of_a_sidecar_keep_its_claim(claims: SlotClaims) -> None:
    claims.call(ONE, ClaimCall(Claim(4, urgent=True), number=1), 0.0)
    assert not claims.try_enter(ONE, URGENT, free=0, now_s=CLAIM_S / 2)
    assert not claims.expire(CLAIM_S)
    assert claims.claim_of(ONE) == Claim(4, urgent=True)


def test_claim_that_expired_can_be_made_again(claims: SlotClaims) -> None:
    claims.call(ONE, ClaimCall(URGENT, number=1), 0.0)
    assert claims.expire(CLAIM_S)
    claims.call(ONE, ClaimCall(URGENT, number=2), 2 * CLAIM_S)
    assert [(each.instance, each.slots) for each in claims.offer(1, 2 * CLAIM_S)] == [(ONE, 1)]


def test_clock_that_is_set_back_keeps_no_claim_for_longer(claims: SlotClaims) -> None:
    claims.call(ONE, ClaimCall(URGENT, number=1), 1000.0)
    assert claims.expire(10.0)


def granted(claims: SlotClaims, free: int) -> list[tuple[str, int]]:
    """Offers so many slots; returns the offers, all of which were taken."""
    offers = claims.offer(free, 0.0)
    for offer in offers:
        assert claims.try_enter(offer.instance, Claim(offer.slots, urgent=True), free, 0.0)
    return [(offer.instance, offer.slots) for offer in offers]


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

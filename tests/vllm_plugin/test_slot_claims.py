"""Which sidecar gets the slots that come free: claims, offers, and who may enter."""

from __future__ import annotations

import pytest

from vllm_plugin.lease_protocol import OFFER_S, Claim, claim_body, parse_claim
from vllm_plugin.slot_claims import SlotClaims

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
    return [(offer.instance, offer.cost) for offer in claims.offer(free, now_s)]


def test_request_enters_while_slots_are_free_and_nothing_is_claimed(claims: SlotClaims) -> None:
    assert claims.enters(ONE, Claim(4, urgent=False), free=4)
    assert not claims.waiting


def test_request_without_a_slot_leaves_a_claim(claims: SlotClaims) -> None:
    assert not claims.enters(ONE, Claim(2, urgent=False), free=1)
    assert claims.of(ONE) == Claim(2, urgent=False)
    assert not claims.contended(ONE)
    assert claims.contended(TWO)
    assert claims.contended(None)


def test_sidecar_that_does_not_read_the_state_leaves_no_claim(claims: SlotClaims) -> None:
    assert not claims.enters("4" * 16, URGENT, free=0)
    assert not claims.waiting


def test_older_claim_of_a_sidecar_stays_when_a_later_request_of_it_is_rejected(
    claims: SlotClaims,
) -> None:
    claims.enters(ONE, Claim(3, urgent=True), free=0)
    claims.enters(ONE, Claim(1, urgent=True), free=0)
    assert claims.of(ONE) == Claim(3, urgent=True), "it is at the head of the sidecar's queue"
    claims.enters(TWO, BULK, free=0)
    claims.enters(TWO, URGENT, free=0)
    assert claims.of(TWO) == URGENT, "an interactive request goes before a bulk one"


def test_slots_that_come_free_are_offered_to_the_oldest_claim(claims: SlotClaims) -> None:
    claims.claim(TWO, URGENT)
    claims.claim(ONE, URGENT)
    assert offered(claims, free=1) == [(TWO, 1)]
    assert offered(claims, free=1) == [], "it is booked"
    assert claims.offered_to_others(ONE) == 1
    assert claims.offered_to_others(TWO) == 0
    assert offered(claims, free=2) == [(ONE, 1)]


def test_urgent_claims_go_before_older_ones(claims: SlotClaims) -> None:
    claims.claim(ONE, BULK)
    claims.claim(TWO, URGENT)
    assert offered(claims, free=1) == [(TWO, 1)]


def test_claim_that_becomes_urgent_goes_behind_those_that_are(claims: SlotClaims) -> None:
    claims.claim(ONE, BULK)
    claims.claim(TWO, URGENT)
    claims.claim(ONE, URGENT)
    assert offered(claims, free=2) == [(TWO, 1), (ONE, 1)]


def test_offer_lets_its_sidecar_in_and_nobody_else(claims: SlotClaims) -> None:
    claims.claim(ONE, URGENT)
    claims.offer(1, 0.0)
    assert not claims.enters(TWO, URGENT, free=1)
    assert claims.enters(ONE, URGENT, free=1)
    assert claims.offered == 0


def test_sidecar_whose_offer_was_taken_goes_behind_the_others(claims: SlotClaims) -> None:
    """So that sidecars which always have something queued take turns."""
    for instance in (ONE, TWO, THREE):
        claims.claim(instance, URGENT)
    turns = []
    for _ in range(6):
        [(instance, _)] = offered(claims, free=1)
        assert claims.enters(instance, URGENT, free=1)
        turns.append(instance)
    assert turns == [ONE, TWO, THREE, ONE, TWO, THREE]


def test_sidecars_whose_requests_need_different_numbers_of_slots_get_equal_shares(
    claims: SlotClaims,
) -> None:
    claims.claim(ONE, Claim(3, urgent=True))
    claims.claim(TWO, URGENT)
    slots = dict.fromkeys((ONE, TWO), 0)
    for _ in range(40):
        [(instance, cost)] = offered(claims, free=3)[:1]
        assert claims.enters(instance, Claim(cost, urgent=True), free=3)
        for each in (ONE, TWO):
            claim = claims.of(each)
            assert claim is not None
            claims.withdraw(each)
            claims.claim(each, claim)
        slots[instance] += cost
    assert abs(slots[ONE] - slots[TWO]) <= 3, slots


def test_slots_gather_for_a_large_claim_and_nobody_overtakes_it(claims: SlotClaims) -> None:
    claims.claim(ONE, Claim(4, urgent=True))
    for free in (1, 2, 3):
        assert offered(claims, free) == []
        assert not claims.enters(TWO, URGENT, free)
    assert offered(claims, free=4) == [(ONE, 4)], "the claim that TWO left is behind it"


def test_request_that_is_more_urgent_than_all_claims_enters(claims: SlotClaims) -> None:
    claims.claim(ONE, Claim(4, urgent=False))
    assert claims.enters(TWO, URGENT, free=1)
    assert not claims.enters(TWO, BULK, free=1)


def test_claim_for_fewer_slots_than_are_offered_keeps_the_offer(claims: SlotClaims) -> None:
    claims.claim(ONE, Claim(4, urgent=True))
    claims.offer(4, 0.0)
    claims.claim(ONE, Claim(1, urgent=True))
    assert claims.offered == 4
    assert claims.enters(ONE, URGENT, free=4)
    assert claims.offered == 0, "the rest is free again"


def test_claim_for_more_slots_than_are_offered_gathers_them_in_its_old_place(
    claims: SlotClaims,
) -> None:
    claims.claim(ONE, URGENT)
    claims.claim(TWO, URGENT)
    claims.offer(1, 0.0)
    claims.claim(ONE, Claim(2, urgent=True))
    assert offered(claims, free=1) == []
    assert offered(claims, free=2) == [(ONE, 2)]


def test_offer_is_void_when_foreign_sequences_took_its_slots(claims: SlotClaims) -> None:
    claims.claim(ONE, URGENT)
    claims.offer(1, 0.0)
    assert not claims.enters(ONE, URGENT, free=0)
    assert claims.of(ONE) == URGENT
    assert claims.offered == 0


def test_offer_that_is_not_taken_passes_on(claims: SlotClaims) -> None:
    claims.claim(ONE, URGENT)
    claims.claim(TWO, URGENT)
    claims.offer(1, 10.0)
    assert claims.expires_at == 10.0 + OFFER_S
    assert not claims.expire(10.0 + OFFER_S / 2)
    assert claims.expire(10.0 + OFFER_S)
    assert claims.of(ONE) is None
    assert offered(claims, free=1) == [(TWO, 1)]


def test_clock_that_is_set_back_books_no_slots_for_longer(claims: SlotClaims) -> None:
    claims.claim(ONE, URGENT)
    claims.offer(1, 1000.0)
    assert claims.expire(10.0)


def test_claim_and_offer_end_with_the_last_stream_of_a_sidecar(claims: SlotClaims) -> None:
    claims.opened(ONE)
    claims.claim(ONE, URGENT)
    claims.offer(1, 0.0)
    claims.closed(ONE)
    assert claims.of(ONE) == URGENT
    claims.closed(ONE)
    assert (claims.of(ONE), claims.offered, claims.sidecars) == (None, 0, 2)


def test_claim_that_is_withdrawn_frees_its_offer(claims: SlotClaims) -> None:
    claims.claim(ONE, URGENT)
    claims.offer(1, 0.0)
    claims.withdraw(ONE)
    assert (claims.offered, claims.waiting) == (0, False)


@pytest.mark.parametrize("claim", [Claim(8, urgent=True), None])
def test_offer_that_was_taken_stays_booked_for_the_request_that_is_on_its_way(
    claims: SlotClaims, claim: Claim | None
) -> None:
    """Its sidecar's next claim, or that it has none, may arrive first."""
    claims.claim(ONE, URGENT)
    claims.claim(TWO, URGENT)
    [offer] = claims.offer(1, 0.0)
    if claim is None:
        claims.withdraw(ONE, taken=offer.number)
    else:
        claims.claim(ONE, claim, taken=offer.number)
    assert not claims.enters(TWO, URGENT, free=1)
    assert claims.enters(ONE, URGENT, free=1)
    assert claims.of(ONE) == claim
    assert claims.offered == 0


def test_offer_that_was_taken_and_whose_request_never_came_passes_on(claims: SlotClaims) -> None:
    claims.claim(ONE, URGENT)
    [offer] = claims.offer(1, 0.0)
    claims.withdraw(ONE, taken=offer.number)
    assert claims.waiting
    assert claims.expire(OFFER_S)
    assert not claims.waiting


def test_offer_after_one_that_was_taken_ends_with_its_claim(claims: SlotClaims) -> None:
    claims.claim(ONE, URGENT)
    [first] = claims.offer(1, 0.0)
    assert claims.enters(ONE, URGENT, free=1)
    claims.offer(1, 0.0)
    claims.withdraw(ONE, taken=first.number)
    assert claims.offered == 0


def test_claims_that_are_not_urgent_wait_until_urgent_ones_are_done_with_their_offers(
    claims: SlotClaims,
) -> None:
    """Several slots come free at once, and the sidecar of the urgent claim has more to send."""
    claims.claim(ONE, URGENT)
    claims.claim(TWO, BULK)
    assert offered(claims, free=8) == [(ONE, 1)]
    assert claims.enters(ONE, URGENT, free=8)
    assert offered(claims, free=7) == [(ONE, 1)]
    claims.withdraw(ONE)
    assert offered(claims, free=7) == [(TWO, 1)]


@pytest.mark.parametrize("claim", [Claim(3, urgent=True), Claim(1, urgent=False), None])
def test_claim_is_read_as_it_was_written(claim: Claim | None) -> None:
    assert parse_claim(claim_body(claim, taken=7), slots_total=3) == (claim, 7)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", 'the body must be a JSON object of "cost" and "urgent"'),
        (b"[" * 100_000, 'the body must be a JSON object of "cost" and "urgent"'),
        (b"[]", 'the body must be a JSON object of "cost" and "urgent"'),
        (b"\xff", 'the body must be a JSON object of "cost" and "urgent"'),
        (b'{"urgent": true}', "cost is None: it must be an integer from 0 to 3"),
        (b'{"cost": 4, "urgent": true}', "cost is 4: it must be an integer from 0 to 3"),
        (b'{"cost": true, "urgent": true}', "cost is True: it must be an integer from 0 to 3"),
        (b'{"cost": 1, "urgent": 1}', "urgent is 1: it must be true or false"),
        (b'{"cost": 1}', "urgent is None: it must be true or false"),
        (b'{"cost": 1, "urgent": true, "taken": -1}', "taken is -1: it must be an integer from 0"),
    ],
)
def test_invalid_claim_is_named_with_the_rule(body: bytes, message: str) -> None:
    with pytest.raises(ValueError, match="must be") as raised:
        parse_claim(body, slots_total=3)
    assert str(raised.value) == message

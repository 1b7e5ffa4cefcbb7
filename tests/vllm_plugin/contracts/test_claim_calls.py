"""A sidecar's calls about what it claims, as they are written and read.

For how long what a sidecar is offered stays booked.
"""

from __future__ import annotations

import json

import pytest

from vllm_plugin.contracts.lease_protocol import (
    MAX_OFFER_S,
    OFFER_S,
    Claim,
    ClaimCall,
    claim_body,
    parse_claim,
)
from vllm_plugin.contracts.slot_claims import ClaimingSidecar, SlotClaims

SLOTS = 3


@pytest.mark.parametrize(
    "call",
    [
        ClaimCall(Claim(3, urgent=True), taken=7, unused=2, number=9),
        ClaimCall(Claim(1, urgent=False, more=2)),
        ClaimCall(None, taken=7, unused=1, number=2, waits=True),
    ],
)
def test_call_is_read_as_it_was_written(call: ClaimCall) -> None:
    body = claim_body(call)
    names = {"cost", "urgent", "more", "taken", "unused", "number", "waits", "adapters"}
    assert set(json.loads(body)) == names
    assert parse_claim(body, SLOTS) == call


def test_call_of_api_version_1_1_claims_slots_for_one_request() -> None:
    body = b'{"cost": 2, "urgent": true, "taken": 4}'
    assert parse_claim(body, SLOTS) == ClaimCall(Claim(2, urgent=True), taken=4)


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
        (b'{"cost": 1, "urgent": true, "waits": 0}', "waits is 0: it must be true or false"),
        (b'{"cost": 1, "urgent": true, "more": 7}', "more is 7: it must be an integer from 0 to 6"),
        (b'{"cost": 1, "urgent": true, "taken": -1}', "taken is -1: it must be an integer from 0"),
        (
            b'{"cost": 1, "urgent": true, "number": 1.5}',
            "number is 1.5: it must be an integer from 0",
        ),
        (
            b'{"cost": 1, "urgent": true, "unused": null}',
            "unused is None: it must be an integer from 0 to 3",
        ),
    ],
)
def test_invalid_call_is_named_with_the_rule(body: bytes, message: str) -> None:
    with pytest.raises(ValueError, match="must be") as raised:
        parse_claim(body, SLOTS)
    assert str(raised.value) == message


@pytest.mark.parametrize(
    ("claim", "offered", "left"),
    [
        (Claim(1, urgent=True, more=2), 1, Claim(1, urgent=True, more=1)),
        (Claim(2, urgent=True, more=2), 2, Claim(2, urgent=True)),
        (Claim(2, urgent=False, more=2), 3, Claim(1, urgent=False)),
        (Claim(2, urgent=True, more=2), 4, None),
        (Claim(2, urgent=True), 5, None),
    ],
)
def test_offer_is_deducted_from_a_claim(claim: Claim, offered: int, left: Claim | None) -> None:
    assert claim.reduced_by(offered) == left


ONE = "1" * 16


def booked_s(sidecar: ClaimingSidecar, number: int) -> float:
    return sidecar.offer(ONE, number, 100.0).until_s - 100.0


@pytest.mark.parametrize(
    ("delay_s", "then_s"),
    [
        (0.002, OFFER_S),
        (0.15, 0.3),
        (0.4, MAX_OFFER_S),
        (MAX_OFFER_S + 0.1, OFFER_S),
    ],
)
def test_next_offer_is_booked_for_twice_the_time_that_the_last_one_took(
    delay_s: float, then_s: float
) -> None:
    sidecar = ClaimingSidecar()
    assert booked_s(sidecar, 1) == pytest.approx(OFFER_S)
    sidecar.heard(1, 100.0 + delay_s)
    assert booked_s(sidecar, 2) == pytest.approx(then_s)


def test_call_before_the_sidecar_heard_of_an_offer_measures_nothing() -> None:
    sidecar = ClaimingSidecar()
    sidecar.offer(ONE, 7, 0.0)
    sidecar.heard(6, 0.5)
    assert sidecar.offer_s == OFFER_S
    sidecar.offer(ONE, 8, 0.3)
    sidecar.heard(8, 0.2)
    assert sidecar.offer_s == pytest.approx(0.4), "from the first one"


def test_call_and_request_each_show_that_an_offer_arrived() -> None:
    claims = SlotClaims()
    claims.opened(ONE)
    claims.call(ONE, ClaimCall(Claim(1, urgent=True, more=1), number=1), 0.0)
    [offer] = claims.offer(1, 0.0)
    assert claims.expire(OFFER_S)
    claims.call(ONE, ClaimCall(Claim(2, urgent=True), taken=offer.number, number=2), 0.2)
    [offer] = claims.offer(2, 1.0)
    assert offer.until_s == pytest.approx(1.4)
    assert claims.try_enter(ONE, Claim(2, urgent=True), free=2, now_s=1.06)
    claims.call(ONE, ClaimCall(Claim(1, urgent=True), taken=offer.number, number=3), 2.0)
    [offer] = claims.offer(1, 2.0)
    assert offer.until_s == pytest.approx(2.12)

"""For how long what a sidecar is offered stays booked."""

from __future__ import annotations

import pytest

from vllm_plugin.contracts.claiming_sidecar import ClaimingSidecar
from vllm_plugin.contracts.lease_protocol import MAX_OFFER_S, OFFER_S, Claim, ClaimCall
from vllm_plugin.contracts.slot_claims import SlotClaims

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

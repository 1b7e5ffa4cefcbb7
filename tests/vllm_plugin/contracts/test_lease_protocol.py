"""What the plugin and the sidecar exchange: leases, events, and calls about what is claimed.

For how long what a sidecar is offered stays booked.
"""

from __future__ import annotations

import json

import pytest

from vllm_plugin.contracts.lease_protocol import (
    CHANGES_EVERY_S,
    HEARTBEAT_EVERY_S,
    MAX_OFFER_S,
    MAX_STEP_S,
    OFFER_S,
    SHARED_CHANGES_EVERY_S,
    Claim,
    ClaimCall,
    LeaseId,
    SpentLeases,
    changes_every_s,
    claim_body,
    cost_of,
    event,
    parse_changes_every_s,
    parse_claim,
    parse_lease,
    require_lease,
    short_lease,
    timestamp,
    workloads_of,
)
from vllm_plugin.contracts.slot_claims import ClaimingSidecar, SlotClaims

US = "a" * 16
LEASE = f"{US}.{1:032x}.12"


def test_lease_contains_its_instance_and_its_cost() -> None:
    assert parse_lease(LEASE) == LeaseId(LEASE, US, 12)
    assert cost_of(LEASE) == 12
    require_lease(LEASE)


def test_secret_part_of_a_lease_is_not_shown() -> None:
    assert short_lease(LEASE) == f"{US}.{'0' * 7}"


@pytest.mark.parametrize(
    "text",
    ["", "x", f"{LEASE}\n", LEASE.upper(), f"{US}.{1:032x}", f"{US}.{1:032x}.0", f"{LEASE}000000"],
)
def test_anything_else_is_not_a_lease(text: str) -> None:
    assert parse_lease(text) is None
    with pytest.raises(ValueError, match="is not a lease: it must be <instance>"):
        require_lease(text)


def test_spent_leases_are_bounded_and_the_oldest_is_forgotten() -> None:
    spent = SpentLeases(most=2)
    for lease in "abc":
        spent.add(lease)
    assert len(spent) == 2
    assert [lease in spent for lease in "abc"] == [False, True, True]


def test_sidecar_that_spends_any_number_of_leases_has_none_of_another_be_forgotten() -> None:
    spent, theirs = SpentLeases(most=40), [f"{'b' * 16}.{number:032x}.1" for number in range(8)]
    for lease in theirs:
        spent.add(lease)
    for number in range(500):
        spent.add(f"{US}.{number:032x}.1")
    assert len(spent) == 40
    assert all(lease in spent for lease in theirs)
    # Where many do, those of the sidecar that has spent none for the longest go first.
    for sidecar in range(3):
        for number in range(500):
            spent.add(f"{sidecar:016x}.{number:032x}.1")
    assert len(spent) == 40
    assert not any(lease in spent for lease in theirs)


def test_event_is_one_of_server_sent_events_and_times_are_rfc_3339() -> None:
    assert event("ended", {"leases": []}) == b'event: ended\ndata: {"leases":[]}\n\n'
    assert timestamp(1.0014) == "1970-01-01T00:00:01.001Z"


def test_state_is_fresher_where_several_sidecars_dispatch_by_it() -> None:
    assert [changes_every_s(sidecars) for sidecars in (0, 1)] == [CHANGES_EVERY_S] * 2
    assert changes_every_s(2) == SHARED_CHANGES_EVERY_S < CHANGES_EVERY_S / 4


@pytest.mark.parametrize("sidecars", [2, 3, 11, 64, 500])
def test_events_of_all_readers_together_stay_below_a_thousand_a_second(sidecars: int) -> None:
    assert sidecars / changes_every_s(sidecars) <= 1000
    assert changes_every_s(sidecars) <= changes_every_s(2 * sidecars) <= HEARTBEAT_EVERY_S


def test_single_reader_is_sent_changes_no_more_often_than_the_engine_steps() -> None:
    assert changes_every_s(1, 0.005) == CHANGES_EVERY_S
    assert changes_every_s(1, 0.045) == 0.045
    assert changes_every_s(1, 5.0) == MAX_STEP_S
    assert changes_every_s(2, 5.0) == SHARED_CHANGES_EVERY_S, "others' requests come at any time"


def test_interval_that_a_reader_asks_for_is_in_milliseconds() -> None:
    assert [parse_changes_every_s(text) for text in ("", "0", "250", "1000")] == [0, 0, 0.25, 1]


@pytest.mark.parametrize("text", ["-1", "1001", "2.5", "x", "٣", "9" * 50, " 1"])
def test_interval_that_is_none_is_rejected_with_the_rule(text: str) -> None:
    with pytest.raises(ValueError, match=r"changes_every_ms is .* an integer from 0 to 1000"):
        parse_changes_every_s(text)


def test_workloads_are_those_of_the_routes_in_a_fixed_order() -> None:
    paths = ["/v1/chat/completions", "/health", "/v1/embeddings", "/v1/completions"]
    assert (
        workloads_of(paths) == workloads_of(reversed(paths)) == ("completion", "chat", "embedding")
    )
    assert workloads_of(["/health"]) == ()


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

"""What the plugin and the sidecar exchange: leases and events."""

from __future__ import annotations

import pytest

from vllm_plugin.contracts.lease_protocol import (
    CHANGES_EVERY_S,
    HEARTBEAT_EVERY_S,
    MAX_STEP_S,
    SHARED_CHANGES_EVERY_S,
    LeaseId,
    SpentLeases,
    changes_every_s,
    cost_of,
    event,
    parse_changes_every_s,
    parse_lease,
    require_lease,
    short_lease,
    timestamp,
    workloads_of,
)

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

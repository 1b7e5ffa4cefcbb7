"""What the plugin and the sidecar exchange: leases and events."""

from __future__ import annotations

import pytest

from vllm_plugin.lease_protocol import (
    CHANGES_EVERY_S,
    LeaseId,
    SpentLeases,
    changes_every_s,
    cost_of,
    event,
    parse_lease,
    require_lease,
    timestamp,
)

US = "a" * 16
LEASE = f"{US}.{1:032x}.12"


def test_lease_contains_its_instance_and_its_cost() -> None:
    assert parse_lease(LEASE) == LeaseId(LEASE, US, 12)
    assert cost_of(LEASE) == 12
    require_lease(LEASE)


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


def test_event_is_one_of_server_sent_events_and_times_are_rfc_3339() -> None:
    assert event("ended", {"leases": []}) == b'event: ended\ndata: {"leases":[]}\n\n'
    assert timestamp(1.0014) == "1970-01-01T00:00:01.001Z"


def test_state_is_fresher_where_several_sidecars_dispatch_by_it() -> None:
    assert [changes_every_s(sidecars) for sidecars in (0, 1)] == [CHANGES_EVERY_S] * 2
    assert changes_every_s(2) == changes_every_s(64) < CHANGES_EVERY_S / 4

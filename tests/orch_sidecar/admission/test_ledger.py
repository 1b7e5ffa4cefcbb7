"""The ledger: slots, leases, and their exactly-once return."""

from __future__ import annotations

from dataclasses import replace

from orch_sidecar.admission.ledger import Ledger
from orch_sidecar.admission.types import KvNeed, Lease
from tests.orch_sidecar.admission.examples import bulk, interactive


def ledger_of(slots: int, epoch: str = "e1") -> Ledger:
    ledger = Ledger()
    ledger.begin_epoch(epoch)
    ledger.slots_total = slots
    return ledger


def grant(ledger: Ledger, lease_id: str, cost: int) -> Lease:
    return ledger.grant(lease_id, bulk(cost), 1.0)


def released(ledger: Ledger, lease_id: str) -> int | None:
    """The cost of the released lease."""
    lease = ledger.release(lease_id, 0.0)
    return None if lease is None else lease.cost


def test_no_room_before_the_engine_has_reported() -> None:
    assert Ledger().room == 0


def test_grant_takes_its_cost_and_names_the_epoch() -> None:
    ledger = ledger_of(8, epoch="e7")
    assert grant(ledger, "a", 3) == Lease("a", 3, "e7")
    assert (ledger.leased, ledger.room, ledger.lease_count) == (3, 5, 1)


def test_foreign_sequences_take_room() -> None:
    ledger = ledger_of(8)
    ledger.foreign = 5
    grant(ledger, "a", 3)
    assert ledger.room == 0


def test_room_is_negative_while_foreign_traffic_takes_more_than_is_left() -> None:
    ledger = ledger_of(4)
    grant(ledger, "a", 4)
    ledger.foreign = 2
    assert ledger.room == -2


def test_grant_beyond_the_room_is_counted_as_a_violation() -> None:
    ledger = ledger_of(2)
    grant(ledger, "a", 2)
    assert ledger.violations == 0
    grant(ledger, "b", 1)
    assert ledger.violations == 1


def test_release_returns_the_cost_once() -> None:
    ledger = ledger_of(4)
    grant(ledger, "a", 3)
    assert released(ledger, "a") == 3
    assert ledger.release("a", 0.0) is None
    assert (ledger.leased, ledger.lease_count) == (0, 0)


def test_release_of_an_unknown_lease_does_nothing() -> None:
    ledger = ledger_of(4)
    grant(ledger, "a", 3)
    assert ledger.release("b", 0.0) is None
    assert ledger.leased == 3


def test_abandoned_lease_keeps_its_slots_until_it_is_released() -> None:
    ledger = ledger_of(4)
    grant(ledger, "a", 3)
    ledger.abandon("a")
    assert (ledger.leased, ledger.lease_count, ledger.closing()) == (3, 1, ["a"])
    assert released(ledger, "a") == 3
    assert (ledger.leased, ledger.lease_count, ledger.closing()) == (0, 0, [])


def test_abandoning_twice_or_after_release_does_nothing() -> None:
    ledger = ledger_of(4)
    grant(ledger, "a", 1)
    ledger.abandon("a")
    ledger.abandon("a")
    assert ledger.closing() == ["a"]
    ledger.release("a", 0.0)
    ledger.abandon("a")
    assert ledger.closing() == []


def test_new_epoch_forgets_leases_and_foreign_sequences_of_the_old_one() -> None:
    ledger = ledger_of(4)
    grant(ledger, "held", 1)
    grant(ledger, "closing", 2)
    ledger.abandon("closing")
    ledger.foreign = 1
    ledger.begin_epoch("e2")
    assert (ledger.leased, ledger.lease_count, ledger.closing(), ledger.foreign) == (0, 0, [], 0)
    assert ledger.release("held", 0.0) is None
    assert ledger.release("closing", 0.0) is None
    assert ledger.leased == 0


def test_unknown_lease_in_the_engine_owns_its_slots() -> None:
    ledger = Ledger()
    ledger.begin_epoch("new")
    ledger.slots_total = 4
    ledger.adopt("old", 3)
    ledger.adopt("old", 3)
    assert (ledger.leased, ledger.room, ledger.closing()) == (3, 1, ["old"])
    assert released(ledger, "old") == 3
    assert ledger.room == 4


def test_engine_beyond_its_slots_is_a_violation_once_per_rise() -> None:
    ledger = Ledger()
    ledger.slots_total = 4
    ledger.observe_peak(9, since_before=True)
    assert ledger.violations == 0, "it precedes the connection"
    ledger.observe_peak(9)
    assert ledger.violations == 0
    ledger.observe_peak(10)
    assert ledger.violations == 1


def test_sums_follow_grants_and_releases() -> None:
    ledger = ledger_of(8)
    ledger.grant("bulk", replace(bulk(3), kv=KvNeed(10, 0, 5, swing=2)), 0.0)
    ledger.grant("interactive", replace(interactive(2), kv=KvNeed(7, 4, None)), 0.0)
    ledger.adopt("unknown", 1)
    assert (ledger.leased, ledger.bulk, ledger.interactive, ledger.adopted) == (6, 3, 2, 1)
    assert (ledger.kv_committed, ledger.kv_growth, ledger.kv_unknown) == (22, 7, 1)
    for lease in ("unknown", "interactive", "bulk"):
        ledger.release(lease, 0.0)
    assert (ledger.leased, ledger.bulk, ledger.interactive, ledger.adopted) == (0, 0, 0, 0)
    assert (ledger.kv_committed, ledger.kv_growth, ledger.kv_unknown) == (0, 0, 0)


def test_closing_lease_is_not_in_use() -> None:
    ledger = ledger_of(8)
    lease = grant(ledger, "a", 1)
    assert (ledger.in_use(), ledger.get("a")) == ({"a"}, lease)
    ledger.abandon("a")
    assert (ledger.in_use(), ledger.get("a"), ledger.owns("a")) == (set(), None, True)

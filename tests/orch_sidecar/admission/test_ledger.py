"""The ledger: slots, leases, and their exactly-once return."""

from __future__ import annotations

from orch_sidecar.admission.ledger import Lease, Ledger


def ledger_of(slots: int, epoch: str = "e1") -> Ledger:
    ledger = Ledger()
    ledger.begin_epoch(epoch)
    ledger.slots_total = slots
    return ledger


def test_no_room_before_the_engine_has_reported() -> None:
    assert Ledger().room == 0


def test_grant_takes_its_cost_and_names_the_epoch() -> None:
    ledger = ledger_of(8, epoch="e7")
    assert ledger.grant("a", 3) == Lease("a", 3, "e7")
    assert (ledger.leased, ledger.room, ledger.leases()) == (3, 5, 1)


def test_foreign_sequences_take_room() -> None:
    ledger = ledger_of(8)
    ledger.foreign = 5
    ledger.grant("a", 3)
    assert ledger.room == 0


def test_room_is_negative_while_foreign_traffic_takes_more_than_is_left() -> None:
    ledger = ledger_of(4)
    ledger.grant("a", 4)
    ledger.foreign = 2
    assert ledger.room == -2


def test_grant_beyond_the_room_is_counted_as_a_violation() -> None:
    ledger = ledger_of(2)
    ledger.grant("a", 2)
    assert ledger.violations == 0
    ledger.grant("b", 1)
    assert ledger.violations == 1


def test_release_returns_the_cost_once() -> None:
    ledger = ledger_of(4)
    ledger.grant("a", 3)
    assert ledger.release("a") == 3
    assert ledger.release("a") == 0
    assert (ledger.leased, ledger.leases()) == (0, 0)


def test_release_of_an_unknown_lease_does_nothing() -> None:
    ledger = ledger_of(4)
    ledger.grant("a", 3)
    assert ledger.release("b") == 0
    assert ledger.leased == 3


def test_abandoned_lease_keeps_its_slots_until_it_is_released() -> None:
    ledger = ledger_of(4)
    ledger.grant("a", 3)
    ledger.abandon("a")
    assert (ledger.leased, ledger.leases(), ledger.closing()) == (3, 1, ["a"])
    assert ledger.release("a") == 3
    assert (ledger.leased, ledger.leases(), ledger.closing()) == (0, 0, [])


def test_abandoning_twice_or_after_release_does_nothing() -> None:
    ledger = ledger_of(4)
    ledger.grant("a", 1)
    ledger.abandon("a")
    ledger.abandon("a")
    assert ledger.closing() == ["a"]
    ledger.release("a")
    ledger.abandon("a")
    assert ledger.closing() == []


def test_new_epoch_forgets_leases_and_foreign_sequences_of_the_old_one() -> None:
    ledger = ledger_of(4)
    ledger.grant("held", 1)
    ledger.grant("closing", 2)
    ledger.abandon("closing")
    ledger.foreign = 1
    ledger.begin_epoch("e2")
    assert (ledger.leased, ledger.leases(), ledger.closing(), ledger.foreign) == (0, 0, [], 0)
    assert ledger.release("held") == 0
    assert ledger.release("closing") == 0
    assert ledger.leased == 0


def test_a_lease_that_the_engine_has_and_we_do_not_know_holds_its_slots() -> None:
    ledger = Ledger()
    ledger.begin_epoch("new")
    ledger.slots_total = 4
    ledger.adopt("old", 3)
    ledger.adopt("old", 3)
    assert (ledger.leased, ledger.room, ledger.closing()) == (3, 1, ["old"])
    assert ledger.release("old") == 3
    assert ledger.room == 4


def test_an_engine_that_held_more_than_its_slots_is_a_violation_once_per_rise() -> None:
    ledger = Ledger()
    ledger.slots_total = 4
    ledger.engine_held(9, since_before=True)
    assert ledger.violations == 0, "whoever did that, it was before us"
    ledger.engine_held(9)
    assert ledger.violations == 0
    ledger.engine_held(10)
    assert ledger.violations == 1

"""The ledger: slots, leases, and their exactly-once return."""

from __future__ import annotations

from orch_sidecar.admission.ledger import Ledger
from orch_sidecar.admission.types import Lease
from tests.orch_sidecar.admission.examples import bulk


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


def test_grant_beyond_the_room_is_counted_as_a_violation() -> None:
    ledger = ledger_of(2)
    grant(ledger, "a", 2)
    assert ledger.violations == 0
    grant(ledger, "b", 1)
    assert ledger.violations == 1


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

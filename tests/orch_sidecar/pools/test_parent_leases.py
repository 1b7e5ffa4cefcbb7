"""The leases of parent sidecars: which are present, until when, and what is foreign to each."""

from __future__ import annotations

import pytest

from orch_sidecar.pools import parent_leases
from orch_sidecar.pools.parent_leases import ParentLeases
from tests.orch_sidecar.above import (
    RUN,
    THEM,
    US,
    FakePool,
    Reader,
    entered,
    foreign,
    lease,
    ledger,
    served,
)
from vllm_plugin.lease_protocol import SpentLeases

# The book.


def test_lease_is_present_until_its_handling_has_ended() -> None:
    book, slots = ParentLeases(RUN), ledger()
    presence, own = served(book, lease(), slots)
    assert book.of(US) == [lease()]
    assert book.of(THEM) == []
    slots.release(own.id)
    assert book.of(US) == [lease()]
    book.leave(presence)
    assert book.of(US) == []


def test_aborted_request_keeps_its_lease_until_its_own_slots_came_back() -> None:
    book, slots = ParentLeases(RUN), ledger()
    reader = Reader(book, FakePool(slots))
    presence, own = served(book, lease(), slots)
    slots.abandon(own.id)
    book.leave(presence)
    assert book.of(US) == [lease()]
    assert not book.revoke(lease())
    assert reader.ended == []
    slots.release(own.id)  # the engine confirmed it
    book.changed()
    assert reader.ended == [lease()]
    assert book.revoke(lease())


def test_request_that_never_got_slots_ends_with_its_handling() -> None:
    book, slots = ParentLeases(RUN), ledger()
    reader = Reader(book, FakePool(slots))
    book.leave(entered(book, lease()))
    assert reader.ended == [lease()]


def test_restart_of_the_engine_below_ends_leases_whose_handling_ended() -> None:
    book, slots = ParentLeases(RUN), ledger()
    presence, own = served(book, lease(), slots)
    slots.abandon(own.id)
    book.leave(presence)
    slots.begin_epoch("e2")
    assert book.of(US) == []


def test_request_that_got_slots_twice_ends_with_the_last_of_them() -> None:
    book, slots, others = ParentLeases(RUN), ledger(), ledger()
    presence, own = served(book, lease(), slots)
    slots.abandon(own.id)
    second = others.grant("elsewhere", 1)
    book.granted(presence, others, second)
    others.release(second.id)
    book.leave(presence)
    assert book.of(US) == [lease()]
    slots.release(own.id)
    assert book.of(US) == []


def test_spent_lease_is_rejected() -> None:
    book = ParentLeases(RUN)
    book.leave(entered(book, lease()))
    assert book.enter(lease()) is None


def test_lease_that_is_present_already_is_rejected() -> None:
    book = ParentLeases(RUN)
    entered(book, lease())
    assert book.enter(lease()) is None
    assert book.of(US) == [lease()]


def test_revoked_lease_is_rejected_when_its_request_comes_late() -> None:
    book = ParentLeases(RUN)
    assert book.revoke(lease())
    assert book.revoke(lease())
    assert book.enter(lease()) is None


@pytest.mark.parametrize("header", ["", "x", f"{US}.{1:032x}", f"{US}.{1:032X}.0", "é" * 50])
def test_what_is_no_lease_is_not_booked(header: str) -> None:
    book, slots = ParentLeases(RUN), ledger()
    presence, _ = served(book, header, slots)
    assert presence.lease is None
    assert book.sequences("", slots) == 0
    assert book.of("") == []
    book.leave(presence)
    with pytest.raises(ValueError, match="is not a lease"):
        book.revoke(header)


def test_memory_of_spent_leases_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parent_leases, "SpentLeases", lambda: SpentLeases(most=3))
    book = ParentLeases(RUN)
    for number in range(5):
        assert book.revoke(lease(number=number))
    assert len(book._spent) == 3
    assert book.enter(lease(number=4)) is None
    assert book.enter(lease(number=0)) is not None


def test_only_the_instance_whose_lease_ended_is_notified() -> None:
    book, slots = ParentLeases(RUN), ledger()
    us, them = (Reader(book, FakePool(slots), instance) for instance in (US, THEM))
    book.leave(entered(book, lease(THEM)))
    assert us.ended == []
    assert them.ended == [lease(THEM)]


def test_end_wakes_a_reader_that_was_woken_before_by_a_change() -> None:
    book, slots = ParentLeases(RUN), ledger()
    reader = Reader(book, FakePool(slots))
    reader.feed.due(0.0)
    presence = entered(book, lease())
    book.changed()
    book.changed()
    assert reader.wakes == 1
    book.leave(presence)
    assert reader.wakes == 2


# Foreign.


def test_foreign_is_what_others_hold() -> None:
    book, slots = ParentLeases(RUN), ledger()
    slots.foreign = 1
    slots.grant("a client without a tier", 2)
    served(book, lease(US, 1), slots)
    served(book, lease(US, 2, cost=3), slots, cost=3)
    assert foreign(book, slots, US) == 3
    assert foreign(book, slots, THEM) == 7
    assert foreign(book, slots, "") == 7


def test_request_that_waits_here_is_nobodys_foreign() -> None:
    book, slots = ParentLeases(RUN), ledger()
    entered(book, lease())
    assert foreign(book, slots, US) == foreign(book, slots, THEM) == 0


@pytest.mark.parametrize(("claimed", "real"), [(1, 3), (3, 1), (2, 2), (9_999_999, 1)])
def test_both_tiers_together_never_count_less_than_is_leased(claimed: int, real: int) -> None:
    """The sidecar above counts what its lease says; that is not trusted."""
    book, slots = ParentLeases(RUN), ledger()
    slots.grant("another", 2)
    served(book, lease(cost=claimed), slots, cost=real)
    seen = foreign(book, slots, US)
    assert 2 <= seen <= slots.leased
    assert claimed + seen >= slots.leased


def test_slots_in_another_pool_do_not_count_in_this_one() -> None:
    book, slots, others = ParentLeases(RUN), ledger(), ledger()
    served(book, lease(), others)
    slots.grant("another", 1)
    assert foreign(book, slots, US) == 1
    assert foreign(book, others, US) == 0

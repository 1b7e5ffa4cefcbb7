"""The leases of parent sidecars: which are present, until when, and what is foreign to each."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from orch_sidecar.admission.types import Lease
from orch_sidecar.pools import parent_leases
from orch_sidecar.pools.parent_leases import ParentLease, ParentLeases
from tests.orch_sidecar.parents import (
    RUN,
    THEM,
    US,
    FakePool,
    FakeSubscriber,
    entered,
    foreign,
    grant,
    lease,
    ledger,
    served,
)
from vllm_plugin.contracts.lease_protocol import SpentLeases

# Ends.


def test_aborted_request_keeps_its_lease_until_its_own_slots_came_back() -> None:
    leases, slots = ParentLeases(RUN), ledger()
    subscriber = FakeSubscriber(leases, FakePool(slots))
    request, own = served(leases, lease(), slots)
    slots.abandon(own.id)
    leases.leave(request)
    assert leases.of(US) == [lease()]
    assert not leases.revoke(lease())
    assert subscriber.ended == []
    slots.release(own.id, 0.0)  # the engine confirmed it
    leases.changed()
    assert subscriber.ended == [lease()]
    assert leases.revoke(lease())


def test_restart_of_the_engine_below_ends_leases_whose_handling_ended() -> None:
    leases, slots = ParentLeases(RUN), ledger()
    request, own = served(leases, lease(), slots)
    slots.abandon(own.id)
    leases.leave(request)
    slots.begin_epoch("e2")
    assert leases.of(US) == []


def test_request_that_got_slots_twice_ends_with_the_last_of_them() -> None:
    leases, slots, others = ParentLeases(RUN), ledger(), ledger()
    request, own = served(leases, lease(), slots)
    slots.abandon(own.id)
    second = grant(others, "elsewhere", 1)
    leases.granted(request, others, second)
    others.release(second.id, 0.0)
    leases.leave(request)
    assert leases.of(US) == [lease()]
    slots.release(own.id, 0.0)
    assert leases.of(US) == []


def test_revoked_lease_is_rejected_when_its_request_comes_late() -> None:
    leases = ParentLeases(RUN)
    assert leases.revoke(lease())
    assert leases.revoke(lease())
    assert leases.enter(lease()) is None


@pytest.mark.parametrize("header", ["", "x", f"{US}.{1:032x}", f"{US}.{1:032X}.0", "é" * 50])
def test_invalid_lease_is_not_booked(header: str) -> None:
    leases, slots = ParentLeases(RUN), ledger()
    request, _ = served(leases, header, slots)
    assert request.lease is None
    assert leases.sequences("", slots) == 0
    assert leases.of("") == []
    leases.leave(request)
    with pytest.raises(ValueError, match="is not a lease"):
        leases.revoke(header)


def test_memory_of_spent_leases_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parent_leases, "SpentLeases", lambda: SpentLeases(most=3))
    leases = ParentLeases(RUN)
    for number in range(5):
        assert leases.revoke(lease(number=number))
    assert len(leases._spent) == 3
    assert leases.enter(lease(number=4)) is None
    assert leases.enter(lease(number=0)) is not None


def test_lease_is_its_owners_whatever_instance_it_names() -> None:
    leases, slots = ParentLeases(RUN), ledger()
    us, owners = FakeSubscriber(leases, FakePool(slots)), "f" * 64
    request = leases.enter(lease(), owners)
    assert request is not None
    assert request.instance == owners + US
    assert (leases.of(US), leases.of(owners + US)) == ([], [lease()])
    leases.leave(request)
    assert us.ended == []


def test_end_wakes_a_subscriber_that_was_woken_before_by_a_change() -> None:
    leases, slots = ParentLeases(RUN), ledger()
    subscriber = FakeSubscriber(leases, FakePool(slots))
    subscriber.feed.due(0.0)
    request = entered(leases, lease())
    leases.changed()
    leases.changed()
    assert subscriber.wakes == 1
    leases.leave(request)
    assert subscriber.wakes == 2


# Foreign.


@pytest.mark.parametrize(("claimed", "real"), [(1, 3), (3, 1), (2, 2), (9_999_999, 1)])
def test_both_tiers_together_never_count_less_than_is_leased(claimed: int, real: int) -> None:
    """The parent counts the cost of its lease, which is not trusted."""
    leases, slots = ParentLeases(RUN), ledger()
    grant(slots, "another", 2)
    served(leases, lease(cost=claimed), slots, cost=real)
    seen = foreign(leases, slots, US)
    assert 2 <= seen <= slots.leased
    assert claimed + seen >= slots.leased


class Tiers(RuleBasedStateMachine):
    """Requests of two parent sidecars and of clients come, get slots, are cut short and end."""

    requests = Bundle("requests")

    def __init__(self) -> None:
        super().__init__()
        self.leases, self.slots = ParentLeases(RUN), ledger(slots_total=1000)
        self.subscribers = {
            i: FakeSubscriber(self.leases, FakePool(self.slots), i) for i in (US, THEM)
        }
        self.present: dict[str, tuple[ParentLease, Lease | None]] = {}
        self.sent: list[str] = []
        self.number = 0

    @rule(target=requests, instance=st.sampled_from([US, THEM]), cost=st.integers(1, 4))
    def enters(self, instance: str, cost: int) -> str:
        self.number += 1
        header = lease(instance, self.number, cost)
        self.present[header] = (entered(self.leases, header), None)
        return header

    @rule(header=requests, cost=st.integers(1, 4))
    def gets_slots(self, header: str, cost: int) -> None:
        request, own = self.present[header]
        if own is None:
            own = grant(self.slots, f"own-{header}", cost)
            self.leases.granted(request, self.slots, own)
            self.present[header] = (request, own)

    @rule(header=consumes(requests), cut=st.booleans())
    def ends(self, header: str, cut: bool) -> None:
        request, own = self.present[header]
        if own is not None:
            if cut:
                self.slots.abandon(own.id)
            else:
                self.slots.release(own.id, 0.0)
        self.leases.leave(request)

    @rule(cost=st.integers(1, 3))
    def client_comes(self, cost: int) -> None:
        self.number += 1
        grant(self.slots, f"client-{self.number}", cost)

    @rule()
    def engine_confirms(self) -> None:
        for own in self.slots.closing():
            self.slots.release(own, 0.0)
        self.leases.changed()

    @rule()
    def engine_restarts(self) -> None:
        self.number += 1
        self.slots.begin_epoch(f"e{self.number}")
        self.leases.changed()

    @rule()
    def readers_look(self) -> None:
        for subscriber in self.subscribers.values():
            for name, data in subscriber.feed.due(0.0):
                if name == "ended":
                    self.sent += data["leases"]

    @invariant()
    def an_end_that_was_sent_is_final(self) -> None:
        assert len(self.sent) == len(set(self.sent))
        for header in self.sent:
            request, own = self.present[header]
            assert request.handled
            assert own is None or not self.slots.owns(own.id)
            assert self.leases.revoke(header)

    @invariant()
    def tiers_together_count_all_that_is_leased(self) -> None:
        for instance in self.subscribers:
            seen = foreign(self.leases, self.slots, instance)
            above = sum(int(each.rpartition(".")[2]) for each in self.leases.of(instance))
            assert 0 <= seen <= self.slots.leased
            assert above + seen >= self.slots.leased


TestTiers = Tiers.TestCase

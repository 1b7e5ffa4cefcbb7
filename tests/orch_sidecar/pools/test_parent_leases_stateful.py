"""Leases of parents in any order of events: each end is sent once, and every slot counted."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from orch_sidecar.admission.types import Lease
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
)


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

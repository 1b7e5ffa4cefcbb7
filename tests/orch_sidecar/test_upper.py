"""The book of leases from above, and what a sidecar above is told. No event loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from orch_sidecar import upper
from orch_sidecar.admission.ledger import Lease, Ledger
from orch_sidecar.upper import Feed, Listener, PoolView, Presence, UpperLeases
from vllm_plugin import profile as profiles

US, THEM, RUN = "a" * 16, "b" * 16, "c" * 16
CLOUD = profiles.load("cloud")


def lease(instance: str = US, number: int = 1, cost: int = 1) -> str:
    return f"{instance}.{number:032x}.{cost}"


def ledger(slots_total: int = 8) -> Ledger:
    """The ledger of a pool whose engine has reported."""
    made = Ledger()
    made.begin_epoch("e1")
    made.slots_total = slots_total
    return made


def entered(book: UpperLeases, header: str) -> Presence:
    presence = book.enter(header)
    assert presence is not None
    return presence


def served(book: UpperLeases, header: str, slots: Ledger, cost: int = 1) -> tuple[Presence, Lease]:
    """A request that has entered and got slots."""
    presence = entered(book, header)
    own = slots.grant(f"own-{header}", cost)
    book.granted(presence, slots, own)
    return presence, own


@dataclass
class Reader:
    """A listener that looks whenever a test says so."""

    book: UpperLeases
    look: Callable[[], PoolView]
    instance: str = US
    wakes: int = 0
    listener: Listener = field(init=False)
    feed: Feed = field(init=False)

    def __post_init__(self) -> None:
        self.listener = Listener(self.instance, self.wake)
        self.book.listen(self.listener)
        self.feed = Feed(self.book, self.listener, self.look)

    def wake(self) -> None:
        self.wakes += 1


def view(slots: Ledger, **changes: Any) -> PoolView:
    engine = {
        "engine": "vllm",
        "profile": "cloud",
        "slots_total": slots.slots_total,
        "running": 2,
        "waiting": 1,
        "peak": 3,
        "foreign": 5,
        "steps_by_batch": {"1": [4, 0.1]},
        "step_time": None,
        "leases": ["not theirs to know"],
        "observed_at": "then",
        "epoch": "e1",
        "state": "ready",
    }
    made = PoolView("cloud", CLOUD, slots, {"interactive": 0, "bulk": 0}, "ready", "", engine)
    return replace(made, **changes)


# The book.


def test_lease_is_present_until_its_handling_has_ended() -> None:
    book, slots = UpperLeases(RUN), ledger()
    presence, own = served(book, lease(), slots)
    assert book.of(US) == [lease()]
    assert book.of(THEM) == []
    slots.release(own.id)
    assert book.of(US) == [lease()]
    book.leave(presence)
    assert book.of(US) == []


def test_aborted_request_keeps_its_lease_until_its_own_slots_came_back() -> None:
    book, slots = UpperLeases(RUN), ledger()
    reader = Reader(book, lambda: view(slots))
    presence, own = served(book, lease(), slots)
    slots.abandon(own.id)
    book.leave(presence)
    assert book.of(US) == [lease()]
    assert not book.revoke(lease())
    assert reader.listener.ended == []
    slots.release(own.id)  # the engine confirmed it
    book.changed()
    assert reader.listener.ended == [lease()]
    assert book.revoke(lease())


def test_request_that_never_got_slots_ends_with_its_handling() -> None:
    book, slots = UpperLeases(RUN), ledger()
    reader = Reader(book, lambda: view(slots))
    book.leave(entered(book, lease()))
    assert reader.listener.ended == [lease()]


def test_restart_of_the_engine_below_ends_leases_whose_handling_ended() -> None:
    book, slots = UpperLeases(RUN), ledger()
    presence, own = served(book, lease(), slots)
    slots.abandon(own.id)
    book.leave(presence)
    slots.begin_epoch("e2")
    assert book.of(US) == []


def test_request_that_got_slots_twice_ends_with_the_last_of_them() -> None:
    book, slots, others = UpperLeases(RUN), ledger(), ledger()
    presence, own = served(book, lease(), slots)
    slots.abandon(own.id)
    second = others.grant("elsewhere", 1)
    book.granted(presence, others, second)
    others.release(second.id)
    book.leave(presence)
    assert book.of(US) == [lease()]
    slots.release(own.id)
    assert book.of(US) == []


def test_spent_lease_is_turned_away() -> None:
    book = UpperLeases(RUN)
    book.leave(entered(book, lease()))
    assert book.enter(lease()) is None


def test_lease_that_is_present_already_is_turned_away() -> None:
    book = UpperLeases(RUN)
    entered(book, lease())
    assert book.enter(lease()) is None
    assert book.of(US) == [lease()]


def test_revoked_lease_is_turned_away_when_its_request_comes_late() -> None:
    book = UpperLeases(RUN)
    assert book.revoke(lease())
    assert book.revoke(lease())
    assert book.enter(lease()) is None


@pytest.mark.parametrize("header", ["", "x", f"{US}.{1:032x}", f"{US}.{1:032X}.0", "é" * 50])
def test_what_is_no_lease_is_not_booked(header: str) -> None:
    book, slots = UpperLeases(RUN), ledger()
    presence, _ = served(book, header, slots)
    assert presence.lease is None
    assert book.sequences("", slots) == 0
    assert book.of("") == []
    book.leave(presence)
    with pytest.raises(ValueError, match="not a lease"):
        book.revoke(header)


def test_memory_of_spent_leases_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upper, "ENDED_KEPT", 3)
    book = UpperLeases(RUN)
    for number in range(5):
        assert book.revoke(lease(number=number))
    assert len(book._ended) == 3
    assert book.enter(lease(number=4)) is None
    assert book.enter(lease(number=0)) is not None


def test_only_the_instance_whose_lease_ended_is_told() -> None:
    book, slots = UpperLeases(RUN), ledger()
    us, them = (Reader(book, lambda: view(slots), instance) for instance in (US, THEM))
    book.leave(entered(book, lease(THEM)))
    assert us.listener.ended == []
    assert them.listener.ended == [lease(THEM)]


def test_end_wakes_a_reader_that_was_woken_before_by_a_change() -> None:
    book, slots = UpperLeases(RUN), ledger()
    reader = Reader(book, lambda: view(slots))
    reader.feed.due(0.0)
    presence = entered(book, lease())
    book.changed()
    book.changed()
    assert reader.wakes == 1
    book.leave(presence)
    assert reader.wakes == 2


# Foreign.


def foreign(book: UpperLeases, slots: Ledger, instance: str) -> int:
    value = upper.entry(view(slots), RUN, book.sequences(instance, slots))["foreign"]
    assert isinstance(value, int)
    return value


def test_foreign_is_what_others_hold() -> None:
    book, slots = UpperLeases(RUN), ledger()
    slots.foreign = 1
    slots.grant("a client without a tier", 2)
    served(book, lease(US, 1), slots)
    served(book, lease(US, 2, cost=3), slots, cost=3)
    assert foreign(book, slots, US) == 3
    assert foreign(book, slots, THEM) == 7
    assert foreign(book, slots, "") == 7


def test_request_that_waits_here_is_nobodys_foreign() -> None:
    book, slots = UpperLeases(RUN), ledger()
    entered(book, lease())
    assert foreign(book, slots, US) == foreign(book, slots, THEM) == 0


@pytest.mark.parametrize(("claimed", "real"), [(1, 3), (3, 1), (2, 2), (9_999_999, 1)])
def test_both_tiers_together_never_count_less_than_is_leased(claimed: int, real: int) -> None:
    """The sidecar above counts what its lease says; that is not trusted."""
    book, slots = UpperLeases(RUN), ledger()
    slots.grant("another", 2)
    served(book, lease(cost=claimed), slots, cost=real)
    seen = foreign(book, slots, US)
    assert 2 <= seen <= slots.leased
    assert claimed + seen >= slots.leased


def test_slots_in_another_pool_do_not_count_in_this_one() -> None:
    book, slots, others = UpperLeases(RUN), ledger(), ledger()
    served(book, lease(), others)
    slots.grant("another", 1)
    assert foreign(book, slots, US) == 1
    assert foreign(book, others, US) == 0


# What is told.


def test_pool_looks_like_an_engine() -> None:
    slots = ledger()
    slots.grant("x", 3)
    said = upper.entry(view(slots, queued={"interactive": 2, "bulk": 1}), RUN, 1)
    assert said["epoch"] == f"{RUN}.e1"
    assert (said["slots_total"], said["slots_free"], said["leased"]) == (8, 5, 3)
    assert (said["running"], said["waiting"], said["foreign"]) == (2, 4, 2)
    assert said["state"] == "ready"
    assert said["pool"] == "cloud"
    assert said["steps_by_batch"] == {"1": [4, 0.1]}
    assert not {"leases", "observed_at", "age_ms"} & said.keys()


@pytest.mark.parametrize("state", ["draining", "stalled", "stale", "down", "unusable"])
def test_pool_that_is_not_ready_has_no_free_slots_and_says_why(state: str) -> None:
    said = upper.entry(view(ledger(), state=state, message="because"), RUN, 0)
    assert (said["state"], said["message"], said["slots_free"]) == (state, "because", 0)
    assert said["slots_total"] == 8


def test_pool_whose_engine_never_reported_is_told_as_well() -> None:
    said = upper.entry(view(Ledger(), engine=None, state="starting"), RUN, 0)
    assert (said["profile"], said["measurement_type"]) == ("cloud", "batched_online")
    assert (said["slots_total"], said["foreign"], said["peak"]) == (0, 0, 0)
    assert said["epoch"] == f"{RUN}."


def test_whole_state_comes_first_with_the_leases_that_are_here() -> None:
    book, slots = UpperLeases(RUN), ledger()
    served(book, lease(US, 2), slots)
    served(book, lease(US, 1), slots)
    served(book, lease(THEM, 3), slots)
    [(name, said)] = Reader(book, lambda: view(slots)).feed.due(10.0)
    assert name == "state"
    assert said["leases"] == [lease(US, 1), lease(US, 2)]
    assert said["foreign"] == 1


def test_change_holds_only_what_changed() -> None:
    book, slots = UpperLeases(RUN), ledger()
    reader = Reader(book, lambda: view(slots))
    reader.feed.due(10.0)
    slots.grant("another", 2)
    book.changed()
    assert reader.feed.due(10.1) == [("change", {"slots_free": 6, "foreign": 2, "leased": 2})]
    assert reader.feed.due(10.2) == []


def test_changes_come_at_most_every_20_ms() -> None:
    book, slots = UpperLeases(RUN), ledger()
    reader = Reader(book, lambda: view(slots))
    reader.feed.due(10.0)
    slots.grant("x", 1)
    book.changed()
    assert reader.feed.due(10.010) == []
    assert reader.feed.rest_s(10.010) == pytest.approx(0.010)
    slots.grant("y", 1)
    book.changed()
    assert reader.wakes == 1
    [(name, said)] = reader.feed.due(10.021)
    assert (name, said["foreign"]) == ("change", 2)
    assert reader.feed.rest_s(10.021) == pytest.approx(0.979)


def test_change_that_was_undone_is_not_told() -> None:
    book, slots = UpperLeases(RUN), ledger()
    reader = Reader(book, lambda: view(slots))
    reader.feed.due(10.0)
    slots.grant("x", 1)
    book.changed()
    slots.release("x")
    book.changed()
    assert reader.feed.due(10.1) == []


def test_end_is_told_at_once_and_before_the_change() -> None:
    book, slots = UpperLeases(RUN), ledger()
    presence = entered(book, lease())
    reader = Reader(book, lambda: view(slots))
    reader.feed.due(10.0)
    slots.grant("x", 1)
    book.leave(presence)
    assert reader.feed.due(10.001) == [("ended", {"leases": [lease()]})]
    assert [name for name, _ in reader.feed.due(10.03)] == ["change"]


def test_heartbeat_comes_each_second_with_what_nobody_woke_for() -> None:
    book, slots = UpperLeases(RUN), ledger()
    reader = Reader(book, lambda: view(slots))
    reader.feed.due(10.0)
    assert reader.feed.due(10.9) == []
    slots.foreign = 2
    assert reader.feed.due(11.0) == [("heartbeat", {"slots_free": 6, "foreign": 2})]
    assert reader.feed.due(12.0) == [("heartbeat", {})]


def test_pool_that_stops_being_ready_says_so_in_a_change() -> None:
    book, slots = UpperLeases(RUN), ledger()
    views = [view(slots)]
    reader = Reader(book, lambda: views[-1])
    reader.feed.due(10.0)
    views.append(view(slots, state="draining", message="drained by its operator"))
    book.changed()
    [(name, said)] = reader.feed.due(10.5)
    assert name == "change"
    assert said == {"state": "draining", "message": "drained by its operator", "slots_free": 0}


def test_restart_of_the_engine_below_is_told_as_a_whole_state() -> None:
    book, slots = UpperLeases(RUN), ledger()
    reader = Reader(book, lambda: view(slots))
    reader.feed.due(10.0)
    slots.begin_epoch("e2")
    book.changed()
    [(name, said)] = reader.feed.due(10.5)
    assert (name, said["epoch"], said["leases"]) == ("state", f"{RUN}.e2", [])


class Tiers(RuleBasedStateMachine):
    """Requests of two sidecars above and of clients come, get slots, are cut short and end."""

    requests = Bundle("requests")

    def __init__(self) -> None:
        super().__init__()
        self.book, self.slots = UpperLeases(RUN), ledger(slots_total=1000)
        self.readers = {i: Reader(self.book, lambda: view(self.slots), i) for i in (US, THEM)}
        self.present: dict[str, tuple[Presence, Lease | None]] = {}
        self.told: list[str] = []
        self.number = 0

    @rule(target=requests, instance=st.sampled_from([US, THEM]), cost=st.integers(1, 4))
    def enters(self, instance: str, cost: int) -> str:
        self.number += 1
        header = lease(instance, self.number, cost)
        self.present[header] = (entered(self.book, header), None)
        return header

    @rule(header=requests, cost=st.integers(1, 4))
    def gets_slots(self, header: str, cost: int) -> None:
        presence, own = self.present[header]
        if own is None:
            own = self.slots.grant(f"own-{header}", cost)
            self.book.granted(presence, self.slots, own)
            self.present[header] = (presence, own)

    @rule(header=consumes(requests), cut=st.booleans())
    def ends(self, header: str, cut: bool) -> None:
        presence, own = self.present[header]
        if own is not None:
            (self.slots.abandon if cut else self.slots.release)(own.id)
        self.book.leave(presence)

    @rule(cost=st.integers(1, 3))
    def client_comes(self, cost: int) -> None:
        self.number += 1
        self.slots.grant(f"client-{self.number}", cost)

    @rule()
    def engine_confirms(self) -> None:
        for own in self.slots.closing():
            self.slots.release(own)
        self.book.changed()

    @rule()
    def engine_restarts(self) -> None:
        self.number += 1
        self.slots.begin_epoch(f"e{self.number}")
        self.book.changed()

    @rule()
    def readers_look(self) -> None:
        for reader in self.readers.values():
            for name, said in reader.feed.due(0.0):
                if name == "ended":
                    self.told += said["leases"]

    @invariant()
    def an_end_that_was_told_is_one(self) -> None:
        assert len(self.told) == len(set(self.told))
        for header in self.told:
            presence, own = self.present[header]
            assert presence.handled
            assert own is None or not self.slots.holds(own.id)
            assert self.book.revoke(header)

    @invariant()
    def tiers_together_count_all_that_is_leased(self) -> None:
        for instance in self.readers:
            seen = foreign(self.book, self.slots, instance)
            above = sum(int(each.rpartition(".")[2]) for each in self.book.of(instance))
            assert 0 <= seen <= self.slots.leased
            assert above + seen >= self.slots.leased


TestTiers = Tiers.TestCase

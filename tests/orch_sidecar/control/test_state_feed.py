"""The events that a parent sidecar is sent about a pool, and when. No event loop."""

from __future__ import annotations

import pytest

from orch_sidecar.admission.ledger import Ledger
from orch_sidecar.engine_state.states import EngineState
from orch_sidecar.pools.parent_leases import ParentLeases
from tests.orch_sidecar.above import (
    RUN,
    THEM,
    US,
    FakePool,
    Reader,
    entered,
    lease,
    ledger,
    served,
    state,
)


def test_pool_looks_like_an_engine() -> None:
    slots = ledger()
    slots.grant("x", 3)
    said = state(slots, 1, queue_depth=3, queued_interactive=2)
    assert said["epoch"] == f"{RUN}.e1"
    assert (said["slots_total"], said["slots_free"], said["leased"]) == (8, 5, 3)
    assert (said["running"], said["waiting"], said["foreign"]) == (2, 4, 2)
    assert said["state"] == "ready"
    assert said["pool"] == "cloud"
    assert said["steps_by_batch"] == {"1": [4, 0.1]}
    assert not {"leases", "observed_at", "age_ms"} & said.keys()


@pytest.mark.parametrize("name", ["draining", "stalled", "stale", "down", "unusable"])
def test_pool_that_is_not_ready_has_no_free_slots_and_reports_why(name: str) -> None:
    said = state(ledger(), state=EngineState(name), message="because")
    assert (said["state"], said["message"], said["slots_free"]) == (name, "because", 0)
    assert said["slots_total"] == 8


def test_pool_whose_engine_never_reported_is_published_as_well() -> None:
    said = state(Ledger(), document=None, state=EngineState.STARTING)
    assert (said["profile"], said["measurement_type"]) == ("cloud", "batched_online")
    assert (said["slots_total"], said["foreign"], said["peak"]) == (0, 0, 0)
    assert said["epoch"] == f"{RUN}."


def test_whole_state_comes_first_with_the_leases_that_are_here() -> None:
    book, slots = ParentLeases(RUN), ledger()
    served(book, lease(US, 2), slots)
    served(book, lease(US, 1), slots)
    served(book, lease(THEM, 3), slots)
    [(name, said)] = Reader(book, FakePool(slots)).feed.due(10.0)
    assert name == "state"
    assert said["leases"] == [lease(US, 1), lease(US, 2)]
    assert said["foreign"] == 1


def test_change_holds_only_what_changed() -> None:
    book, slots = ParentLeases(RUN), ledger()
    reader = Reader(book, FakePool(slots))
    reader.feed.due(10.0)
    slots.grant("another", 2)
    book.changed()
    assert reader.feed.due(10.1) == [("change", {"slots_free": 6, "foreign": 2, "leased": 2})]
    assert reader.feed.due(10.2) == []


def test_changes_come_at_most_every_20_ms() -> None:
    book, slots = ParentLeases(RUN), ledger()
    reader = Reader(book, FakePool(slots))
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


def test_change_that_was_undone_is_not_sent() -> None:
    book, slots = ParentLeases(RUN), ledger()
    reader = Reader(book, FakePool(slots))
    reader.feed.due(10.0)
    slots.grant("x", 1)
    book.changed()
    slots.release("x")
    book.changed()
    assert reader.feed.due(10.1) == []


def test_end_is_sent_at_once_and_before_the_change() -> None:
    book, slots = ParentLeases(RUN), ledger()
    presence = entered(book, lease())
    reader = Reader(book, FakePool(slots))
    reader.feed.due(10.0)
    slots.grant("x", 1)
    book.leave(presence)
    assert reader.feed.due(10.001) == [("ended", {"leases": [lease()]})]
    assert [name for name, _ in reader.feed.due(10.03)] == ["change"]


def test_heartbeat_comes_each_second_with_changes_that_woke_nobody() -> None:
    book, slots = ParentLeases(RUN), ledger()
    reader = Reader(book, FakePool(slots))
    reader.feed.due(10.0)
    assert reader.feed.due(10.9) == []
    slots.foreign = 2
    assert reader.feed.due(11.0) == [("heartbeat", {"slots_free": 6, "foreign": 2})]
    assert reader.feed.due(12.0) == [("heartbeat", {})]


def test_pool_that_stops_being_ready_is_reported_in_a_change() -> None:
    book, slots = ParentLeases(RUN), ledger()
    pool = FakePool(slots)
    reader = Reader(book, pool)
    reader.feed.due(10.0)
    pool.changes = {"state": EngineState.DRAINING, "message": "drained by its operator"}
    book.changed()
    [(name, said)] = reader.feed.due(10.5)
    assert name == "change"
    assert said == {"state": "draining", "message": "drained by its operator", "slots_free": 0}


def test_restart_of_the_engine_below_is_sent_as_a_whole_state() -> None:
    book, slots = ParentLeases(RUN), ledger()
    reader = Reader(book, FakePool(slots))
    reader.feed.due(10.0)
    slots.begin_epoch("e2")
    book.changed()
    [(name, said)] = reader.feed.due(10.5)
    assert (name, said["epoch"], said["leases"]) == ("state", f"{RUN}.e2", [])

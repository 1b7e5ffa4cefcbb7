"""The events that a parent sidecar is sent about a pool, and when. No event loop."""

from __future__ import annotations

import pytest

from orch_sidecar.admission.ledger import Ledger
from orch_sidecar.admission.types import AdmissionRequest
from orch_sidecar.engine_state.states import PoolState
from orch_sidecar.pools.parent_leases import ParentLeases
from tests.orch_sidecar.parents import (
    RUN,
    THEM,
    US,
    FakePool,
    FakeSubscriber,
    entered,
    grant,
    lease,
    ledger,
    published,
    served,
    state,
)
from vllm_plugin.contracts.lease_protocol import CLAIM_S, ClaimCall
from vllm_plugin.contracts.profile import ServiceClass

FREE_6 = {"slots_free": 6, "slots_free_by_class": {"interactive": 6, "bulk": 6, "idle": 0}}


def test_pool_looks_like_an_engine() -> None:
    slots = ledger()
    grant(slots, "x", 3)
    data = published(FakePool(slots, queued=(2, 1)), 1)
    assert data["epoch"] == f"{RUN}.e1"
    assert (data["slots_total"], data["slots_free"], data["leased"]) == (8, 5, 3)
    assert (data["running"], data["waiting"], data["foreign"]) == (2, 4, 2)
    assert data["state"] == "ready"
    assert data["pool"] == "cloud"
    assert data["steps_by_batch"] == {"1": [4, 0.1]}
    assert not {"leases", "observed_at", "age_ms"} & data.keys()


def test_pool_whose_engine_never_reported_is_published_as_well() -> None:
    data = state(Ledger(), document={}, state=PoolState.STARTING)
    assert (data["profile"], data["measurement_type"]) == ("cloud", "batched_online")
    for each in ("slots_total", "foreign", "peak", "running", "waiting"):
        assert data[each] == 0
    assert data["epoch"] == f"{RUN}."


def test_whole_state_comes_first_with_the_leases_that_are_here() -> None:
    leases, slots = ParentLeases(RUN), ledger()
    served(leases, lease(US, 2), slots)
    served(leases, lease(US, 1), slots)
    served(leases, lease(THEM, 3), slots)
    slots.grant("x", AdmissionRequest(ServiceClass.IDLE, 4), 0.0)  # which gives way to theirs
    [(name, data)] = FakeSubscriber(leases, FakePool(slots)).feed.due(10.0)
    assert name == "state"
    assert data["leases"] == [lease(US, 1), lease(US, 2)]
    assert data["foreign"] == 1


def test_change_holds_only_what_changed() -> None:
    leases, slots = ParentLeases(RUN), ledger()
    subscriber = FakeSubscriber(leases, FakePool(slots))
    subscriber.feed.due(10.0)
    grant(slots, "another", 2)
    leases.changed()
    assert subscriber.feed.due(10.1) == [("change", FREE_6 | {"foreign": 2, "leased": 2})]
    assert subscriber.feed.due(10.2) == []


def test_changes_come_at_most_every_20_ms() -> None:
    leases, slots = ParentLeases(RUN), ledger()
    subscriber = FakeSubscriber(leases, FakePool(slots))
    subscriber.feed.due(10.0)
    grant(slots, "x", 1)
    leases.changed()
    assert subscriber.feed.due(10.010) == []
    assert subscriber.feed.sleep_s(10.010) == pytest.approx(0.010)
    grant(slots, "y", 1)
    leases.changed()
    assert subscriber.wakes == 1
    [(name, data)] = subscriber.feed.due(10.021)
    assert (name, data["foreign"]) == ("change", 2)
    assert subscriber.feed.sleep_s(10.021) == pytest.approx(0.979)


@pytest.mark.parametrize(("parents", "every_s"), [(1, 0.020), (11, 0.020), (64, 0.126)])
def test_the_more_parents_there_are_the_fewer_changes_each_is_sent(
    parents: int, every_s: float
) -> None:
    leases, slots = ParentLeases(RUN), ledger()
    pool = FakePool(slots)
    [subscriber, *_] = [FakeSubscriber(leases, pool) for _ in range(parents)]
    subscriber.feed.due(10.0)
    grant(slots, "x", 1)
    leases.changed()
    assert subscriber.feed.due(10.0 + every_s - 0.001) == []
    assert [name for name, _ in subscriber.feed.due(10.001 + every_s)] == ["change"]


def test_pool_that_stops_taking_requests_is_reported_at_once_to_each_of_many_parents() -> None:
    leases, pool = ParentLeases(RUN), FakePool(ledger())
    subscribers = [FakeSubscriber(leases, pool) for _ in range(64)]
    for each in subscribers:
        each.feed.due(10.0)
    leases.changed()  # for that they wait for their turn
    assert subscribers[0].feed.due(10.001) == []
    pool.changes = {"state": PoolState.DRAINING}
    leases.changed(at_once=True)
    for each in subscribers:
        [(name, data)] = each.feed.due(10.002)
        assert (name, data["state"]) == ("change", "draining")
    assert {each.wakes for each in subscribers} == {2}


def test_end_is_sent_at_once_and_before_the_change() -> None:
    leases, slots = ParentLeases(RUN), ledger()
    request = entered(leases, lease())
    subscriber = FakeSubscriber(leases, FakePool(slots))
    subscriber.feed.due(10.0)
    grant(slots, "x", 1)
    leases.leave(request)
    assert subscriber.feed.due(10.001) == [("ended", {"leases": [lease()]})]
    assert [name for name, _ in subscriber.feed.due(10.03)] == ["change"]


def test_heartbeat_comes_each_second_with_changes_that_woke_nobody() -> None:
    leases, slots = ParentLeases(RUN), ledger()
    subscriber = FakeSubscriber(leases, FakePool(slots))
    subscriber.feed.due(10.0)
    assert subscriber.feed.due(10.9) == []
    slots.foreign = 2
    assert subscriber.feed.due(11.0) == [("heartbeat", FREE_6 | {"foreign": 2})]
    assert subscriber.feed.due(12.0) == [("heartbeat", {})]


def test_claim_that_a_parent_no_longer_repeats_ends_at_a_heartbeat() -> None:
    leases, pool = ParentLeases(RUN), FakePool(ledger())
    table = pool.claims.parents.claim_table
    table.opened(THEM)
    pool.claims.claimed(THEM, ClaimCall(None, number=1, waits=True), 10.0)
    feed = FakeSubscriber(leases, pool).feed
    feed.due(10.0)
    feed.due(10.0 + CLAIM_S - 0.5)
    assert table.any_unclaimed_demand
    feed.due(10.0 + CLAIM_S + 0.5)
    assert not table.any_unclaimed_demand

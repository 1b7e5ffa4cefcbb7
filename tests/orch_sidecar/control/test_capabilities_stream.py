"""The events that a parent sidecar is sent about a pool, and when. No event loop.

A published pool as a parent sidecar watches it: slots, leases, states and restarts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest

from orch_sidecar.admission.controller import AdmissionController
from orch_sidecar.admission.gate import Gate
from orch_sidecar.admission.ledger import Ledger
from orch_sidecar.admission.types import AdmissionRequest, Lease
from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.engine_state.states import PoolState
from orch_sidecar.pools import engine_watcher
from orch_sidecar.pools.engine_watcher import EngineWatcher
from orch_sidecar.pools.parent_leases import ParentLeases
from tests.integration.running import eventually
from tests.orch_sidecar.admission.gates import lease_at_once, opened
from tests.orch_sidecar.parents import (
    CLOUD,
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
from tests.orch_sidecar.published import Tier
from vllm_plugin.contracts.lease_protocol import API_VERSION, CLAIM_S, ClaimCall
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


class Parent:
    """The admission of a parent sidecar, which watches the pool as it would an engine."""

    def __init__(self, session: aiohttp.ClientSession, tier: Tier) -> None:
        self.gate = Gate(AdmissionController(CLOUD.admission))
        self.ledger = self.gate.ledger
        self.watcher = EngineWatcher(session, tier.url, {}, self.gate, CLOUD)
        loop = asyncio.get_running_loop()
        self.tasks = [
            loop.create_task(self.watcher.watch()),
            loop.create_task(self.watcher.reconcile()),
        ]

    def take(self, cost: int = 1) -> Lease:
        return lease_at_once(self.gate, AdmissionRequest(ServiceClass.INTERACTIVE, cost))

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


@pytest.fixture
async def parent(tier: Tier) -> AsyncIterator[Parent]:
    async with aiohttp.ClientSession() as session:
        made = Parent(session, tier)
        await eventually(lambda: made.watcher.ready)
        yield made
        await made.stop()


async def test_parent_gets_slots_of_an_abort_back_when_the_engine_confirmed_it(
    tier: Tier, parent: Parent
) -> None:
    ours = parent.take()
    request, own = served(tier.leases, ours.id, tier.slots)
    parent.gate.ledger.abandon(ours.id)
    tier.slots.abandon(own.id)
    tier.leases.leave(request)
    await asyncio.sleep(0.1)
    assert parent.ledger.leased == 1
    tier.slots.release(own.id, 0.0)
    tier.leases.changed()
    await eventually(lambda: not parent.ledger.leased)


async def test_parent_asks_for_leases_that_never_arrived(tier: Tier, parent: Parent) -> None:
    ours = parent.take()
    parent.gate.ledger.abandon(ours.id)
    await eventually(lambda: not parent.ledger.leased)
    assert tier.leases.enter(ours.id) is None


@pytest.mark.parametrize("state", [state.value for state in PoolState if state != "ready"])
async def test_parent_admits_nothing_while_the_pool_is_not_ready(
    tier: Tier, parent: Parent, state: str
) -> None:
    tier.pools["cloud"].changes = {"state": PoolState(state), "message": "because of this"}
    tier.leases.changed()
    await eventually(lambda: not parent.watcher.ready)
    assert parent.watcher.state is PoolState(state)
    assert "because of this" in parent.watcher.message or state == "stalled"
    asked = AdmissionRequest(ServiceClass.BULK, may_queue=False)
    refusal = await opened(parent.gate, asked).lease()
    assert isinstance(refusal, Refusal)
    assert refusal.reason in {Reason(reason) for reason in Reason if reason.startswith("engine_")}
    tier.pools["cloud"].changes = {}
    tier.leases.changed()
    await eventually(lambda: parent.watcher.ready)
    parent.take()


@pytest.mark.parametrize("refusing", ["parent", "child"])
async def test_parent_and_child_of_different_major_versions_refuse_each_other(
    tier: Tier, refusing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = "orch_sidecar.control.capabilities" if refusing == "parent" else engine_watcher.__name__
    monkeypatch.setattr(f"{other}.API_VERSION", "2.0.0")
    async with aiohttp.ClientSession() as session:
        parent = Parent(session, tier)
        await eventually(lambda: parent.watcher.state is PoolState.UNUSABLE)
        assert "'2.0.0' is not compatible with" in parent.watcher.message
        assert repr(API_VERSION) in parent.watcher.message
        request = AdmissionRequest(ServiceClass.INTERACTIVE)
        refusal = await opened(parent.gate, request).lease()
        assert isinstance(refusal, Refusal)
        assert refusal.reason is Reason.API_VERSION_MISMATCH
        await parent.stop()


@pytest.mark.parametrize("version", ["1.0.0", "1.999.0"])
async def test_parent_and_child_of_different_minor_versions_work_together(
    tier: Tier, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_watcher, "API_VERSION", version)
    monkeypatch.setattr("orch_sidecar.control.capabilities.API_VERSION", "1.5.0")
    async with aiohttp.ClientSession() as session:
        parent = Parent(session, tier)
        await eventually(lambda: parent.watcher.ready)
        parent.take()
        await parent.stop()

"""A published pool as a parent sidecar watches it: slots, leases, states and restarts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest

from orch_sidecar.admission.controller import AdmissionController
from orch_sidecar.admission.gate import Gate
from orch_sidecar.admission.types import AdmissionRequest, Lease
from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.engine_state.states import PoolState
from orch_sidecar.pools import engine_watcher
from orch_sidecar.pools.engine_watcher import EngineWatcher
from tests.integration.running import eventually
from tests.orch_sidecar.admission.gates import lease_at_once, opened
from tests.orch_sidecar.parents import CLOUD, served
from tests.orch_sidecar.published import Tier
from vllm_plugin.contracts.lease_protocol import API_VERSION
from vllm_plugin.contracts.profile import ServiceClass


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

"""Requests that come while no engine takes any: those that may wait are served when one does."""

from __future__ import annotations

import asyncio

import pytest

from orch_sidecar.admission.availability import OrderedBy
from tests.integration.cancelling import assert_cancelled, cancel, named
from tests.integration.client import AT_ONCE, CHAT
from tests.integration.held import Held, started
from tests.integration.running import Running, Start, all_ready, eventually, pools
from tests.integration.scripted_engine import Engine, ScriptedEngine
from tests.integration.test_headless import Names, names, ready

__all__ = ["names"]  # a fixture


def waiting(running: Running) -> int:
    """Requests that wait for a pool to be back."""
    return len(running.sidecar.waiting_room)


async def test_request_that_comes_while_the_engine_starts_is_served_when_it_is_ready(
    engine: ScriptedEngine, start: Start
) -> None:
    engine.report(state="starting")
    running = await start(wait=False)
    await eventually(lambda: running.sidecar.state == "starting")
    clients = [await started(running, seed=seed) for seed in range(3)]
    pinned = await running.client()
    pinned.start(CHAT, [("X-Orch-Pool", "cloud")], seed=3)
    await eventually(lambda: running.queued == 4)
    assert engine.generating == []
    engine.report(state="ready")
    for client in (*clients, pinned):
        assert (await client.response()).status == 200
    assert [request.json()["seed"] for request in engine.generating] == [0, 1, 2, 3]


async def test_pool_whose_only_address_is_replaced_loses_no_request_that_may_wait(
    names: Names, start: Start
) -> None:
    await names.come("127.0.0.2")
    running = await start(pools=[names.setting])
    await eventually(lambda: ready(running) == ["cloud-1"])
    assert (await (await running.client()).post()).status == 200
    await names.go("127.0.0.2")
    await eventually(lambda: running.sidecar.pools.without_address)
    clients = [await started(running, seed=seed) for seed in range(3)]
    await eventually(lambda: waiting(running) == 3)
    next_one = await names.come("127.0.0.3", slots=4)
    for client in clients:
        assert (await client.response()).status == 200
    assert [request.json()["seed"] for request in next_one.generating] == [0, 1, 2]
    assert waiting(running) == 0
    await running.idle()


async def test_address_that_is_about_to_leave_sends_nobody_away(names: Names, start: Start) -> None:
    """The pod's own sidecar drains when its engine is stopped, before its address is gone."""
    old = await names.come("127.0.0.2")
    running = await start(pools=[names.setting])
    await eventually(lambda: ready(running) == ["cloud-1"])
    old.report(state="draining")
    await eventually(lambda: running.pool.watcher.state == "draining")
    client = await started(running)
    await eventually(lambda: waiting(running) == 1)
    await names.go("127.0.0.2")
    await names.come("127.0.0.3")
    assert (await client.response()).status == 200
    await running.idle()


@pytest.fixture
async def nobody(start: Start, engine: ScriptedEngine, another: Engine) -> Running:
    """Two pools, and both stall."""
    b = await another()
    running = await all_ready(await start(**pools(a=engine, b=b)))
    for each in (engine, b):
        each.report(state="stalled")
    await eventually(lambda: all(pool.state == "stalled" for pool in running.sidecar.pools))
    return running


async def test_client_that_leaves_waits_no_more(nobody: Running) -> None:
    client = await started(nobody)
    await eventually(lambda: waiting(nobody) == 1)
    await client.close()
    await eventually(lambda: waiting(nobody) == 0)


async def test_request_that_waits_for_a_pool_can_be_cancelled(nobody: Running) -> None:
    client = await nobody.client()
    client.start(CHAT, [named("0" * 32)])
    await eventually(lambda: waiting(nobody) == 1)
    assert (await cancel(nobody, "0" * 32)).status == 204
    assert_cancelled(await client.response())
    assert waiting(nobody) == 0


async def test_wait_for_a_pool_ends_with_the_time_of_the_request(nobody: Running) -> None:
    client = await nobody.client()
    refused = await client.post(CHAT, [("X-Orch-Max-Wait-Ms", "1500")])
    assert (refused.status, refused.error["code"]) == (503, "no_pool")
    assert refused.error["retry_after_ms"] >= 1000
    assert (await client.post(CHAT, [("X-Orch-Max-Wait-Ms", "1")])).status == 503
    assert (await client.post(CHAT, AT_ONCE)).status == 503


async def test_shutdown_ends_the_wait_for_a_pool(nobody: Running) -> None:
    client = await started(nobody)
    await eventually(lambda: waiting(nobody) == 1)
    nobody.sidecar.pools.shut_down()
    refused = await client.response()
    assert (refused.status, refused.error["code"]) == (503, "draining")
    assert waiting(nobody) == 0


async def test_requests_that_waited_at_an_address_wait_for_the_next_one_when_it_leaves(
    names: Names, start: Start
) -> None:
    old = await names.come("127.0.0.2", slots=1)
    old.answer = held = Held()
    running = await start(pools=[names.setting])
    busy = await started(running)
    await eventually(lambda: held.waiting)
    queued = [await started(running, seed=seed) for seed in (1, 2)]
    await eventually(lambda: running.queued == 2)
    old.report(state="draining")
    await eventually(lambda: waiting(running) == 2)
    held.release()
    assert (await busy.response()).status == 200
    await names.go("127.0.0.2")
    new = await names.come("127.0.0.3", slots=4)
    for client in queued:
        assert (await client.response()).status == 200
    assert [request.json()["seed"] for request in new.generating] == [1, 2]


async def test_nobody_waits_for_pools_that_an_operator_drains(
    start: Start, engine: ScriptedEngine, another: Engine
) -> None:
    running = await all_ready(await start(**pools(a=engine, b=await another())))
    for pool in running.sidecar.pools:
        pool.gate.drain(OrderedBy.OPERATOR)
    refused = await (await running.client()).post()
    assert (refused.status, refused.error["code"]) == (503, "draining")
    await asyncio.sleep(0)
    assert waiting(running) == 0

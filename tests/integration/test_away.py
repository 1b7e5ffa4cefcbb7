"""Requests that come while no engine takes any: those that may wait are served when one does.

A pool whose name has several addresses, which come and go while requests are served.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from orch_sidecar.admission.availability import OrderedBy
from orch_sidecar.pools import discovery
from tests.integration.cancelling import assert_cancelled, cancel, named
from tests.integration.client import AT_ONCE, CHAT
from tests.integration.held import Held, started
from tests.integration.running import Running, Start, all_ready, eventually, pools
from tests.integration.scripted_engine import Engine, ScriptedEngine


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


HOST = "cloud.test"


class Names:
    """What the resolver knows of the one name, and engines at its addresses."""

    def __init__(self) -> None:
        self.addresses: set[str] = set()
        self.error: int | None = None
        self.engines: dict[str, ScriptedEngine] = {}
        self.port = 0

    async def resolve(self, host: str) -> frozenset[str]:
        assert host == HOST
        if self.error is not None:
            raise socket.gaierror(self.error, "the resolver says no")
        if not self.addresses:
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return frozenset(self.addresses)

    async def come(self, address: str, *, slots: int = 2, names: bool = True) -> ScriptedEngine:
        """An engine listens there, and the name has the address."""
        engine = ScriptedEngine(slots=slots, host=address, port=self.port)
        await engine.start()
        self.port = engine.port
        self.engines[address] = engine
        if names:
            self.addresses.add(address)
        return engine

    async def go(self, address: str) -> None:
        """The engine dies, and the name has the address no more."""
        self.addresses.discard(address)
        await self.engines.pop(address).stop()

    @property
    def setting(self) -> dict[str, Any]:
        url = f"http://{HOST}:{self.port}"
        return {"name": "cloud", "url": url, "profile": "cloud", "headless": True}


@pytest.fixture
async def names(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Names]:
    names = Names()
    monkeypatch.setattr(discovery, "addresses_of", names.resolve)
    monkeypatch.setattr(discovery, "LOOK_UP_EVERY_S", 0.02)
    yield names
    for engine in names.engines.values():
        await engine.stop()
        assert engine.failures == []
        assert engine.peak <= engine.slots


def ready(running: Running) -> list[str]:
    return [pool.name for pool in running.sidecar.pools if pool.watcher.ready]


async def test_new_address_takes_queued_requests_at_once(names: Names, start: Start) -> None:
    one = await names.come("127.0.0.2")
    one.answer = first = Held()
    running = await start(pools=[names.setting])
    for _ in range(4):
        await started(running)
    await eventually(lambda: len(first.waiting) == 2 and running.queued == 2)
    two = await names.come("127.0.0.3")
    two.answer = second = Held()
    await eventually(lambda: len(second.waiting) == 2)
    assert running.queued == 0
    first.release_all()
    second.release_all()
    await running.idle()
    assert (len(one.generating), len(two.generating)) == (2, 2)


async def test_request_that_pinned_one_address_waits_there(names: Names, start: Start) -> None:
    one = await names.come("127.0.0.2", slots=1)
    one.answer = held = Held()
    running = await start(pools=[names.setting])
    await started(running)
    await eventually(lambda: len(held.waiting) == 1)
    await started(running, headers=[("X-Orch-Pool", "cloud-1")])
    await eventually(lambda: running.queued == 1)
    two = await names.come("127.0.0.3")
    await eventually(lambda: len(ready(running)) == 2)
    await asyncio.sleep(0.15)  # three looks at which requests may go elsewhere
    assert running.queued == 1
    assert not two.generating
    held.release()
    await eventually(lambda: len(one.generating) == 2)
    held.release()
    await running.idle()


async def test_answer_that_is_under_way_outlives_the_address_of_its_engine(
    names: Names, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orch_sidecar.pools.discovery.MISSING_FOR_S", 0.1)
    one = await names.come("127.0.0.2")
    one.answer = held = Held()
    running = await start(pools=[names.setting])
    client = await started(running)
    await eventually(lambda: len(held.waiting) == 1)
    two = await names.come("127.0.0.3")
    await eventually(lambda: len(ready(running)) == 2)
    names.addresses.discard("127.0.0.2")
    await eventually(lambda: ready(running) == ["cloud-2"])
    held.release()
    assert (await client.response()).status == 200
    assert (await (await running.client()).post()).status == 200
    assert (len(one.generating), len(two.generating)) == (1, 1)
    await running.idle()


async def test_name_without_an_address_is_reported_and_refused_as_away(
    names: Names, start: Start, engine: ScriptedEngine
) -> None:
    names.port = 1
    home = {"name": "other", "url": engine.url, "profile": "cloud"}
    running = await start(pools=[names.setting, home])
    await eventually(
        lambda: "no address" in str(running.sidecar.pools.without_address["cloud"].message)
    )
    client = await running.client()
    refused = await client.post(CHAT, headers=[("X-Orch-Pool", "cloud"), *AT_ONCE])
    assert refused.status == 503
    assert "the name of the pool cloud has no address" in refused.error["message"]
    health = (await client.get("/readyz")).json()
    assert health["pools"] == {"other": "ready", "cloud": "absent"}
    assert "has no address" in health["last_error"]
    assert (await client.post()).status == 200


async def test_resolver_that_fails_changes_nothing(names: Names, start: Start) -> None:
    await names.come("127.0.0.2")
    running = await start(pools=[names.setting])
    names.error = socket.EAI_AGAIN
    await asyncio.sleep(0.1)
    assert ready(running) == ["cloud-1"]
    assert (await (await running.client()).post()).status == 200


async def test_system_resolver_is_asked() -> None:
    assert "127.0.0.1" in await discovery.addresses_of("127.0.0.1")
    with pytest.raises(socket.gaierror) as failure:
        await discovery.addresses_of("no-such-name.invalid")
    assert failure.value.errno in (socket.EAI_NONAME, socket.EAI_NODATA, socket.EAI_AGAIN)

"""A pool whose name has several addresses, which come and go while requests are served."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from orch_sidecar.pools import discovery
from tests.integration.client import AT_ONCE, CHAT
from tests.integration.held import Held, started
from tests.integration.running import Running, Start, eventually
from tests.integration.scripted_engine import ScriptedEngine

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

    async def come(self, address: str, *, slots: int = 2, known: bool = True) -> ScriptedEngine:
        """An engine listens there, and the name has the address."""
        engine = ScriptedEngine(slots=slots, host=address, port=self.port)
        await engine.start()
        self.port = engine.port
        self.engines[address] = engine
        if known:
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

"""A scripted engine and sidecars in front of it, on one event loop and real sockets.

After each test: every lease came back or was accounted for, the engine never held more than its
slots, no violation was counted, and no task of the sidecar is left.
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any

import pytest
import uvloop

from orch_sidecar.app import Sidecar
from orch_sidecar.engine import EngineState
from orch_sidecar.settings import SidecarSettings
from tests.integration.client import Client
from tests.integration.scripted_engine import ScriptedEngine

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, LoopFactory]:
    """uvloop, which `orch sidecar` runs on; and asyncio where a module says EVERY_LOOP."""
    factories: dict[str, LoopFactory] = {"uvloop": uvloop.new_event_loop}
    if getattr(item.getparent(pytest.Module).obj, "EVERY_LOOP", False):  # type: ignore[union-attr]
        factories["asyncio"] = asyncio.new_event_loop
    return factories


async def eventually(condition: Callable[[], object], within_s: float = 3.0) -> None:
    """Returns when the condition holds; fails when it does not within the time."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    while not condition():
        assert loop.time() < deadline, "the condition did not come true in time"
        await asyncio.sleep(0.005)


class Running:
    """A sidecar that listens, and the clients a test has made to it."""

    def __init__(self, sidecar: Sidecar, port: int) -> None:
        self.sidecar = sidecar
        self.port = port
        self.clients: list[Client] = []
        self.stopped = False

    @property
    def ledger(self) -> Any:
        return self.sidecar.gate.core.ledger

    @property
    def queued(self) -> int:
        return self.sidecar.gate.core.queue_depth

    async def client(self, *, receive_buffer: int | None = None) -> Client:
        client = await Client.connect(self.port, receive_buffer=receive_buffer)
        self.clients.append(client)
        return client

    async def ready(self, within_s: float = 3.0) -> None:
        await eventually(lambda: self.sidecar.state is EngineState.READY, within_s)

    async def idle(self, within_s: float = 3.0) -> None:
        """Waits until no lease is out and no request is being handled."""
        await eventually(
            lambda: not self.ledger.leased and not len(self.sidecar.watch) and not self.queued,
            within_s,
        )

    async def capabilities(self) -> dict[str, Any]:
        client = await self.client()
        response = await client.get("/v1/capabilities")
        entry: dict[str, Any] = response.json()["engines"][0]
        return entry

    async def metrics(self) -> dict[str, float]:
        """Sample (name with labels, as in the text format) to value."""
        client = await self.client()
        text = (await client.get("/metrics")).body.decode()
        lines = [line for line in text.splitlines() if line and not line.startswith("#")]
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}

    async def stop(self) -> None:
        if not self.stopped:
            self.stopped = True
            await self.sidecar.stop()


Start = Callable[..., Awaitable[Running]]


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting from outside reaches a test."""
    for name in list(os.environ):
        if name.startswith(("ORCH_", "OTEL_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    """A sidecar freezes what is alive when it starts: a process of its own would keep it."""
    yield
    gc.unfreeze()


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    """An engine of the cloud profile with 4 slots."""
    engine = ScriptedEngine()
    await engine.start()
    yield engine
    await engine.stop()
    assert engine.failures == []
    assert engine.peak <= engine.slots


@pytest.fixture
async def start(engine: ScriptedEngine) -> AsyncIterator[Start]:
    """Starts sidecars in front of `engine`; settings are keyword arguments."""
    before = asyncio.all_tasks()
    started: list[Running] = []

    async def start_one(*, wait: bool = True, **settings: Any) -> Running:
        settings = {
            "engine_url": engine.url,
            "profile": "cloud",
            "port": 0,
            "drain_timeout_s": 0.2,
        } | settings
        sidecar = Sidecar(SidecarSettings(**settings))
        running = Running(sidecar, await sidecar.start())
        started.append(running)
        if wait:
            await running.ready()
        return running

    yield start_one
    for running in started:
        for client in running.clients:
            await client.close()
        await running.stop()
        assert running.ledger.violations == 0
    await eventually(lambda: not _left_over(before, engine))


def _left_over(before: set[asyncio.Task[Any]], engine: ScriptedEngine) -> list[asyncio.Task[Any]]:
    mine = before | engine.tasks | {asyncio.current_task()}
    return [task for task in asyncio.all_tasks() if task not in mine]


@pytest.fixture
async def sidecar(start: Start) -> Running:
    """A sidecar that is ready."""
    return await start()

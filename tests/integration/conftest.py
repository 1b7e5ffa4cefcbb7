"""A scripted engine and sidecars in front of it, on one event loop and real sockets.

After each test: every lease came back or was accounted for, the engine never held more than its
slots, no violation was counted, and no task of the sidecar is left.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import uvloop

from orch_sidecar.app.sidecar import Sidecar
from orch_sidecar.config.configuration import rules_of
from orch_sidecar.config.settings import SidecarSettings
from tests.integration.echo import Echo
from tests.integration.held import Held
from tests.integration.keyed import KeyRing
from tests.integration.live import Readers
from tests.integration.otlp import Collect, Collector, grpc_collector, http_collector
from tests.integration.running import Running, Start, all_ready, eventually, pools
from tests.integration.scripted_answers import AnswerScript
from tests.integration.scripted_engine import Engine, ScriptedEngine
from tests.integration.tiers import above
from vllm_plugin.contracts.profile import AdmissionRules, Profile

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def pytest_asyncio_loop_factories() -> Mapping[str, LoopFactory]:
    """The loop that `orch sidecar` runs on, and no other."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
def monkeypatch(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Skips a test that replaces a name in a compiled module, which does not look it up again."""
    replace = monkeypatch.setattr

    def setattr(target: Any, *rest: Any, **options: Any) -> None:
        text = isinstance(target, str)
        name = target.rpartition(".")[0] if text else getattr(target, "__module__", target)
        module = sys.modules.get(name) if isinstance(name, str) else name
        ours = getattr(module, "__name__", "").startswith("orch_sidecar.")
        looked_up = text and target.endswith(".rules_of")  # a function of an interpreted module
        if ours and str(getattr(module, "__file__", "")).endswith(".so") and not looked_up:
            pytest.skip(f"replaces a name in {name}, which is compiled")
        replace(target, *rest, **options)

    monkeypatch.setattr = setattr  # type: ignore[method-assign]
    return monkeypatch


@pytest.fixture(autouse=True)
def reconnects_soon() -> Iterator[None]:
    """No test waits for the next attempt to reach an engine, but where the module is compiled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("orch_sidecar.pools.engine_watcher.RECONNECT_S", 0.02)
        yield


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting from outside reaches a test."""
    for name in list(os.environ):
        if name.startswith(("ORCH_", "OTEL_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def no_freezing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sidecar tunes the collector for a process of its own; this process has many sidecars.

    The real thing is in test_process.
    """
    monkeypatch.setattr("orch_sidecar.app.sidecar.gc", MagicMock())


def _without_split(profile: Profile, settings: SidecarSettings) -> AdmissionRules:
    return rules_of(profile, settings).model_copy(update={"split": False})


@pytest.fixture(autouse=True)
def whole(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests for several sequences run as a whole, as with `split: false`; but where a module
    says DIVIDES, as the profiles say."""
    if not getattr(request.module, "DIVIDES", False):
        for module in ("orch_sidecar.pools.registry", "orch_sidecar.config.configuration"):
            monkeypatch.setattr(f"{module}.rules_of", _without_split)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sidecar's periodic looks, without the wait. To be named before the sidecar."""
    monkeypatch.setattr("orch_sidecar.app.sidecar.CHECK_EVERY_S", 0.05)
    monkeypatch.setattr("orch_sidecar.pools.engine_watcher.RECONCILE_EVERY_S", 0.1)


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
async def another() -> AsyncIterator[Engine]:
    """Makes further engines; what an engine is are keyword arguments."""
    made: list[ScriptedEngine] = []

    async def make(**options: Any) -> ScriptedEngine:
        engine = ScriptedEngine(**options)
        await engine.start()
        made.append(engine)
        return engine

    yield make
    for engine in made:
        await engine.stop()
        assert engine.failures == []
        assert engine.peak <= engine.slots


@pytest.fixture
async def b(another: Engine) -> ScriptedEngine:
    """A second engine like the first; for where they are pools `a` and `b`."""
    return await another()


@pytest.fixture
async def home(another: Engine) -> ScriptedEngine:
    """An engine of the home profile, which repeats what it is asked."""
    engine = await another(slots=1, profile="home")
    engine.answer = Echo()
    return engine


@pytest.fixture
async def start(engine: ScriptedEngine) -> AsyncIterator[Start]:
    """Starts sidecars in front of `engine`; settings are keyword arguments."""
    before = asyncio.all_tasks()
    started: list[Running] = []

    async def start_one(*, wait: bool = True, **settings: Any) -> Running:
        options: dict[str, Any] = {
            "engine_url": engine.url,
            "profile": "cloud",
            "port": 0,
            "drain_timeout_s": 0.2,
            "parents": "open",
        } | settings
        sidecar = Sidecar(SidecarSettings(**options))
        running = Running(sidecar, await sidecar.start())
        started.append(running)
        if wait:
            await running.ready()
        return running

    yield start_one
    for running in reversed(started):  # the one above another before that
        for client in running.clients:
            await client.close()
        await running.stop()
        for pool in running.sidecar.pools:
            assert pool.ledger.violations == 0
    await eventually(lambda: not _left_over(before, engine))


def _left_over(before: set[asyncio.Task[Any]], engine: ScriptedEngine) -> list[asyncio.Task[Any]]:
    mine = before | engine.tasks | {asyncio.current_task()}
    return [task for task in asyncio.all_tasks() if task not in mine]


@pytest.fixture
async def sidecar(start: Start) -> Running:
    """A sidecar that is ready."""
    return await start()


@pytest.fixture
def ring(request: pytest.FixtureRequest, tmp_path: Path) -> KeyRing:
    """The keys that the module names as KEYS, with their fields; else of Alice and Bob."""
    ring = KeyRing(tmp_path)
    for name, fields in getattr(request.module, "KEYS", {"alice": {}, "bob": {}}).items():
        ring.add(name, **fields)
    return ring


@pytest.fixture
async def keyed(start: Start, ring: KeyRing) -> Running:
    """A sidecar whose clients need the keys of the module's `ring`."""
    return await start(api_keys_file=ring.path)


@pytest.fixture
async def readers() -> AsyncIterator[Readers]:
    """Readers of live documents."""
    made = Readers()
    yield made
    await made.close()


@pytest.fixture
async def at_home(start: Start, home: ScriptedEngine) -> Running:
    """A sidecar of that engine with one slot."""
    return await start(engine_url=home.url, profile="home")


@pytest.fixture
async def pair(start: Start, engine: ScriptedEngine, b: ScriptedEngine) -> Running:
    """A sidecar in front of two engines alike: pools `a` and `b`."""
    return await all_ready(await start(**pools(a=engine, b=b)))


@pytest.fixture
def held(engine: ScriptedEngine) -> Held:
    """Makes the engine hold every generating request."""
    held = Held()
    engine.answer = held
    return held


@pytest.fixture
def script(engine: ScriptedEngine) -> AnswerScript:
    """Lets the test send the engine's answer to every generating request."""
    script = AnswerScript()
    engine.answer = script
    return script


@pytest.fixture
async def lower(start: Start) -> Running:
    """A sidecar that others are in front of."""
    return await start()


@pytest.fixture
async def parent_leases(start: Start, lower: Running) -> Running:
    """One of those."""
    return await above(start, lower)


@pytest.fixture
async def collector(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Collector]:
    """A collector, to which the environment points: by gRPC if that is the parameter."""
    protocol = getattr(request, "param", "http/protobuf")
    async with AsyncExitStack() as stack:
        if protocol == "grpc":
            made = stack.enter_context(grpc_collector())
        else:
            made = await stack.enter_async_context(http_collector())
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", made.endpoint)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
        yield made


@pytest.fixture
def collect(collector: Collector) -> Collect:
    """Stops the sidecar, which sends what it has, and returns the collector."""

    async def stop(running: Running) -> Collector:
        for client in running.clients:
            await client.close()
        await running.stop()
        return collector

    return stop

"""What is measured: scripted engines that decode, behind real sidecars."""

from __future__ import annotations

import pytest

from tests.integration.bench.decoding import Decoding
from tests.integration.running import Running, Start
from tests.integration.scripted_engine import Engine, ScriptedEngine


@pytest.fixture
def fast_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scripted engine tells its counts at once, and need not be waited for."""
    monkeypatch.setattr("orch_sidecar.tools.bench.load.capabilities.REPORT_INTERVAL_S", 0.1)
    monkeypatch.setattr("orch_sidecar.tools.bench.load.capabilities.IDLE_TIMEOUT_S", 3.0)


@pytest.fixture
def decoding(engine: ScriptedEngine) -> Decoding:
    """What the engine of 4 slots answers."""
    return Decoding(engine)


@pytest.fixture
async def cloud(decoding: Decoding, start: Start) -> Running:
    """A sidecar before an engine of 4 slots."""
    return await start()


@pytest.fixture
async def offline(another: Engine, start: Start) -> Running:
    """A sidecar before an engine of 8 slots."""
    made = await another(profile="offline", slots=8)
    Decoding(made)
    return await start(engine_url=made.url, profile="offline")


@pytest.fixture
async def at_home(another: Engine) -> ScriptedEngine:
    """An engine of one slot, which decodes."""
    made = await another(profile="home", slots=1)
    Decoding(made)
    return made


@pytest.fixture
async def home(at_home: ScriptedEngine, start: Start) -> Running:
    return await start(engine_url=at_home.url, profile="home")

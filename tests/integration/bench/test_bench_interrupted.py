"""Ctrl-C at every stage of a run."""

from __future__ import annotations

import asyncio

import pytest

from orch_sidecar.tools.bench.load.driver import Interrupted
from orch_sidecar.tools.bench.load.scenario import Scenario
from orch_sidecar.tools.bench.results.result import Result
from orch_sidecar.tools.bench.runs.run import measure
from tests.integration.bench.decoding import Decoding
from tests.integration.bench.measuring import CLOSED, plan, url_of
from tests.integration.bench.signing import Signing
from tests.integration.running import Running, eventually
from tests.integration.scripted_engine import ScriptedEngine
from tests.patience import HANG_S

pytestmark = pytest.mark.usefixtures("fast_reports")


def begun(url: str, scenario: Scenario) -> tuple[asyncio.Event, asyncio.Task[Result]]:
    interrupted = asyncio.Event()
    return interrupted, asyncio.create_task(measure(plan(url, scenario), interrupted))


async def test_interruption_while_it_waits_for_the_engine_ends_it_without_a_result(
    cloud: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orch_sidecar.tools.bench.load.capabilities.REPORT_INTERVAL_S", 60.0)
    interrupted, running = begun(url_of(cloud), CLOSED)
    await asyncio.sleep(0.1)
    interrupted.set()
    with pytest.raises(Interrupted):
        await running


async def test_interruption_ends_the_wait_for_a_statement(
    cloud: Running, engine: ScriptedEngine
) -> None:
    signing = Signing(engine, Decoding(engine))
    signing.silent_after = 1
    interrupted, running = begun(url_of(cloud), CLOSED)
    await eventually(lambda: len(signing.asked) == 2)
    interrupted.set()
    result = await asyncio.wait_for(running, HANG_S)
    assert result.evidence.missing == "interrupted before the engine's statement"
    assert result.counts.answered == 24

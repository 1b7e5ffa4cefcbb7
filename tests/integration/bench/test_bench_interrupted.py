"""Ctrl-C at every stage of a run."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from orch_sidecar.tools.bench.load import capabilities
from orch_sidecar.tools.bench.load.driver import Interrupted
from orch_sidecar.tools.bench.load.scenario import Scenario
from orch_sidecar.tools.bench.results.fact import NoFact, row_of
from orch_sidecar.tools.bench.results.result import Result, Status
from orch_sidecar.tools.bench.runs.run import measure
from tests.integration.bench.decoding import Decoding
from tests.integration.bench.measuring import CLOSED, plan, url_of
from tests.integration.bench.signing import Signing
from tests.integration.running import Running, eventually
from tests.integration.scripted_engine import ScriptedEngine
from tests.integration.scripts import endless
from tests.patience import HANG_S

pytestmark = pytest.mark.usefixtures("fast_reports")


def begun(url: str, scenario: Scenario) -> tuple[asyncio.Event, asyncio.Task[Result]]:
    interrupted = asyncio.Event()
    return interrupted, asyncio.create_task(measure(plan(url, scenario), interrupted))


async def test_interruption_of_the_warm_up_ends_it_without_a_result(
    cloud: Running, engine: ScriptedEngine
) -> None:
    engine.answer = endless
    interrupted, running = begun(url_of(cloud), replace(CLOSED, warm_up_requests=2))
    await eventually(lambda: engine.present)
    interrupted.set()
    with pytest.raises(Interrupted):
        await running
    await eventually(lambda: not engine.present)


async def test_interruption_while_it_waits_for_the_engine_ends_it_without_a_result(
    cloud: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orch_sidecar.tools.bench.load.capabilities.REPORT_INTERVAL_S", 60.0)
    interrupted, running = begun(url_of(cloud), CLOSED)
    await asyncio.sleep(0.1)
    interrupted.set()
    with pytest.raises(Interrupted):
        await running


async def test_interruption_of_the_measurement_returns_its_results(
    cloud: Running, engine: ScriptedEngine
) -> None:
    interrupted, running = begun(url_of(cloud), replace(CLOSED, least_seconds=60.0))
    await eventually(lambda: len(engine.generating) > 10)
    interrupted.set()
    result = await running
    assert result.status is Status.INCOMPLETE
    assert result.reasons == ["the user interrupted the run"]
    assert result.counts.answered >= 6
    assert result.counts.cut <= 4
    assert result.figures is not None
    assert result.batches is not None
    with pytest.raises(NoFact, match="incomplete"):
        row_of(result)


async def test_interruption_of_the_last_wait_makes_it_incomplete(
    cloud: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = [capabilities.wait_until_idle]
    waiting = asyncio.Event()

    async def slowly(*arguments: Any) -> Any:
        if looks:
            return await looks.pop()(*arguments)
        waiting.set()
        return await asyncio.Event().wait()

    monkeypatch.setattr("orch_sidecar.tools.bench.runs.run.wait_until_idle", slowly)
    interrupted, running = begun(url_of(cloud), CLOSED)
    await waiting.wait()
    interrupted.set()
    result = await running
    assert result.status is Status.INCOMPLETE
    assert result.reasons[1:] == [
        "the engine's work is unknown: interrupted before the engine's next report"
    ]
    assert result.counts.answered == 24


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

"""Ctrl-C at every stage of a run."""

from __future__ import annotations

import asyncio

import pytest

from orch_sidecar.tools.bench.load.driver import Interrupted
from tests.integration.bench.decoding import Decoding
from tests.integration.bench.measuring import CLOSED, measured, url_of
from tests.integration.bench.signing import Signing
from tests.integration.running import Running, eventually
from tests.integration.scripted_engine import ScriptedEngine
from tests.patience import HANG_S

pytestmark = pytest.mark.usefixtures("fast_reports")


async def test_interruption_while_it_waits_for_the_engine_ends_it_without_a_result(
    cloud: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orch_sidecar.tools.bench.load.capabilities.REPORT_INTERVAL_S", 60.0)
    running = asyncio.create_task(measured(url_of(cloud), CLOSED))
    await asyncio.sleep(0.1)
    running.cancel()
    with pytest.raises(Interrupted):
        await running


async def test_interruption_ends_the_wait_for_a_statement(
    cloud: Running, engine: ScriptedEngine
) -> None:
    signing = Signing(engine, Decoding(engine))
    signing.silent_after = 1
    running = asyncio.create_task(measured(url_of(cloud), CLOSED))
    await eventually(lambda: len(signing.asked) == 2)
    running.cancel()
    result = await asyncio.wait_for(running, HANG_S)
    assert result.evidence.missing == "interrupted before the engine's statement"
    assert result.counts.answered == 24

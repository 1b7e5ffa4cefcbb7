"""The bound of interactive sequences, from what an engine reports to what is admitted."""

from __future__ import annotations

import pytest

from tests.integration.running import Running, Start, eventually
from tests.integration.scripted_engine import STEP_TIME, Engine, ScriptedEngine
from vllm_plugin.contracts.profile import ServiceClass

SLOTS = 64


@pytest.fixture
async def large(another: Engine) -> ScriptedEngine:
    return await another(slots=SLOTS)


@pytest.fixture
async def bounded(large: ScriptedEngine, start: Start) -> Running:
    """64 slots, steps of 10 ms and one more for each sequence, and an SLO of 60 ms per token."""
    sidecar = await start(engine_url=large.url)
    tpot(sidecar, 60.0)
    return sidecar


def tpot(sidecar: Running, ms: float) -> None:
    """Reloads the rules with another SLO."""
    gate = sidecar.pool.gate
    assert gate.controller.rules.interactive is not None
    changed = gate.controller.rules.interactive.model_copy(update={"tpot_p95_ms": ms})
    gate.reload(gate.controller.rules.model_copy(update={"interactive": changed}))


def bound(sidecar: Running) -> int:
    return sidecar.pool.gate.status().limits.batch(ServiceClass.INTERACTIVE)


async def test_bound_follows_the_report_the_slo_the_traffic_and_a_restart(
    large: ScriptedEngine, bounded: Running
) -> None:
    assert bound(bounded) == 8, "nothing is known"
    large.report(batch_seen=8)
    await eventually(lambda: bound(bounded) == 16)
    large.report(step_time=STEP_TIME, batch_seen=64)
    await eventually(lambda: bound(bounded) == 50)
    tpot(bounded, 30.0)
    assert bound(bounded) == 20, "at once"
    large.report(step_time=STEP_TIME | {"traffic": 1.5})
    await eventually(lambda: bound(bounded) == 10)
    large.report(step_time=STEP_TIME | {"traffic": 1.0})
    await eventually(lambda: bound(bounded) == 20)
    large.state_fields = {}
    await large.restart()
    await eventually(lambda: bound(bounded) == 8)

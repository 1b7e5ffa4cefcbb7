"""An engine that answers and makes no progress: nothing more is given to it until it does."""

from __future__ import annotations

import pytest

from tests.integration.client import AT_ONCE, CHAT, MESSAGES
from tests.integration.held import Held, started
from tests.integration.running import Running, Start, eventually
from tests.integration.scripted_engine import ScriptedEngine


async def stalls(engine: ScriptedEngine, running: Running) -> None:
    engine.report(state="stalled")
    await eventually(lambda: running.sidecar.state == "stalled")


async def recovers(engine: ScriptedEngine, running: Running) -> None:
    engine.report(state="ready")
    await running.ready()


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
async def test_stall_makes_unready_and_refuses_until_it_is_over(
    sidecar: Running, engine: ScriptedEngine, held: Held, path: str
) -> None:
    stuck = await started(sidecar, seed=1)
    await eventually(lambda: held.waiting)
    await stalls(engine, sidecar)
    client = await sidecar.client()
    refused = await client.post(path, AT_ONCE)
    assert (refused.status, refused.error["code"]) == (503, "engine_stalled")
    assert "no progress" in refused.error["message"]
    assert refused.header("retry-after") == "1", "it stalls for the first time, and just began to"
    ready = await client.get("/readyz")
    assert (ready.status, ready.json()["state"]) == (503, "stalled")
    assert "no progress" in ready.json()["last_error"]
    health = (await client.get("/v1/pools/cloud/health")).json()
    assert (health["live"], health["ready"], health["state"]) == (True, False, "stalled")
    entry = await sidecar.capabilities()
    assert (entry["state"], entry["slots_free"]) == ("stalled", 0)
    assert (await sidecar.metrics())['orch_engine_state{pool="cloud",state="stalled"}'] == 1
    assert len(engine.generating) == 1
    await recovers(engine, sidecar)
    held.release()
    assert (await stuck.response()).json() == {"seed": 1}, "what was in it is not given up"
    assert (await client.get("/readyz")).status == 200
    again = await started(sidecar, seed=2)
    await eventually(lambda: held.waiting)
    held.release()
    assert (await again.response()).status == 200


@pytest.mark.usefixtures("quick")
async def test_leases_are_confirmed_while_it_is_stalled(
    engine: ScriptedEngine, start: Start, held: Held
) -> None:
    """Its API server answers; a client that gives up must not cost a slot for ever."""
    engine.faults.reports_ended = False
    running = await start()
    client = await started(running, path=MESSAGES)
    await eventually(lambda: held.waiting)
    await stalls(engine, running)
    await client.close()
    await eventually(lambda: engine.revoked)
    await running.idle()
    assert running.ledger.lease_count == 0
    assert running.sidecar.state == "stalled"
    await recovers(engine, running)

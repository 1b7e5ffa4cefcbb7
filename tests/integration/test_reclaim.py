"""A bulk request that no client has seen a byte of gives its slots to an interactive one."""

from __future__ import annotations

import asyncio

from tests.integration.client import CHAT
from tests.integration.held import Held, started
from tests.integration.running import Running, eventually, total
from tests.integration.scripted_engine import STEP_TIME, ScriptedEngine
from tests.integration.scripts import endless

BULK = [("X-Orch-Class", "bulk")]


async def measured(engine: ScriptedEngine, sidecar: Running) -> None:
    """Now it can be predicted that a request misses the SLO of 10 s."""
    engine.report(step_time=STEP_TIME)
    await eventually(lambda: sidecar.pool.gate.status().limits.measured)


async def test_it_is_aborted_queued_again_and_its_client_sees_one_answer(
    engine: ScriptedEngine, sidecar: Running, held: Held
) -> None:
    await measured(engine, sidecar)
    bulk = [await started(sidecar, headers=BULK, seed=n, max_tokens=1900) for n in range(4)]
    await eventually(lambda: len(held.waiting) == 4)
    urgent = await started(sidecar, seed=9, max_tokens=5)
    await eventually(lambda: len(engine.generating) == 5)
    assert sidecar.queued == 1, "the one that gave its slot"
    assert engine.generating[4].json()["seed"] == 9
    await eventually(lambda: len(held.waiting) == 4)
    held.release_all()
    assert (await urgent.response()).json() == {"seed": 9}
    await eventually(lambda: held.waiting)
    held.release_all()
    for seed, client in enumerate(bulk):
        response = await client.response()
        assert (response.status, response.json()) == (200, {"seed": seed})
    await sidecar.idle()
    metrics = await sidecar.metrics()
    assert total(metrics, "orch_reclaims_total", pool="cloud") == 1
    assert metrics['orch_oversubscription_violations_total{pool="cloud"}'] == 0
    assert sidecar.pool.gate.orphans == 0


async def test_its_client_can_leave_meanwhile(
    engine: ScriptedEngine, sidecar: Running, held: Held
) -> None:
    await measured(engine, sidecar)
    engine.faults.holds_aborted = asyncio.Event()
    bulk = [await started(sidecar, headers=BULK, seed=n, max_tokens=1900) for n in range(4)]
    await eventually(lambda: len(held.waiting) == 4)
    urgent = await started(sidecar, seed=9, max_tokens=5)
    await eventually(lambda: sidecar.queued == 2)
    for client in bulk:
        await client.close()
    await eventually(lambda: sidecar.queued == 1)
    engine.faults.holds_aborted.set()
    await eventually(lambda: held.waiting)
    held.release_all()
    assert (await urgent.response()).json() == {"seed": 9}
    await sidecar.idle()


async def test_a_stream_that_has_begun_is_left_alone(
    engine: ScriptedEngine, sidecar: Running
) -> None:
    await measured(engine, sidecar)
    engine.scripts.append(endless)
    client = await sidecar.client()
    client.start(CHAT, BULK, n=4, max_tokens=1900)
    await client.seen(b"data: more\n\n")
    refused = await (await sidecar.client()).post(CHAT, max_tokens=5)
    assert (refused.status, refused.error["code"]) == (429, "ADMISSION_SLO")
    assert sidecar.ledger.leased == 4
    assert not sidecar.ledger.closing()
    await client.close()
    await sidecar.idle()

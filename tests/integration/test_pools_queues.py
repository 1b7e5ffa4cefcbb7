"""Queues of several pools: moved when an engine dies, left to another, and drained."""

from __future__ import annotations

import asyncio
import json

from tests.integration.client import CHAT, Client
from tests.integration.held import Held, started
from tests.integration.running import Running, Start, all_ready, eventually, pools
from tests.integration.scripted_engine import STEP_TIME, Engine, ScriptedEngine
from tests.patience import HANG_S


async def test_queue_of_a_pool_that_dies_moves_to_another(
    pair: Running, engine: ScriptedEngine, b: ScriptedEngine, held: Held
) -> None:
    held_b = Held()
    b.answer = held_b
    to_a, to_b = [("X-Orch-Pool", "a; prefer")], [("X-Orch-Pool", "b")]
    busy = [await started(pair, headers=to_a, n=4), await started(pair, headers=to_b, n=4)]
    await eventually(lambda: held.waiting and held_b.waiting)
    queued = []
    for seed in (1, 2, 3):
        queued.append(await started(pair, headers=to_a, seed=seed, n=4))
        await eventually(lambda seed=seed: pair.queued == seed)  # type: ignore[misc]
    assert pair.pool.queues.depth == 3
    pinned = await started(pair, headers=[("X-Orch-Pool", "a")], seed=9)
    await eventually(lambda: pair.queued == 4)
    await engine.stop()
    held.waiting.clear()
    assert (await pinned.response()).status == 503
    # What ran in it had not answered yet, so it is made good as well.
    await eventually(lambda: pair.sidecar.pools["b"].queues.depth == 4)
    for _ in range(5):
        await eventually(lambda: held_b.waiting)
        held_b.release()
    for client, seed in zip(queued, (1, 2, 3), strict=True):
        assert (await client.response()).json() == {"seed": seed}
    for client in busy:
        assert (await client.response()).status == 200
    moved = [seed for request in b.generating if (seed := request.json().get("seed"))]
    assert moved == [1, 2, 3]
    ledgers = [pool.gate.ledger for pool in pair.sidecar.pools]
    await eventually(lambda: not ledgers[1].leased)
    assert ledgers[0].leased == 4  # until that engine, or the next one, reports that it has ended
    await engine.start()
    await pair.idle()


async def test_queue_that_no_other_pool_can_take_hears_why(
    start: Start, engine: ScriptedEngine, another: Engine, held: Held
) -> None:
    other = await another(models=("other",))
    running = await all_ready(await start(**pools(a=engine, b=other)))
    busy = await started(running, n=4)
    await eventually(lambda: held.waiting)
    queued = await started(running)
    await eventually(lambda: running.queued == 1)
    await engine.stop()
    response = await queued.response()
    assert response.status == 503
    assert response.error["code"] in ("engine_stale", "engine_down")
    assert (await busy.response()).status == 502


async def test_busy_pool_that_may_not_queue_it_leaves_it_to_another(
    start: Start, engine: ScriptedEngine, b: ScriptedEngine, held: Held
) -> None:
    engine.state_fields = {"step_time": STEP_TIME | {"t0_ms": 1.0}}
    b.state_fields = {"step_time": STEP_TIME | {"t0_ms": 1000.0}}
    running = await all_ready(await start(queue_capacity=0, **pools(a=engine, b=b)))
    busy = await started(running, max_tokens=4, n=4)
    await eventually(lambda: held.waiting)
    response = await (await running.client()).post(CHAT, max_tokens=4)
    assert response.status == 200  # a would end it sooner, and has no place for it
    assert len(b.generating) == 1
    held.release()
    assert (await busy.response()).status == 200


async def test_waiting_ones_and_running_ones_of_all_pools_are_drained(
    start: Start, engine: ScriptedEngine, b: ScriptedEngine, held: Held
) -> None:
    running = await all_ready(await start(drain_timeout_s=HANG_S, **pools(a=engine, b=b)))
    b.answer = held
    clients = [await started(running, seed=seed, n=4) for seed in (1, 2, 3)]
    await eventually(lambda: len(held.waiting) == 2 and running.queued == 1)
    running.stopped = True
    stopping = asyncio.ensure_future(running.sidecar.stop())
    await eventually(lambda: running.sidecar.state == "draining")
    late = await Client.connect(running.port)
    response = await late.post()
    assert (response.status, response.error["code"]) == (503, "draining")
    await late.close()
    for _ in clients:
        await eventually(lambda: held.waiting)
        held.release()
    assert {json.loads((await c.response()).body)["seed"] for c in clients} == {1, 2, 3}
    await asyncio.wait_for(stopping, HANG_S)

"""A sidecar that stops: it refuses new ones, and finishes what it has within its limit."""

from __future__ import annotations

import asyncio

import pytest

from tests.integration.answers import EVENT_STREAM
from tests.integration.client import CHAT, Client
from tests.integration.held import Held, started
from tests.integration.readiness import assert_unavailable, readiness
from tests.integration.running import Start, eventually
from tests.integration.scripted_engine import ScriptedEngine
from tests.integration.wire import Answer
from tests.patience import HANG_S


async def test_drain_refuses_new_ones_and_finishes_what_runs(
    engine: ScriptedEngine, start: Start, held: Held
) -> None:
    running = await start(drain_timeout_s=HANG_S)
    kept = await running.client()
    assert (await kept.get("/livez")).status == 200
    busy = await started(running, seed=1, n=4)
    await eventually(lambda: held.waiting)
    queued = await started(running, seed=2)
    await eventually(lambda: running.queued == 1)
    running.stopped = True
    stopping = asyncio.ensure_future(running.sidecar.stop())
    await eventually(lambda: running.sidecar.state == "draining")
    for client in (kept, await Client.connect(running.port)):
        response = await client.post()
        assert_unavailable(response, "draining")
        assert response.header("connection") == "close"
        assert await client.rest() == b""
        await client.close()
    ready = await readiness(running)
    assert ready.status == 503
    assert ready.json()["draining"] is True
    assert not stopping.done()
    held.release()
    response = await busy.response()
    assert response.json() == {"seed": 1}
    assert response.header("connection") is None  # it began before
    await eventually(lambda: held.waiting)
    held.release()
    response = await queued.response()
    assert response.json() == {"seed": 2}
    assert response.header("connection") == "close"
    await asyncio.wait_for(stopping, HANG_S)
    with pytest.raises(ConnectionError):
        await Client.connect(running.port)


async def test_drain_ends_at_its_limit_and_informs_the_clients_it_leaves(
    engine: ScriptedEngine, start: Start
) -> None:
    running = await start(drain_timeout_s=0.2)
    hold = Held()

    async def stream(answer: Answer) -> None:
        answer.head(200, EVENT_STREAM)
        answer.event("a")
        await asyncio.Event().wait()

    async def half(answer: Answer) -> None:
        answer.head(200, [("content-length", "100")], chunked=False)
        answer.write(b"{")
        await asyncio.Event().wait()

    engine.scripts += [stream, half, hold, hold]
    streaming, cut = await started(running), await started(running)
    silent, second = await started(running), await started(running)
    await streaming.seen(b"data: a")
    await cut.seen(b"{")
    await eventually(lambda: len(hold.waiting) == 2)
    queued, uploading = await started(running), await running.client()
    await eventually(lambda: running.queued == 1)
    uploading.send_request("POST", CHAT, None, [("Content-Length", "100000")])
    uploading.send(b'{"model": ')
    await eventually(lambda: running.sidecar.frontend.active == 6)
    stopping = asyncio.ensure_future(running.stop())
    response = await uploading.response()
    assert_unavailable(response, "draining")
    assert response.header("retry-after") == "1"
    uploading.send(b"x" * 50_000)
    assert await uploading.rest() == b""
    await stopping
    response = await streaming.response()
    assert response.body.startswith(b'data: a\n\ndata: {"error": ')
    assert b"draining" in response.body
    await cut.aborted()
    for client in (silent, second, queued):
        response = await client.response()
        assert_unavailable(response, "draining")
    assert engine.present == 0


@pytest.mark.parametrize("gone_first", [True, False])
async def test_nobody_waits_for_an_engine_that_is_gone_when_the_sidecar_stops(
    engine: ScriptedEngine, start: Start, held: Held, gone_first: bool
) -> None:
    """What starts that engine again would not find this sidecar."""
    running = await start(drain_timeout_s=4 * HANG_S)
    client = await started(running, n=4)
    await eventually(lambda: held.waiting)
    queued = await started(running)
    await eventually(lambda: running.queued == 1)
    running.stopped = True
    if gone_first:
        await engine.stop()
        await eventually(lambda: running.pool.watcher.state == "down")
        assert running.queued == 1, "it may be started again"
    stopping = asyncio.ensure_future(running.sidecar.stop())
    if not gone_first:
        await eventually(lambda: running.sidecar.state == "draining")
        await engine.stop()
    assert_unavailable(await queued.response(), "engine_down")
    assert (await client.response()).status == 502
    await asyncio.wait_for(stopping, HANG_S)


async def test_drain_of_an_idle_sidecar_is_quick_and_closes_kept_connections(
    engine: ScriptedEngine, start: Start
) -> None:
    running = await start(drain_timeout_s=2 * HANG_S)
    client = await running.client()
    await client.post()
    begin = asyncio.get_running_loop().time()
    await running.stop()
    assert asyncio.get_running_loop().time() - begin < HANG_S, "not the time of its limit"
    assert await client.rest() == b""
    await eventually(lambda: not engine.wires)

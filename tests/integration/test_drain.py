"""A sidecar that stops: it refuses new ones, and finishes what it has within its limit.

`orch drain` against a sidecar: what it waits for, and its messages when it fails.
"""

from __future__ import annotations

import asyncio
import sys

import pytest

from orch_sidecar.tools.drain import NotDrained
from orch_sidecar.tools.drain import drain as drain_pools
from tests.integration.answers import EVENT_STREAM
from tests.integration.client import CHAT, Client
from tests.integration.held import Held, started
from tests.integration.readiness import assert_unavailable, readiness
from tests.integration.running import Running, Start, eventually
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


class Drain:
    """The command, as a process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def ended(self) -> tuple[int | None, str]:
        async with asyncio.timeout(HANG_S):
            _, output = await self.process.communicate()
        return self.process.returncode, output.decode()


async def drain(*words: str) -> Drain:
    command = (sys.executable, "-m", "orch_sidecar", "drain", *words)
    pipe = asyncio.subprocess.PIPE
    return Drain(await asyncio.create_subprocess_exec(*command, stderr=pipe))


def admin_of(running: Running) -> tuple[str, str]:
    return "--admin", f"http://127.0.0.1:{running.sidecar.admin_port}"


async def test_command_returns_when_no_request_is_left(sidecar: Running, held: Held) -> None:
    client = await started(sidecar)
    await eventually(lambda: held.waiting)
    command = await drain(*admin_of(sidecar), "--within", "30")
    await eventually(lambda: sidecar.sidecar.pools.draining)
    await asyncio.sleep(0.3)  # longer than its polling interval
    assert command.process.returncode is None
    refused = await (await sidecar.client()).post()
    assert (refused.status, refused.error["code"]) == (503, "draining")
    held.release()
    assert await command.ended() == (0, "")
    assert (await client.response()).status == 200


async def test_command_asks_no_proxy_of_the_environment(
    sidecar: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod may have http_proxy; its hook would drain nothing."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    command = await drain(*admin_of(sidecar), "--within", "30")
    assert await command.ended() == (0, "")


async def test_remaining_requests_after_the_limit_are_listed(sidecar: Running, held: Held) -> None:
    await started(sidecar, n=3)
    await eventually(lambda: held.waiting)
    waits = await started(sidecar, n=2)
    await eventually(lambda: sidecar.queued)
    code, output = await (await drain(*admin_of(sidecar), "--within", "0.1")).ended()
    assert code == 1
    assert "not drained within 0.1 s: pool cloud: 3 sequences, 1 queued requests" in output
    held.release()
    await eventually(lambda: held.waiting)
    held.release()
    assert (await waits.response()).status == 200


async def test_one_pool_of_two_can_be_drained(pair: Running) -> None:
    assert await (await drain(*admin_of(pair), "--pool", "b")).ended() == (0, "")
    drains = [pool.admission.draining for pool in pair.sidecar.pools]
    assert [drain is None for drain in drains] == [True, False]


async def test_unknown_pool_and_unreachable_sidecar_are_errors(
    sidecar: Running,
) -> None:
    code, output = await (await drain(*admin_of(sidecar), "--pool", "nope")).ended()
    assert (code, "404: there is no pool 'nope'; the pools are cloud" in output) == (1, True)
    code, output = await (await drain("--admin", "http://127.0.0.1:1")).ended()
    assert (code, "the sidecar does not answer" in output) == (1, True)
    code, output = await (await drain("--within", "-1")).ended()
    assert (code, "-1.0 is invalid: it must be a number of seconds from 0" in output) == (2, True)


async def test_resumed_drain_is_an_error(sidecar: Running, held: Held) -> None:
    await started(sidecar)
    await eventually(lambda: held.waiting)
    command = await drain(*admin_of(sidecar))
    await eventually(lambda: sidecar.pool.admission.draining)
    sidecar.pool.gate.resume()
    code, output = await command.ended()
    assert (code, "pool cloud: it was resumed" in output) == (1, True)
    held.release()


# A hook that stops an engine drains it first; another may start in its place.


async def test_engine_that_is_stopped_and_starts_again_is_served_without_a_resume(
    sidecar: Running, engine: ScriptedEngine, held: Held
) -> None:
    running = await started(sidecar)
    await eventually(lambda: held.waiting)
    command = await drain(*admin_of(sidecar), "--engine-stops")
    await eventually(lambda: sidecar.pool.admission.draining)
    assert (await (await sidecar.client()).post()).error["code"] == "draining"
    assert (await sidecar.capabilities())["drain"]["ordered_by"] == "engine_stop"
    assert (await sidecar.metrics())['orch_drain{ordered_by="engine_stop",pool="cloud"}'] == 1
    held.release()
    assert (await running.response()).status == 200
    assert await command.ended() == (0, "")
    await engine.restart()
    await eventually(lambda: sidecar.sidecar.state == "ready")
    again = await started(sidecar)
    await eventually(lambda: held.waiting)
    held.release()
    assert (await again.response()).status == 200
    assert (await sidecar.capabilities())["drain"] is None


async def test_command_ends_with_the_engine_that_it_drains_for(
    sidecar: Running, engine: ScriptedEngine, held: Held
) -> None:
    await started(sidecar)
    await eventually(lambda: held.waiting)
    command = await drain(*admin_of(sidecar), "--engine-stops")
    await eventually(lambda: sidecar.pool.admission.draining)
    await engine.restart()
    assert await command.ended() == (0, "")


async def test_frozen_engine_that_is_stopped_is_not_waited_for_until_the_limit(
    sidecar: Running, engine: ScriptedEngine, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orch_sidecar.tools.drain._SILENT_S", 0.2)
    monkeypatch.setattr("orch_sidecar.pools.engine_watcher.RECONNECT_S", 60.0)
    await started(sidecar)
    await eventually(lambda: held.waiting)
    engine.faults.mute = True
    await eventually(lambda: sidecar.pool.watcher.state == "stale")
    admin = admin_of(sidecar)[1]
    with pytest.raises(NotDrained, match="pool cloud: 1 sequences, and its engine has not answ"):
        await asyncio.to_thread(drain_pools, admin, None, 60.0, engine_stops=True)
    assert sidecar.pool.admission.draining
    held.release()


async def test_order_for_an_engine_that_has_been_replaced_changes_nothing(
    sidecar: Running, engine: ScriptedEngine
) -> None:
    await engine.restart()
    await eventually(lambda: sidecar.ledger.epoch == "epoch-2")
    admin = await Client.connect(sidecar.sidecar.admin_port)
    answer = await admin.request("POST", "/v1/pools/cloud/drain?engine_epoch=epoch-1")
    assert (answer.status, answer.json()["draining"]) == (200, False)
    assert answer.json()["engine_epoch"] == "epoch-2"
    assert (await (await sidecar.client()).post()).status == 200
    await admin.close()


async def test_pool_without_an_address_is_drained(start: Start, engine: ScriptedEngine) -> None:
    absent = {"name": "a", "url": "http://no-such-name.invalid:1", "profile": "cloud"}
    there = {"name": "b", "url": engine.url, "profile": "cloud"}
    running = await start(pools=[absent | {"headless": True}, there])
    assert await (await drain(*admin_of(running))).ended() == (0, "")
    assert running.pool.admission.draining

"""`orch drain` against a sidecar: what it waits for, and its messages when it fails."""

from __future__ import annotations

import asyncio
import sys

import pytest

from orch_sidecar.tools.drain import NotDrained
from orch_sidecar.tools.drain import drain as drain_pools
from tests.integration.client import Client
from tests.integration.held import Held, started
from tests.integration.running import Running, Start, eventually
from tests.integration.scripted_engine import ScriptedEngine
from tests.patience import HANG_S


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

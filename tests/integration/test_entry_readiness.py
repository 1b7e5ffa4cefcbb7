"""Readiness of a sidecar that clients come to, in front of others or of several engines."""

from __future__ import annotations

import asyncio

from tests.integration.client import AT_ONCE, CHAT, Client
from tests.integration.readiness import assert_unavailable, readiness
from tests.integration.running import Running, Start, eventually, pools
from tests.integration.scripted_engine import ScriptedEngine
from tests.integration.tiers import tier
from tests.integration.wire import Answer
from tests.patience import HANG_S


async def test_entry_whose_only_pool_is_away_is_ready_to_report_it(
    parent_leases: Running, lower: Running
) -> None:
    await lower.stop()
    await eventually(lambda: parent_leases.sidecar.state == "down")
    ready = await readiness(parent_leases)
    assert (ready.status, ready.json()["ready"]) == (200, True)
    assert ready.json()["state"] == "down"
    refused = await (await parent_leases.client()).post(CHAT, AT_ONCE)
    assert_unavailable(refused, "engine_down")


async def test_entry_is_not_ready_before_it_has_looked_at_each_of_its_pools(
    start: Start, lower: Running, engine: ScriptedEngine, b: ScriptedEngine
) -> None:
    silent = asyncio.Event()
    stream = b._stream

    async def late(answer: Answer) -> None:
        await silent.wait()
        await stream(answer)

    b._stream = late  # type: ignore[method-assign]
    entry = await start(pools=[tier(lower), *pools(b=b)["pools"]], wait=False)
    await eventually(lambda: entry.pool.watcher.ready)
    starting = await readiness(entry)
    assert (starting.status, starting.json()["ready"]) == (503, False)
    silent.set()
    await eventually(lambda: entry.sidecar.pools["b"].watcher.ready)
    assert (await readiness(entry)).status == 200


async def test_entry_that_starts_while_its_pools_are_away_becomes_ready(
    start: Start, engine: ScriptedEngine
) -> None:
    away = {"name": "away", "url": "http://127.0.0.1:1", "profile": "cloud", "tier": True}
    nowhere = {"name": "b", "url": "http://no-such-name.invalid:1", "profile": "cloud"}
    entry = await start(pools=[away, nowhere | {"headless": True}], wait=False)
    async with asyncio.timeout(HANG_S):
        while (ready := await readiness(entry)).status != 200:
            assert ready.json()["ready"] is False
    assert ready.json()["pools"] == {"away": "starting", "b": "absent"}


async def test_entry_that_an_operator_drains_or_that_leaves_is_not_ready(pair: Running) -> None:
    admin = await Client.connect(pair.sidecar.admin_port)
    assert (await admin.request("POST", "/v1/pools/a/drain")).status == 200
    assert (await readiness(pair)).status == 200
    assert (await admin.request("POST", "/v1/pools/b/drain")).status == 200
    assert (await readiness(pair)).status == 503
    assert (await admin.request("POST", "/v1/pools/b/resume")).status == 200
    assert (await readiness(pair)).status == 200
    pair.sidecar.pools.shut_down()
    assert (await readiness(pair)).status == 503
    await admin.close()


async def test_entry_is_ready_while_all_of_its_engines_are_being_stopped(pair: Running) -> None:
    admin = await Client.connect(pair.sidecar.admin_port)
    for name in ("a", "b"):
        order = f"/v1/pools/{name}/drain?engine_epoch=epoch-1"
        assert (await admin.request("POST", order)).json()["draining"] is True
    assert (await readiness(pair)).status == 200
    assert_unavailable(await (await pair.client()).post(), "draining")
    await admin.close()

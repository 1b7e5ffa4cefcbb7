"""What happens when the sidecar of a real engine is killed; test_pools kills an engine."""

from __future__ import annotations

import asyncio

import aiohttp

from orch_sidecar.tools.local.stack import Stack
from tests.engine.clients import (
    body,
    engine_state,
    is_ready,
    post,
    session,
    until,
)
from tests.engine.conftest import SLOTS


async def test_a_killed_sidecar_finds_its_predecessors_requests_and_never_admits_over_them(
    cloud: Stack,
) -> None:
    assert cloud.sidecar is not None

    async def load(http: aiohttp.ClientSession, stop: asyncio.Event, cost: int) -> None:
        while not stop.is_set():
            seen = await post(http, cloud.url, "chat", body("chat", 60, stream=True, n=cost))
            if seen.status != 200:
                await asyncio.sleep(0.05)

    async with session() as http:
        stop = asyncio.Event()
        clients = [asyncio.create_task(load(http, stop, 1 + number % 2)) for number in range(12)]
        for _ in range(2):
            await asyncio.sleep(1.0)
            cloud.sidecar.kill()
            cloud.start_sidecar()

            async def ready() -> bool:
                try:
                    return await is_ready(http, cloud)
                except aiohttp.ClientError:
                    return False

            await until(ready)
        await asyncio.sleep(1.0)
        stop.set()
        await asyncio.gather(*clients)

        async def empty() -> bool:
            state = await engine_state(http, cloud.url)
            return bool(state["leased"] == state["foreign"] == 0)

        await until(empty)
        assert (await engine_state(http, cloud.engine_url))["peak"] == SLOTS
        state = await engine_state(http, cloud.url)
        assert state["oversubscription_violations_total"] == 0

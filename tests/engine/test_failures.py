"""What happens when the engine or the sidecar is killed, on a real engine."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import aiohttp
import pytest

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
from tests.engine.halted import halted
from tests.patience import READY_WITHIN_S


async def waiting(http: aiohttp.ClientSession, cloud: Stack, count: int) -> bool:
    """Whether so many wait for a slot."""
    queue: dict[str, int] = (await engine_state(http, cloud.url))["queue"]
    return sum(queue.values()) == count


def core_of(cloud: Stack) -> int:
    """The process that computes, apart from the API server."""
    assert cloud.engine is not None
    pid = cloud.engine.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    [core] = [child for child in children if "Engine" in Path(f"/proc/{child}/comm").read_text()]
    return int(core)


# A start for what tests/integration/test_disconnects.py shows; test_pools kills a real engine.
@pytest.mark.long
async def test_request_queued_while_the_engines_core_dies_is_served_by_its_successor(
    cloud: Stack,
) -> None:
    """The API server goes some milliseconds later, and answers meanwhile."""
    assert cloud.engine is not None
    async with session() as http:
        await until(lambda: is_ready(http, cloud), READY_WITHIN_S)
        core = core_of(cloud)
        ask = ("chat", body("chat", 1500, stream=True), dict[str, str]())
        streams = await halted(http, cloud.url, core, [ask] * SLOTS)
        bulk = {"X-Orch-Class": "bulk"}
        queued = [
            asyncio.create_task(post(http, cloud.url, "chat", body("chat", 4, stream=False), bulk))
            for _ in range(3)
        ]
        await until(lambda: waiting(http, cloud, 3))
        os.kill(core, signal.SIGKILL)
        for seen in await asyncio.gather(*streams):
            assert seen.status == 200
            assert seen.error is not None or b'data: {"error"' in seen.data

        async def is_gone() -> bool:
            assert cloud.engine is not None
            return cloud.engine.exit_code is not None

        await until(is_gone)

        async def unready() -> bool:
            return not await is_ready(http, cloud)

        await until(unready)
        refused = await post(http, cloud.url, "chat", body("chat", 4, stream=False))
        assert refused.status == 503
        error = json.loads(refused.data)["error"]
        assert error["code"] in ("engine_down", "engine_stale")
        assert error["retriable"] is True
        assert "Retry-After" in refused.headers
        assert not any(each.done() for each in queued)
        cloud.start_engine()
        for answer in await asyncio.wait_for(asyncio.gather(*queued), READY_WITHIN_S):
            assert answer.status == 200
        await until(lambda: is_ready(http, cloud))
        state = await engine_state(http, cloud.url)
        assert (state["leased"], state["slots_free"]) == (0, SLOTS)


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

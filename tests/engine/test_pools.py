"""Two pools of real engines behind one sidecar, one of which is killed."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from orch_sidecar.tools.local.processes import Child
from orch_sidecar.tools.local.stack import Stack, free_port
from tests.engine.clients import Seen, body, post, session, until
from tests.engine.conftest import READY_WITHIN_S, Stacks, make_plan
from tests.engine.halted import halted

HOME, CLOUD = {"X-Orch-Pool": "home"}, {"X-Orch-Pool": "cloud"}
RATHER_CLOUD = {"X-Orch-Pool": "cloud; prefer"}
SLOTS = 8


def on_core(core: int) -> dict[str, str]:
    """Where an engine computes: of its own choice both would be on the same core."""
    return {"VLLM_CPU_OMP_THREADS_BIND": str(core)}


@pytest.fixture
def cloud_engine(stacks: Stacks, logs: Path) -> Iterator[Stack]:
    stacks.stop()  # two engines are enough for the machine
    stack = Stack(make_plan("cloud", SLOTS, logs / "pools-cloud", on_core(1)))
    stack.start_engine()
    yield stack
    stack.stop()


@pytest.fixture
def url(cloud_engine: Stack, logs: Path) -> Iterator[str]:
    """The URL of a sidecar in front of a home engine and of `cloud_engine`."""
    home = Stack(make_plan("home", None, logs / "pools-home", on_core(0)))
    home.start_engine()
    pools = [
        {"name": "home", "url": home.engine_url, "profile": "home"},
        {"name": "cloud", "url": cloud_engine.engine_url, "profile": "cloud"},
    ]
    port = free_port()
    sidecar = Child(
        "sidecar",
        [sys.executable, "-m", "orch_sidecar", "sidecar", "--port", str(port)],
        dict(os.environ) | {"ORCH_POOLS": json.dumps(pools)},
        logs / "pools-sidecar.log",
    )
    yield f"http://127.0.0.1:{port}"
    assert sidecar.stop(10.0) == 0, sidecar.last_lines(30)
    home.stop()


async def states(http: aiohttp.ClientSession, url: str) -> dict[str, dict[str, Any]]:
    async with http.get(f"{url}/v1/capabilities") as response:
        document = await response.json()
    return {entry["pool"]: entry for entry in document["engines"]}


async def all_ready(http: aiohttp.ClientSession, url: str) -> None:
    async def ready() -> bool:
        try:
            found = await states(http, url)
        except aiohttp.ClientError:
            return False
        return [entry["state"] for entry in found.values()] == ["ready", "ready"]

    await until(ready, READY_WITHIN_S)


def label(seen: Seen) -> tuple[int, str | None]:
    headers = {name.lower(): value for name, value in seen.headers.items()}
    return seen.status, headers.get("x-measurement-type")


async def test_killed_pools_requests_move_before_their_first_byte_and_fail_honestly_after_it(
    cloud_engine: Stack, url: str
) -> None:
    assert cloud_engine.engine is not None
    short = body("chat", 4, stream=False)
    async with session() as http:
        await all_ready(http, url)
        for pool, expected in ((HOME, "single_stream"), (CLOUD, "batched_online")):
            assert label(await post(http, url, "chat", short, pool)) == (200, expected)

        # What stands still takes what comes, and answers nothing.
        ask = ("chat", body("chat", 1500, stream=True), RATHER_CLOUD)
        streams = await halted(http, url, cloud_engine.engine.pid, [ask] * 3)
        moving = [
            asyncio.create_task(post(http, url, "chat", short, RATHER_CLOUD)) for _ in range(2)
        ]
        pinned = asyncio.create_task(post(http, url, "chat", short, CLOUD))

        async def are_there() -> bool:
            leased: int = (await states(http, url))["cloud"]["leased"]
            return leased == 6

        await until(are_there, 2.0)  # long before the silence tells that it stands
        cloud_engine.engine.kill()

        for seen in await asyncio.gather(*streams):
            assert seen.status == 200
            assert seen.error is not None or b'"code": "engine_failed"' in seen.data
        for moved in await asyncio.gather(*moving):
            assert label(moved) == (200, "single_stream")
        failed = await pinned
        assert failed.status in (502, 503), "it was to go nowhere else"

        async def is_away() -> bool:
            state: str = (await states(http, url))["cloud"]["state"]
            return state != "ready"

        await until(is_away, 5.0)
        assert label(await post(http, url, "chat", short)) == (200, "single_stream")
        assert (await post(http, url, "chat", short, CLOUD)).status == 503
        cloud_engine.start_engine()
        await all_ready(http, url)
        assert label(await post(http, url, "chat", short, CLOUD)) == (200, "batched_online")
        for entry in (await states(http, url)).values():
            assert (entry["leased"], entry["foreign"]) == (0, 0)
            assert entry["oversubscription_violations_total"] == 0

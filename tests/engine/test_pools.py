"""Two pools of real engines behind one sidecar, one of which is killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import aiohttp
import pytest

from orch_sidecar.tools.local.stack import Stack
from tests.engine.clients import ATTEMPTS, Seen, body, post, session, until
from tests.engine.conftest import Stacks
from tests.engine.halted import halted
from tests.engine.sidecars import all_ready, sidecar, states
from vllm_plugin.contracts.lease_protocol import STALE_AFTER_S

Answer = asyncio.Task[Seen]
APIS = ("chat", "completions", "responses", "messages")

HOME, CLOUD = {"X-Orch-Pool": "home"}, {"X-Orch-Pool": "cloud"}
RATHER_CLOUD = {"X-Orch-Pool": "cloud; prefer"}


@pytest.fixture
def url(home: Stack, cloud: Stack, logs: Path) -> Iterator[str]:
    """The URL of a sidecar in front of both engines."""
    pools = [
        {"name": "home", "url": home.engine_url, "profile": "home"},
        {"name": "cloud", "url": cloud.engine_url, "profile": "cloud"},
    ]
    with sidecar(logs / "pools.log", *pools) as url:
        yield url


def label(seen: Seen) -> tuple[int, str | None]:
    headers = {name.lower(): value for name, value in seen.headers.items()}
    return seen.status, headers.get("x-measurement-type")


def check_broken_stream(api: str, seen: Seen) -> None:
    """An error in the stream's own form and a clean end of it, or a connection that broke."""
    assert seen.status == 200
    if seen.error is not None:  # an event was half sent
        assert not seen.data.endswith(b"[DONE]\n\n")
        return
    events = seen.data.decode().rstrip("\n").split("\n\n")
    if api in ("chat", "completions"):
        assert events[-1] == "data: [DONE]"
        error = json.loads(events[-2].removeprefix("data: "))["error"]
        assert error["code"] == "engine_failed"
    else:
        name, data = events[-1].split("\n")
        assert name == "event: error"
        assert json.loads(data.removeprefix("data: "))["type"] == "error"


async def before_a_first_byte(
    http: aiohttp.ClientSession, url: str, pid: int
) -> tuple[list[Answer], list[Answer], Answer]:
    """An engine of cloud stands still: a stream of each API has begun in it, and three requests
    are there of which it answers nothing. Two of these may move, the third is for this pool
    alone."""
    short = body("chat", 4, stream=False)
    for _ in range(ATTEMPTS):
        asks = [(api, body(api, 1500, stream=True), RATHER_CLOUD) for api in APIS]
        streams = await halted(http, url, pid, asks)
        moving = [
            asyncio.create_task(post(http, url, "chat", short, RATHER_CLOUD)) for _ in range(2)
        ]
        pinned = asyncio.create_task(post(http, url, "chat", short, CLOUD))

        async def are_there() -> bool:
            leased: int = (await states(http, url))["cloud"]["leased"]
            return leased == len(APIS) + 3

        with suppress(TimeoutError):
            await until(are_there, STALE_AFTER_S / 2)
            return streams, moving, pinned
        # Too late on a busy machine: the silence has told that it stands.
        os.kill(pid, signal.SIGCONT)
        await asyncio.gather(*streams, *moving, pinned)
        await all_ready(http, url)
    raise AssertionError(f"in {ATTEMPTS} attempts the requests came too late to an engine")


async def test_killed_pools_requests_move_before_their_first_byte_and_fail_honestly_after_it(
    cloud: Stack, url: str, stacks: Stacks
) -> None:
    """The killed engine is the last of `cloud`."""
    assert cloud.engine is not None
    short = body("chat", 4, stream=False)
    async with session() as http:
        await all_ready(http, url)
        for pool, expected in ((HOME, "single_stream"), (CLOUD, "batched_online")):
            assert label(await post(http, url, "chat", short, pool)) == (200, expected)

        streams, moving, pinned = await before_a_first_byte(http, url, cloud.engine.pid)
        cloud.engine.kill()

        for api, seen in zip(APIS, await asyncio.gather(*streams), strict=True):
            check_broken_stream(api, seen)
        for moved in await asyncio.gather(*moving):
            assert label(moved) == (200, "single_stream")
        failed = await pinned
        assert failed.status == 502, "it was to go nowhere else"
        assert json.loads(failed.data)["error"]["code"] == "engine_failed"

        async def is_away() -> bool:
            state: str = (await states(http, url))["cloud"]["state"]
            return state != "ready"

        await until(is_away)
        assert label(await post(http, url, "chat", short)) == (200, "single_stream")
        assert (await post(http, url, "chat", short, CLOUD)).status == 503
        after = await states(http, url)
        assert after["home"]["leased"] == 0
        assert {each["oversubscription_violations_total"] for each in after.values()} == {0}
        stacks.stop("cloud")

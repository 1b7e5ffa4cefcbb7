"""Two pools of real engines behind one sidecar, one of which is killed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from orch_sidecar.tools.local.stack import Stack
from tests.engine.clients import Seen, body, post, session, until
from tests.engine.conftest import Stacks
from tests.engine.halted import halted
from tests.engine.sidecars import all_ready, sidecar, states

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


async def test_killed_pools_requests_move_before_their_first_byte_and_fail_honestly_after_it(
    cloud: Stack, url: str, stacks: Stacks
) -> None:
    """The killed engine is the last of `cloud`."""
    assert cloud.engine is not None
    short = body("chat", 4, stream=False)
    async with session() as http:
        await all_ready(http, url, 10.0)
        for pool, expected in ((HOME, "single_stream"), (CLOUD, "batched_online")):
            assert label(await post(http, url, "chat", short, pool)) == (200, expected)

        # What stands still takes what comes, and answers nothing.
        ask = ("chat", body("chat", 1500, stream=True), RATHER_CLOUD)
        streams = await halted(http, url, cloud.engine.pid, [ask] * 3)
        moving = [
            asyncio.create_task(post(http, url, "chat", short, RATHER_CLOUD)) for _ in range(2)
        ]
        pinned = asyncio.create_task(post(http, url, "chat", short, CLOUD))

        async def are_there() -> bool:
            leased: int = (await states(http, url))["cloud"]["leased"]
            return leased == 6

        await until(are_there, 2.0)  # long before the silence tells that it stands
        cloud.engine.kill()

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
        after = await states(http, url)
        assert after["home"]["leased"] == 0
        assert {each["oversubscription_violations_total"] for each in after.values()} == {0}
        stacks.stop("cloud")

"""A real engine that an operator pauses or puts to sleep says so, and counts no such call."""

from __future__ import annotations

import aiohttp
import pytest

from orch_sidecar.tools.local.stack import Stack
from tests.engine.clients import body, engine_state, post, session, until


async def call(http: aiohttp.ClientSession, stack: Stack, path: str) -> None:
    async with http.post(f"{stack.engine_url}{path}") as response:
        assert response.status == 200, await response.text()


@pytest.mark.parametrize(
    ("holds", "state", "ends"),
    [
        ("/pause?mode=keep", "paused", "/resume"),
        ("/sleep?level=0", "asleep", "/wake_up?tags=scheduling"),
    ],
)
async def test_engine_that_an_operator_halts_reports_it_and_serves_again(
    cloud: Stack, holds: str, state: str, ends: str
) -> None:
    async with session() as http:

        async def is_in_state(expected: str) -> bool:
            return bool((await engine_state(http, cloud.engine_url))["state"] == expected)

        taken = (await engine_state(http, cloud.engine_url))["requests_total"]
        await call(http, cloud, "/ping")
        await call(http, cloud, holds)
        held = await engine_state(http, cloud.engine_url)
        assert held["state"] == state
        assert f"POST {ends.partition('?')[0]}" in held["message"]
        assert (held["requests_total"], held["foreign"]) == (taken, 0)
        await call(http, cloud, ends)
        await until(lambda: is_in_state("ready"))
        assert (await engine_state(http, cloud.engine_url))["message"] is None
        document = body("completions", 4, stream=False)
        assert (await post(http, cloud.engine_url, "completions", document)).status == 200

        async def served() -> bool:
            return (await post(http, cloud.url, "completions", document)).status == 200

        await until(served)  # by the sidecar, too

"""A sidecar on top of the sidecar of a real engine: slots hold, and everything comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from orch_sidecar.tools.local.stack import Stack
from tests.engine.clients import body, engine_state, post, session, until
from tests.engine.sidecars import all_ready, sidecar

STREAMS = 32


@pytest.fixture
def upper(cloud: Stack, logs: Path) -> Iterator[str]:
    """The URL of a sidecar whose only pool is that of `cloud`."""
    pool = {"name": "lower", "url": cloud.url, "profile": "cloud", "tier": True}
    with sidecar(logs / "upper.log", pool) as url:
        yield url


async def empty(http: aiohttp.ClientSession, *urls: str) -> None:
    """Waits until no lease is out and nobody waits, on each level."""

    async def is_empty() -> bool:
        states = [await engine_state(http, url) for url in urls]
        return all(
            state["leased"] == state["foreign"] == sum(state["queue"].values()) == 0
            for state in states
        )

    await until(is_empty)


async def test_burst_through_two_tiers_is_served_within_the_slots(cloud: Stack, upper: str) -> None:
    async with session() as http:
        await all_ready(http, upper)

        async def one(number: int) -> int:
            url = upper if number % 4 else cloud.url  # some come past the upper one
            api = ("chat", "completions", "responses", "messages")[number % 3]
            document = body(api, 12 + number % 8, stream=True)
            if api in ("chat", "completions"):
                document["seed"] = number
            # Of a class without an SLO, which a slow machine would miss.
            seen = await post(http, url, api, document, {"X-Orch-Class": "bulk"})
            assert seen.error is None
            assert b'"error"' not in seen.data
            return seen.status

        assert await asyncio.gather(*map(one, range(STREAMS))) == [200] * STREAMS
        await empty(http, upper, cloud.url)
        for url in (upper, cloud.url):
            state = await engine_state(http, url)
            assert state["slots_total"] == 8
            assert 1 < state["peak"] <= 8
            assert state["oversubscription_violations_total"] == 0

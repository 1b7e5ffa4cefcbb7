"""Two sidecars in front of one real engine: it keeps the count of its slots."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from orch_sidecar.tools.local.stack import Stack
from tests.engine.clients import engine_state, session, until
from tests.engine.conftest import SLOTS
from tests.engine.sidecars import all_ready, sidecar
from tests.engine.storm import CLIENTS, client, metric


@pytest.fixture
def second(cloud: Stack, logs: Path) -> Iterator[str]:
    """The URL of another sidecar in front of the engine of `cloud`."""
    pool = {"name": "cloud", "url": cloud.engine_url, "profile": "cloud"}
    with sidecar(logs / "second.log", pool) as url:
        yield url


# aiohttp leaves the socket of a call that is cancelled while it connects to the collector.
@pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize("seconds", [2.0, pytest.param(60.0, marks=pytest.mark.long)])
async def test_coming_and_going_at_two_sidecars_stays_within_the_slots(
    cloud: Stack, second: str, seconds: float
) -> None:
    urls = cloud.url, second
    seen: dict[str, Counter[str]] = {url: Counter() for url in urls}
    async with session() as http:
        await all_ready(http, second)
        # On a slow machine it takes more than one round until each sidecar has had its part.
        while not all(each["200"] > seconds / 3 for each in seen.values()):
            end = time.monotonic() + seconds
            each_url = ((number, urls[number % 2]) for number in range(CLIENTS))
            await asyncio.gather(
                *(client(http, url, random.Random(at), end, seen[url]) for at, url in each_url)
            )

        async def empty() -> bool:
            states = [await engine_state(http, url) for url in (*urls, cloud.engine_url)]
            return all(state["leased"] == state["foreign"] == 0 for state in states)

        await until(empty)
        engine = await engine_state(http, cloud.engine_url)
        for url in urls:
            assert (await engine_state(http, url))["peak"] <= SLOTS
            assert await metric(http, url, "orch_oversubscription_violations_total") == 0
            assert await metric(http, url, "orch_leases_closing") == 0
            assert await metric(http, url, "orch_engine_sidecars") == 2
    print({url: dict(each) for url, each in seen.items()}, "no_slot", engine["no_slot_total"])
    assert engine["peak"] <= SLOTS
    assert engine["running"] == engine["waiting"] == 0
    for each in seen.values():
        # Some would start later than their SLO allows; a machine may stop the engine for seconds.
        assert set(each) <= {"200", "left", "429", "stale"}

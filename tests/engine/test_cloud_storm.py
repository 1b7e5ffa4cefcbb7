"""Clients that come and go at random: slots are never exceeded, nothing leaks."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections import Counter
from pathlib import Path

import pytest

from orch_sidecar.tools.local.stack import Stack
from tests.engine.clients import engine_state, session, until
from tests.engine.storm import CLIENTS, client, metric


def resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    match = re.search(r"VmRSS:\s+(\d+)", status)
    assert match is not None
    return int(match[1]) / 1024


# aiohttp leaves the socket of a call that is cancelled while it connects to the collector.
@pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize("seconds", [2.0, pytest.param(60.0, marks=pytest.mark.long)])
async def test_coming_and_going_leaves_nothing_behind(cloud: Stack, seconds: float) -> None:
    seen: Counter[str] = Counter()
    assert cloud.sidecar is not None

    async def empty() -> bool:
        async with session() as http:
            state = await engine_state(http, cloud.url)
        return bool(state["leased"] == 0 and state["slots_free"] == 8)

    def enough() -> bool:
        return seen["200"] > seconds and seen["left"] > seconds / 3

    # On a fresh engine too, what is counted before is what a warm sidecar keeps.
    async with session() as http:
        warm = time.monotonic() + 2.0
        await asyncio.gather(
            *(client(http, cloud.url, random.Random(i), warm, seen) for i in range(CLIENTS))
        )
    await until(empty)
    async with session() as http:
        tasks_before = await metric(http, cloud.url, "orch_tasks")
        files_before = await metric(http, cloud.url, "process_open_fds")
        memory_before = resident_mb(cloud.sidecar.pid)
        first = 100
        while not enough():  # on a slow machine it takes more than one round
            end = time.monotonic() + seconds
            chances = [random.Random(first + i) for i in range(CLIENTS)]
            await asyncio.gather(*(client(http, cloud.url, each, end, seen) for each in chances))
            first += CLIENTS
        await until(empty)
        state = await engine_state(http, cloud.url)
        engine = await engine_state(http, cloud.engine_url)
        violations = await metric(http, cloud.url, "orch_oversubscription_violations_total")
        closing = await metric(http, cloud.url, "orch_leases_closing")
    # Our own client's connections are closed now; what is left is the sidecar's.
    async with session() as http:

        async def calm() -> bool:
            tasks = await metric(http, cloud.url, "orch_tasks")
            files = await metric(http, cloud.url, "process_open_fds")
            return tasks <= tasks_before and files <= files_before

        await until(calm)
    print(dict(seen), "peak", engine["peak"])
    assert set(seen) <= {
        "200",
        "left",
        "429",
        "stale",
    }  # some would start later than their SLO allows
    assert state["peak"] <= 8
    assert engine["peak"] <= 8
    assert engine["running"] == engine["waiting"] == 0
    assert violations == 0
    assert closing == 0
    if seconds > 4.0:  # less shows how memory is handed out, and not what is kept
        assert resident_mb(cloud.sidecar.pid) < memory_before + 32

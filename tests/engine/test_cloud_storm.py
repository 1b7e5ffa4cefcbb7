"""Clients that come and go at random: slots are never exceeded, nothing leaks."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from orch_sidecar.tools.local.stack import Stack
from tests.engine.clients import PATHS, body, engine_state, session, until

CLIENTS = 48
LEAVING = 0.3

_SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def document(rng: random.Random) -> tuple[str, dict[str, Any]]:
    """A request of 1 to 4 sequences."""
    tokens, stream = rng.randint(4, 48), rng.random() < 0.6
    kind = rng.random()
    if kind < 0.35:
        return "chat", body("chat", tokens, stream=stream, n=rng.choice([1, 2, 4]))
    if kind < 0.6:
        made = body("completions", tokens, stream=stream, n=rng.choice([1, 2]))
        return "completions", made | {"prompt": ["A slot", "A lease"]}
    if kind < 0.8:
        form = {"type": "json_schema", "json_schema": {"name": "s", "schema": _SCHEMA}}
        made = body("chat", tokens, stream=stream, n=rng.choice([1, 2]))
        return "chat", made | {"response_format": form, "ignore_eos": False}
    api = rng.choice(["responses", "messages"])
    return api, body(api, tokens, stream=stream)


async def client(
    http: aiohttp.ClientSession, url: str, rng: random.Random, until_s: float, seen: Counter[str]
) -> None:
    while time.monotonic() < until_s:
        api, request = document(rng)
        # Queued, before the first byte, mid-stream: a wait lasts seconds here.
        patience = rng.uniform(0.0, 4.0) if rng.random() < LEAVING else None
        try:
            async with asyncio.timeout(patience):
                async with http.post(url + PATHS[api], json=request) as response:
                    answer = await response.read()
                    # An engine that the machine does not let run for seconds is stale.
                    stale = response.status == 503 and b"engine_stale" in answer
                    seen["stale" if stale else str(response.status)] += 1
        except TimeoutError:
            seen["left"] += 1


async def metric(http: aiohttp.ClientSession, url: str, name: str) -> float:
    async with http.get(f"{url}/metrics") as response:
        text = await response.text()
    match = re.search(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
    assert match is not None, name
    return float(match[1])


def resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    match = re.search(r"VmRSS:\s+(\d+)", status)
    assert match is not None
    return int(match[1]) / 1024


# aiohttp leaves the socket of a call that is cancelled while it connects to the collector.
@pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize("seconds", [8.0, pytest.param(60.0, marks=pytest.mark.long)])
async def test_coming_and_going_leaves_nothing_behind(cloud: Stack, seconds: float) -> None:
    seen: Counter[str] = Counter()
    assert cloud.sidecar is not None
    async with session() as http:
        tasks_before = await metric(http, cloud.url, "orch_tasks")
        files_before = await metric(http, cloud.url, "process_open_fds")
        warm = time.monotonic() + 3.0
        await asyncio.gather(
            *(client(http, cloud.url, random.Random(i), warm, seen) for i in range(CLIENTS))
        )
        memory_before = resident_mb(cloud.sidecar.pid)
        end = time.monotonic() + seconds
        await asyncio.gather(
            *(client(http, cloud.url, random.Random(100 + i), end, seen) for i in range(CLIENTS))
        )

        async def empty() -> bool:
            state = await engine_state(http, cloud.url)
            return bool(state["leased"] == 0 and state["slots_free"] == 8)

        assert await until(empty, 1.0) < 1.0
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

        await until(calm, 5.0)
    print(dict(seen), "peak", engine["peak"])
    assert seen["200"] > seconds
    assert seen["left"] > seconds / 3
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
    assert resident_mb(cloud.sidecar.pid) < memory_before + 10

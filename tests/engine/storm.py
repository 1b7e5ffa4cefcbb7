"""Clients that come and go at random, with requests of 1 to 24 sequences."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections import Counter
from typing import Any

import aiohttp

from tests.engine.clients import PATHS, body

CLIENTS = 48
LEAVING = 0.3

_SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def document(rng: random.Random) -> tuple[str, dict[str, Any]]:
    """A request of 1 to 4 sequences, or of 12 or 24, which run in parts."""
    tokens, stream = rng.randint(4, 48), rng.random() < 0.6
    kind = rng.random()
    if kind < 0.35:
        return "chat", body("chat", tokens, stream=stream, n=rng.choice([1, 2, 4]))
    if kind < 0.6:
        made = body("completions", tokens, stream=stream, n=rng.choice([1, 2]))
        return "completions", made | {"prompt": ["A slot", "A lease"] * rng.choice([1, 1, 1, 6])}
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

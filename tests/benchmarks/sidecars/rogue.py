"""What honest clients lose to a rogue that claims slots and uses none, at sidecar or engine.

It opens state streams with instances of its own and claims all slots through them, again and
again, and never sends a request. The cells are interleaved; the first has no rogue.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Final

import aiohttp

from tests.benchmarks.sidecars.load import closed_loop
from tests.benchmarks.sidecars.servers import SLOTS, sidecars
from vllm_plugin.contracts.lease_protocol import API_VERSION, CLAIMS_PATH, MAX_CLAIMED_SHARE

CLIENTS: Final = 24
TOKENS: Final = 32
INSTANCES: Final = 4
LEAST_SHARE: Final = 0.9
_CLAIM_EVERY_S: Final = 0.05


@dataclass(slots=True)
class Cell:
    """The requests that were served in each round, and what the rogue was answered."""

    served: list[float] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)


@asynccontextmanager
async def rogue(port: int | None, answers: Counter[str]) -> AsyncIterator[None]:
    """Claims at this port. None: there is no rogue."""
    if port is None:
        yield
        return
    async with aiohttp.ClientSession() as http:
        tasks = [asyncio.create_task(_claim(http, port, answers)) for _ in range(INSTANCES)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _claim(http: aiohttp.ClientSession, port: int, answers: Counter[str]) -> None:
    url, instance = f"http://127.0.0.1:{port}", secrets.token_hex(8)
    stream = {"instance": instance, "api_version": API_VERSION}
    call = {"cost": 1, "urgent": True, "more": MAX_CLAIMED_SHARE * SLOTS - 1}
    async with http.get(f"{url}/v1/capabilities/stream", params=stream) as reading:
        answers[f"stream {reading.status}"] += 1
        for number in range(1, 1_000_000):
            body = json.dumps(call | {"number": number, "waits": True}).encode()
            async with http.put(f"{url}{CLAIMS_PATH}{instance}", data=body) as answer:
                answers[f"claim {answer.status}"] += 1
            await asyncio.sleep(_CLAIM_EVERY_S)


async def run(engine_port: int, rounds: int, seconds: float) -> list[str]:
    """Prints a row per cell. Returns the violations: cells in which honest clients lose."""
    with sidecars(2, engine_port) as both:
        await asyncio.gather(*(each.ready() for each in both))
        ports = [each.port for each in both]
        targets = {"no rogue": None, "at a sidecar": ports[0], "at the engine": engine_port}
        cells = {name: Cell() for name in targets}
        for _ in range(rounds):
            for name, port in targets.items():
                async with rogue(port, cells[name].answers):
                    window = await closed_loop(
                        ports, interactive=CLIENTS, tokens=TOKENS, seconds=seconds
                    )
                cells[name].served.append(window.served)
                if failures := window.failures():
                    print(f"  {name}: {dict(failures)}", flush=True)
    honest = median(cells["no rogue"].served)
    print("| | served, median of the rounds | of no rogue | least | the rogue was answered |")
    print("|---|---|---|---|---|")
    for name, cell in cells.items():
        served, answers = median(cell.served), dict(cell.answers.most_common())
        print(
            f"| {name} | {served:.0f} | {served / honest:.2f} | {min(cell.served):.0f} "
            f"| {answers} |"
        )
    return [
        f"{name}: {median(cell.served):.0f} requests were served, without the rogue {honest:.0f}"
        for name, cell in cells.items()
        if median(cell.served) < LEAST_SHARE * honest
    ]

"""Load for sidecars whose metrics are scraped, and engines that report what they do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from tests.integration.bench.decoding import Decoding
from tests.integration.client import COMPLETIONS, Client
from tests.integration.scripted_engine import ScriptedEngine

_REPORT_EVERY_S: Final = 0.25
_RETRY_S: Final = 0.05
_PROMPT: Final = [1, 2, 3]


@asynccontextmanager
async def load(port: int, clients: int, max_tokens: int = 10) -> AsyncIterator[None]:
    """Clients that send one stream after the other to the sidecar at this port."""

    async def client(number: int) -> None:
        connection = await Client.connect(port)
        try:
            while True:
                response = await connection.post(
                    COMPLETIONS,
                    stream=True,
                    prompt=_PROMPT,
                    max_tokens=max_tokens,
                    seed=number,
                    stream_options={"include_usage": True},
                )
                if response.status != 200:
                    await asyncio.sleep(_RETRY_S)
        finally:
            await connection.close()

    tasks = [asyncio.create_task(client(number)) for number in range(clients)]
    try:
        yield
        for task in tasks:  # one that failed would be no load
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def reporting(engine: ScriptedEngine, step_s: float, **more: Any) -> None:
    """Makes an engine decode in steps of this length, and report all of its counts, and `more`."""
    decoding = Decoding(engine, step_s=step_s)
    engine_state = engine.engine_state

    async def report() -> None:
        at_s = 0.0
        while True:
            at_s += _REPORT_EVERY_S
            engine_state.prefix_cache.record(at_s, 4, 1)
            counts = engine_state.heartbeat_fields()
            counts["prefill"] = {"tokens": int(100 * at_s), "seconds": at_s}
            counts["busy_seconds_total"] = at_s / 2
            decoding.report(**counts | more)
            await asyncio.sleep(_REPORT_EVERY_S)

    engine.run(report())

"""Sidecars in front of sidecars, and an engine that streams to them."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.integration.answers import EVENT_STREAM
from tests.integration.running import Running, Start
from tests.integration.wire import Answer


def tier(lower: Running, name: str = "lower", **more: Any) -> dict[str, Any]:
    """A pool that is a sidecar."""
    url = f"http://127.0.0.1:{lower.port}"
    return {"name": name, "url": url, "profile": "cloud", "tier": True} | more


async def above(start: Start, lower: Running, **settings: Any) -> Running:
    return await start(pools=[tier(lower)], **settings)


async def empty(*all_of_them: Running) -> None:
    """Waits until no lease is out on any level."""
    for running in all_of_them:
        await running.idle()
        assert running.ledger.lease_count == 0


class Streaming:
    """A script that streams a few events, and counts which requests were in the engine at once."""

    def __init__(self) -> None:
        self.aborted = 0

    async def __call__(self, answer: Answer) -> None:
        try:
            answer.head(200, EVENT_STREAM)
            for number in range(3):
                answer.event({"seed": answer.request.json()["seed"], "number": number})
                await asyncio.sleep(0.005)
            answer.event("[DONE]")
            answer.end()
        except asyncio.CancelledError:
            self.aborted += 1
            raise

"""An engine that holds what it got until a test lets it go."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.integration.client import CHAT, Client
from tests.integration.running import Running
from tests.integration.wire import Answer


class Held:
    """A script that answers when the test lets it, in the order in which requests came."""

    def __init__(self) -> None:
        self.waiting: list[asyncio.Event] = []

    async def __call__(self, answer: Answer) -> None:
        go = asyncio.Event()
        self.waiting.append(go)
        try:
            await go.wait()
        except asyncio.CancelledError:
            if go in self.waiting:  # else it was released as its client went
                self.waiting.remove(go)
            raise
        answer.json({"seed": answer.request.json().get("seed")})

    def release(self) -> None:
        self.waiting.pop(0).set()

    def release_all(self) -> None:
        while self.waiting:
            self.release()


async def started(running: Running, **body: Any) -> Client:
    """A client whose request was sent."""
    client = await running.client()
    client.start(body.pop("path", CHAT), body.pop("headers", ()), stream=False, **body)
    return client

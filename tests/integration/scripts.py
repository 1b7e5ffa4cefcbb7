"""What an engine does with a request that it does not answer to the end."""

from __future__ import annotations

import asyncio

from tests.integration.answers import EVENT_STREAM
from tests.integration.wire import Answer


async def endless(answer: Answer) -> None:
    """A stream that ends only with its client."""
    answer.head(200, EVENT_STREAM)
    while True:
        answer.event("more")
        await asyncio.sleep(0.005)


async def closes(answer: Answer) -> None:
    """An orderly end of the connection, without an answer."""
    answer.close()


async def resets(answer: Answer) -> None:
    """A TCP reset, without an answer."""
    answer.reset()

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


async def breaks_off(answer: Answer) -> None:
    """A stream that breaks off after an event."""
    answer.head(200, EVENT_STREAM)
    answer.event({"choices": [{"index": 0, "delta": {"content": "x"}}]})
    await asyncio.sleep(0.02)
    answer.reset()


async def breaks_off_within_an_event(answer: Answer) -> None:
    answer.head(200, EVENT_STREAM)
    answer.chunk(b"data: half")
    await asyncio.sleep(0.02)
    answer.reset()


async def silent(answer: Answer) -> None:
    """Nothing, until the client or the engine is gone."""
    await asyncio.Event().wait()

"""An engine that says what a test tells it to, word by word, with ids as vLLM makes them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from tests.integration.answers import EVENT_STREAM
from tests.integration.client import CHAT, Client, Response
from tests.integration.running import Running, eventually
from tests.integration.wire import Answer

DONE = b"data: [DONE]\n\n"


class Told:
    """One answer under way. `id`: what the engine made of the request's."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.request_id = answer.request.header("x-request-id") or ""
        self.said: list[str] = []
        self.over = asyncio.Event()
        self.lost = False  # the sidecar closed the connection

    def event(self, word: str, request_id: str | None = None) -> bytes:
        """An event of its stream, as the request of that id would have it."""
        choice = {"index": 0, "delta": {"content": word}, "finish_reason": None}
        chunk = {
            "id": f"chatcmpl-{request_id or self.request_id}", "object": "chat.completion.chunk",
            "created": 1, "model": "tiny", "choices": [choice],
        }  # fmt: skip
        return f"data: {json.dumps(chunk, separators=(',', ':'))}\n\n".encode()

    def begin(self) -> None:
        self.answer.head(200, EVENT_STREAM)

    def say(self, *words: str) -> None:
        for word in words:
            self.said.append(word)
            self.answer.chunk(self.event(word))

    def end(self) -> None:
        self.answer.chunk(DONE)
        self.answer.end()
        self.over.set()

    def all_of_it(self, *words: str) -> None:
        self.begin()
        self.say(*words)
        self.end()

    def body_for(self, response: Response, *, done: bool = True) -> bytes:
        """What the client of that response is to have got."""
        own = response.header("x-request-id") or ""
        assert own
        events = b"".join(self.event(word, own) for word in self.said)
        return events + DONE if done else events

    def json_for(self, request_id: str | None = None) -> dict[str, Any]:
        """A whole answer of chat, as the request of that id would have it."""
        message = {"role": "assistant", "content": "one two three"}
        return {
            "id": f"chatcmpl-{request_id or self.request_id}", "object": "chat.completion",
            "created": 1, "model": "tiny",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 7, "total_tokens": 10, "completion_tokens": 3},
        }  # fmt: skip


class Telling:
    """The script. `told`: the answers under way and past, in the order of their requests."""

    def __init__(self) -> None:
        self.told: list[Told] = []

    async def __call__(self, answer: Answer) -> None:
        told = Told(answer)
        self.told.append(told)
        try:
            await told.over.wait()
        except asyncio.CancelledError:
            told.lost = True
            raise


async def asking(
    running: Running, *headers: tuple[str, str], stream: bool = True, **body: Any
) -> Client:
    """A client that has sent a request which may be shared."""
    client = await running.client()
    client.start(CHAT, headers, stream=stream, **({"temperature": 0} | body))
    return client


async def told(telling: Telling, count: int = 1) -> Told:
    """The answer to the request of that number, counted from 1, once the engine has it."""
    await eventually(lambda: len(telling.told) >= count)
    return telling.told[count - 1]


def sharing(running: Running) -> int:
    """How many clients are on decodes that can still be joined."""
    shared = running.sidecar.coalesce._by_key.values()
    return sum(len(each.broadcast._subscribers) for each in shared)


async def together(
    running: Running, *requests: Sequence[tuple[str, str]], stream: bool = True, **body: Any
) -> list[Client]:
    """Clients with these headers and the same body, each on its decode before the next comes."""
    clients = []
    for headers in requests:
        before = sharing(running)
        clients.append(await asking(running, *headers, stream=stream, **body))
        await eventually(lambda before=before: sharing(running) == before + 1)  # type: ignore[misc]
    return clients


@asynccontextmanager
async def full(running: Running, telling: Telling) -> AsyncIterator[None]:
    """Every slot is taken, by a request that is like no other."""
    number = len(telling.told) + 1
    client = await running.client()
    client.start(CHAT, stream=False, n=4)
    answer = await told(telling, number)
    yield
    answer.answer.json({"id": "chatcmpl-other"})
    answer.over.set()
    assert (await client.response()).status == 200

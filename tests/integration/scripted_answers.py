"""Scripts the answers of a fake engine, event by event, with ids in the form of vLLM's."""

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


class ScriptedAnswer:
    """One answer in progress, which a test sends piece by piece."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.request_id = answer.request.header("x-request-id") or ""
        self.words: list[str] = []
        self.finished = asyncio.Event()
        self.disconnected = False  # the sidecar closed the connection before the end

    def event(self, word: str, request_id: str | None = None) -> bytes:
        """Returns an event of its stream, with the id of that request."""
        choice = {"index": 0, "delta": {"content": word}, "finish_reason": None}
        chunk = {
            "id": f"chatcmpl-{request_id or self.request_id}", "object": "chat.completion.chunk",
            "created": 1, "model": "tiny", "choices": [choice],
        }  # fmt: skip
        return f"data: {json.dumps(chunk, separators=(',', ':'))}\n\n".encode()

    def begin(self) -> None:
        self.answer.head(200, EVENT_STREAM)

    def send(self, *words: str) -> None:
        for word in words:
            self.words.append(word)
            self.answer.chunk(self.event(word))

    def end(self) -> None:
        self.answer.chunk(DONE)
        self.answer.end()
        self.finished.set()

    def send_all(self, *words: str) -> None:
        self.begin()
        self.send(*words)
        self.end()

    def body_for(self, response: Response, *, done: bool = True) -> bytes:
        """Returns the body that the client of that response should have received."""
        own = response.header("x-request-id") or ""
        assert own
        events = b"".join(self.event(word, own) for word in self.words)
        return events + DONE if done else events

    def json_for(self, request_id: str | None = None) -> dict[str, Any]:
        """Returns a whole chat completion, with the id of that request."""
        message = {"role": "assistant", "content": "one two three"}
        return {
            "id": f"chatcmpl-{request_id or self.request_id}", "object": "chat.completion",
            "created": 1, "model": "tiny",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 7, "total_tokens": 10, "completion_tokens": 3},
        }  # fmt: skip


class AnswerScript:
    """Answers requests as a test sends. `answers`: begun and ended ones, in order of requests."""

    def __init__(self) -> None:
        self.answers: list[ScriptedAnswer] = []

    async def __call__(self, answer: Answer) -> None:
        scripted = ScriptedAnswer(answer)
        self.answers.append(scripted)
        try:
            await scripted.finished.wait()
        except asyncio.CancelledError:
            scripted.disconnected = True
            raise


async def start_request(
    running: Running, *headers: tuple[str, str], stream: bool = True, **body: Any
) -> Client:
    """Returns a client that has sent a request which may be shared."""
    client = await running.client()
    client.start(CHAT, headers, stream=stream, **({"temperature": 0} | body))
    return client


async def nth_answer(script: AnswerScript, count: int = 1) -> ScriptedAnswer:
    """Returns the answer to the request of that number, from 1, once the engine has received it."""
    await eventually(lambda: len(script.answers) >= count)
    return script.answers[count - 1]


def sharing(running: Running) -> int:
    """Returns how many clients share generations that can still be joined."""
    shared = running.sidecar.coalesce._by_key.values()
    return sum(len(each.broadcast._subscribers) for each in shared)


async def together(
    running: Running, *requests: Sequence[tuple[str, str]], stream: bool = True, **body: Any
) -> list[Client]:
    """Returns clients with these headers and the same body, started one after another."""
    clients = []
    for headers in requests:
        before = sharing(running)
        clients.append(await start_request(running, *headers, stream=stream, **body))
        await eventually(lambda before=before: sharing(running) == before + 1)  # type: ignore[misc]
    return clients


@asynccontextmanager
async def full(running: Running, script: AnswerScript) -> AsyncIterator[None]:
    """Occupies every slot with a request that is like no other."""
    number = len(script.answers) + 1
    client = await running.client()
    client.start(CHAT, stream=False, n=4)
    answer = await nth_answer(script, number)
    yield
    answer.answer.json({"id": "chatcmpl-other"})
    answer.finished.set()
    assert (await client.response()).status == 200

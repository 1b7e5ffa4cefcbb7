"""Hundreds of clients that act at the same moments: every answer is whole, its own and in order.

What is written in a turn of the event loop is put off to its end. Clients read slowly, pipeline,
leave and share generations; engines break off and write at once what fills every buffer.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Coroutine
from typing import Any, Final

from tests.integration.answers import EVENT_STREAM
from tests.integration.client import CHAT, Aborted, Client, Response
from tests.integration.running import Running, Start, eventually
from tests.integration.scripted_answers import DONE
from tests.integration.scripted_engine import ScriptedEngine
from tests.integration.wire import Answer

CLIENTS: Final = 200
ROUNDS: Final = 4
SEED: Final = 7
_SIZES: Final = (1, 40, 3000)


def _content(number: int) -> list[str]:
    """The words of the answer to the request of this number."""
    chance = random.Random(number)
    size = chance.choice(_SIZES)
    large = [100_000] * chance.choice((0, 0, 0, 0, 4))
    return [f"{number}:{at}" + "x" * chance.randrange(size) for at in range(12)] + [
        "y" * size for size in large
    ]


def _event(word: str, request_id: str) -> bytes:
    document = {"id": f"chatcmpl-{request_id}", "choices": [{"delta": {"content": word}}]}
    return f"data: {json.dumps(document, separators=(',', ':'))}\n\n".encode()


def _expected(seed: int, request_id: str) -> bytes:
    return b"".join(_event(word, request_id) for word in _content(seed)) + DONE


async def _answer(answer: Answer) -> None:
    """Answers by what is asked, at once or in many turns; those of the user `broken` break off."""
    body = answer.request.json()
    number, request_id = body["max_tokens"], answer.request.header("x-request-id") or ""
    if not body["stream"]:
        answer.json({"id": f"chatcmpl-{request_id}", "words": _content(number)})
        return
    answer.head(200, EVENT_STREAM)
    for at, word in enumerate(_content(number)):
        answer.chunk(_event(word, request_id))
        if body.get("user") == "broken" and at == 5:
            await asyncio.sleep(0.01)
            answer.reset()
            return
        if number % 3:
            await asyncio.sleep(0.001 * (number % 5))
    answer.chunk(DONE)
    answer.end()


class Crowd:
    """The clients, each of which draws what it does."""

    def __init__(self, running: Running, seed: int) -> None:
        self.running = running
        self.chance = random.Random(seed)
        self.whole = 0
        self._ids = 0

    def ask(self, client: Client, *, stream: bool, **more: Any) -> tuple[int, str, bool]:
        """Sends a request; returns what its answer must be made of."""
        self._ids += 1
        number, request_id = self.chance.randrange(1, 40), f"mine-{self._ids}"
        client.start(CHAT, [("X-Request-Id", request_id)], stream=stream, max_tokens=number, **more)
        return number, request_id, stream

    async def expect(self, client: Client, asked: tuple[int, str, bool]) -> Response:
        number, request_id, stream = asked
        response = await client.response()
        assert (response.status, response.header("x-request-id")) == (200, request_id)
        if stream:
            assert response.body == _expected(number, request_id)
        else:
            assert response.json()["words"] == _content(number)
        self.whole += 1
        return response

    async def act(self, at_once: asyncio.Barrier) -> None:
        """One client's life: it acts when all others do."""
        actions: list[Callable[[], Coroutine[Any, Any, None]]] = [
            self.reads, self.pipelines, self.shares, self.reads_slowly, self.leaves,
            self.sends_no_more, self.meets_failures, self.looks,
        ]  # fmt: skip
        for _ in range(ROUNDS):
            await at_once.wait()
            await self.chance.choice(actions)()

    async def reads(self) -> None:
        client = await self.running.client()
        for stream in (True, False, True):
            await self.expect(client, self.ask(client, stream=stream))

    async def pipelines(self) -> None:
        client = await self.running.client()
        asked = [self.ask(client, stream=self.chance.random() < 0.5) for _ in range(5)]
        for each in asked:
            await self.expect(client, each)

    async def shares(self) -> None:
        client = await self.running.client()
        await self.expect(client, self.ask(client, stream=True, temperature=0))

    async def reads_slowly(self) -> None:
        client = await self.running.client(receive_buffer=4096)
        asked = self.ask(client, stream=True, temperature=self.chance.choice((0, 1)))
        await asyncio.sleep(0.05)
        await self.expect(client, asked)

    async def leaves(self) -> None:
        client = await self.running.client()
        self.ask(client, stream=True, temperature=self.chance.choice((0, 1)))
        if self.chance.random() < 0.5:
            await asyncio.sleep(self.chance.random() * 0.02)
        if self.chance.random() < 0.5:
            client.reset()
        await client.close()

    async def sends_no_more(self) -> None:
        """It counts as gone; what it gets is the beginning of its answer."""
        client = await self.running.client()
        number, request_id, _ = self.ask(client, stream=True)
        client._writer.write_eof()
        try:
            got = (await client.response()).body
        except Aborted as aborted:
            got = aborted.body
        assert _expected(number, request_id).startswith(got)

    async def meets_failures(self) -> None:
        client = await self.running.client()
        number, request_id, _ = self.ask(client, stream=True, user="broken")
        response = await client.response()
        begun = b"".join(_event(word, request_id) for word in _content(number)[:6])
        assert response.body.startswith(begun + b'data: {"error"')
        await self.expect(client, self.ask(client, stream=False))

    async def looks(self) -> None:
        client = await self.running.client()
        assert (await client.get("/health")).status == 200
        await self.expect(client, self.ask(client, stream=False))


async def test_answers_are_whole_and_in_order_whatever_clients_do_at_the_same_time(
    start: Start, engine: ScriptedEngine
) -> None:
    engine.answer = _answer
    engine.slots = 64
    await engine.restart()
    running = await start()
    crowd, at_once = Crowd(running, SEED), asyncio.Barrier(CLIENTS)
    async with asyncio.TaskGroup() as group:
        for _ in range(CLIENTS):
            group.create_task(crowd.act(at_once))
    assert crowd.whole > CLIENTS * ROUNDS // 2
    await running.idle()
    turn = running.sidecar.connections.turn
    await eventually(lambda: not turn.active)
    assert (turn.starting, [*turn.unwritten]) == (0, [])

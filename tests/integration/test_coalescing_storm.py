"""Clients that ask the same few things, and come and go as they like."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.integration.client import CHAT, Aborted, Client
from tests.integration.running import Running, eventually
from tests.integration.scripted_answers import DONE, ScriptedAnswer
from tests.integration.scripted_engine import ScriptedEngine
from tests.integration.wire import Answer

CLIENTS = 24
WHOLE = 200  # answers that came whole: until then clients go on asking
SHARED = 20  # so many more of them than the engine made
WORDS = [f"word {number} " for number in range(12)]


class Chatting:
    """Sends its words with pauses, and sometimes breaks off. Streams if it should. `ended`: how
    many answers it has sent to their end."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.ended = 0

    async def __call__(self, answer: Answer) -> None:
        scripted = ScriptedAnswer(answer)
        if not answer.request.json().get("stream"):
            await asyncio.sleep(self._chance.uniform(0, 0.02))
            answer.json(scripted.json_for())
            self.ended += 1
            return
        breaks = self._chance.random() < 0.1
        scripted.begin()
        for word in WORDS[: self._chance.randrange(12) if breaks else 12]:
            scripted.send(word)
            if self._chance.random() < 0.5:
                await asyncio.sleep(self._chance.uniform(0, 0.004))
        if breaks:
            answer.reset()
        else:
            scripted.end()
            self.ended += 1


async def one_client(
    running: Running, chance: random.Random, engine: Chatting, whole: list[str]
) -> None:
    """Asks again and again, leaves midway at times. Records the ids of the answers of which it got
    all, until all clients together have had enough of them."""
    client = await Client.connect(running.port)
    while len(whole) < WHOLE or len(whole) < engine.ended + SHARED:
        stream, patience = chance.random() < 0.7, chance.choice([None, None, 0.001, 0.01, 0.03])
        fields = [("X-Orch-Class", chance.choice(["interactive", "bulk"]))]
        client.start(CHAT, fields, stream=stream, temperature=0, max_tokens=chance.choice([1, 2]))
        try:
            async with asyncio.timeout(patience):
                response = await client.response()
        except (TimeoutError, Aborted):
            client.reset()
            client = await Client.connect(running.port)
            continue
        own = response.header("x-request-id") or ""
        if stream and response.status == 200:
            whole += [own] * expect_stream(response.body, own)
        elif response.status == 200:
            assert response.json()["id"] == f"chatcmpl-{own}"
            whole.append(own)
        else:
            assert response.status == 502
    await client.close()


def expect_stream(body: bytes, own: str) -> bool:
    """Whether it is a whole stream. Fails if it is neither that nor one that was broken off."""
    *events, done, rest = body.split(b"\n\n")
    assert (done + b"\n\n", rest) == (DONE, b"")
    whole = b'"error"' not in events[-1]
    for event, word in zip(events if whole else events[:-1], WORDS, strict=whole):
        assert f'"id":"chatcmpl-{own}"'.encode() in event
        assert f'"content":"{word}"'.encode() in event
    return whole


@pytest.mark.parametrize("seed", range(3))
async def test_nothing_is_lost_mixed_up_or_left_behind(
    engine: ScriptedEngine, sidecar: Running, seed: int
) -> None:
    engine.answer = chatting = Chatting(random.Random(seed))
    chances = (random.Random(100 * seed + number) for number in range(CLIENTS))
    whole: list[str] = []
    await asyncio.gather(*(one_client(sidecar, each, chatting, whole) for each in chances))
    await sidecar.idle()
    await eventually(lambda: not sidecar.sidecar.frontend.active)
    sharing = sidecar.sidecar.coalesce
    assert not sharing._running
    assert not sharing._by_key
    assert not engine.present
    assert len(set(whole)) == len(whole)

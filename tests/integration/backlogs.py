"""Backlogs of requests at several sidecars, and an engine that records which it answers."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from tests.integration.client import Aborted, Client
from tests.integration.held import started
from tests.integration.running import Running, eventually
from tests.integration.scripted_engine import ScriptedEngine
from tests.integration.wire import Answer
from vllm_plugin.contracts.lease_protocol import Claim

BULK = [("X-Orch-Class", "bulk")]


class Recording:
    """A script that answers after about `takes_s`, once `flows` is set, and records by `seed` and
    by sidecar what it answered.

    `settled`: an answer waits for it. With `full` the order in which requests enter is what the
    sidecars and the engine decide, however long their messages take on the way.
    """

    def __init__(self, engine: ScriptedEngine, takes_s: float = 0.005) -> None:
        self.settled: Callable[[], bool] = lambda: True
        self._one = asyncio.Lock()
        self._engine = engine
        self.takes_s = takes_s
        self._dice = random.Random(1)
        self.flows = asyncio.Event()
        self.flows.set()
        self.entered: list[str] = []  # instances, in the order of their requests
        self.answered = Counter[int]()
        engine.answer = self

    async def __call__(self, answer: Answer) -> None:
        self.entered.append((answer.request.lease or "").partition(".")[0])
        await self.flows.wait()
        await asyncio.sleep(self.takes_s * self._dice.uniform(0.5, 1.5))
        async with self._one:  # the engine has let go of it before the next one looks
            await eventually(self.settled)
            seed = answer.request.json()["seed"]
            self.answered[seed] += 1
            answer.json({"seed": seed})

    async def came(self, count: int, *sidecars: Running) -> None:
        """Waits until so many requests are queued at these sidecars or have entered."""
        await eventually(lambda: sum(each.queued for each in sidecars) + len(self.entered) >= count)

    def full(self, *sidecars: Running) -> Callable[[], bool]:
        """Whether the slot that came free last is taken, unless these sidecars have none queued."""
        engine = self._engine
        return lambda: engine.present == engine.slots or not any(each.queued for each in sidecars)


class Numbers:
    """Seeds that no other request has."""

    def __init__(self) -> None:
        self._last = 0

    def next(self, count: int) -> range:
        first, self._last = self._last + 1, self._last + count
        return range(first, self._last + 1)


async def backlog(running: Running, seeds: Iterable[int], **body: Any) -> dict[int, Client]:
    """Sends a request for each seed, on connections of their own."""
    return {seed: await started(running, seed=seed, **body) for seed in seeds}


async def answered(clients: dict[int, Client]) -> None:
    """Reads all answers: each is the one to its request."""
    responses = await asyncio.gather(*(each.response() for each in clients.values()))
    others = [(each.status, each.body) for each in responses if each.status != 200]
    assert others == [], others
    assert [each.json()["seed"] for each in responses] == list(clients)


async def outcomes(clients: dict[int, Client]) -> Counter[int]:
    """Reads all answers, and counts their statuses; 0: the connection was closed instead."""

    async def one(seed: int, client: Client) -> int:
        try:
            response = await client.response()
        except Aborted:
            return 0
        if response.status == 200:
            assert response.json()["seed"] == seed
        return response.status

    return Counter(await asyncio.gather(*(one(*each) for each in clients.items())))


def instance(running: Running) -> str:
    return running.pool.gate.instance


def claim(engine: ScriptedEngine, running: Running) -> Claim | None:
    """What the engine has recorded as a sidecar's claim."""
    return engine.engine_state.claims.claim_of(instance(running))


def break_streams(engine: ScriptedEngine) -> int:
    """Resets the connections of the state streams. Returns their number."""
    streams = [wire for wire in engine.wires if wire.streams_state]
    for wire in streams:
        wire.reset()
    return len(streams)

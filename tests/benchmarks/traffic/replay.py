"""Sends a schedule of requests, and keeps bulk clients busy beside it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

import uvloop

from orch_sidecar.tools.bench.load.driver import without_collection
from tests.benchmarks.policy.call import Answer
from tests.benchmarks.policy.load import Run
from tests.benchmarks.policy.rig import Counters
from tests.benchmarks.policy.work import Request
from tests.benchmarks.traffic.ways import Way
from vllm_plugin.contracts.profile import ServiceClass

# A client whose request was refused waits as long as it was asked to, at most this.
_LONGEST_PAUSE_S: Final = 2.0
_SHORTEST_PAUSE_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Mark:
    """What had happened at one end of the measured window."""

    at_s: float
    counters: Counters
    tokens: Counter[ServiceClass]  # that had reached the clients


@dataclass(frozen=True, slots=True)
class Replayed:
    """The answers to all requests, and the window in which they are counted."""

    answers: list[Answer]
    before: Mark
    after: Mark

    @property
    def seconds(self) -> float:
        return self.after.at_s - self.before.at_s


def replay(
    way: Way,
    requests: Sequence[Request],
    bulk: Iterator[Request],
    clients: int,
    counters: Callable[[], Counters],
    *,
    warm_s: float,
    seconds: float,
    grace_s: float,
) -> Replayed:
    """Sends each request at its time. `grace_s` after the window, what has not ended is cut off."""
    with without_collection():
        return uvloop.run(_replay(way, requests, bulk, clients, counters, warm_s, seconds, grace_s))


async def _replay(
    way: Way,
    requests: Sequence[Request],
    bulk: Iterator[Request],
    clients: int,
    counters: Callable[[], Counters],
    warm_s: float,
    seconds: float,
    grace_s: float,
) -> Replayed:
    messages = [way.target.message(request) for request in requests]
    limit = None if way.at_once is None else asyncio.Semaphore(way.at_once)
    run, loop = Run(way.target), asyncio.get_running_loop()
    tasks: list[asyncio.Task[None]] = []

    async def ask(request: Request, message: bytes | None = None) -> Answer:
        answer = run.waiting(request)
        async with AsyncExitStack() as stack:
            if limit is not None:
                await stack.enter_async_context(limit)
            if run.cut:
                answer.cut_s = run.now()
            else:
                await run.ask(request, message, answer)
        return answer

    async def send(number: int) -> None:
        await ask(requests[number], messages[number])

    def due(number: int) -> None:
        tasks.append(loop.create_task(send(number)))

    async def client() -> None:
        while not run.cut and run.now() < warm_s + seconds:
            answer = await ask(next(bulk))
            if answer.code is not None and not run.cut:
                asked_s = (answer.number(b"retry-after-ms") or 0.0) / 1000
                await asyncio.sleep(min(_LONGEST_PAUSE_S, max(_SHORTEST_PAUSE_S, asked_s)))

    async def mark(at_s: float) -> Mark:
        await asyncio.sleep(at_s - run.now())
        tokens = Counter[ServiceClass]()
        for answer in run.answers:
            tokens[answer.request.service_class] += answer.tokens
        return Mark(run.now(), await asyncio.to_thread(counters), tokens)

    start = loop.time() - run.now()
    for number, request in enumerate(requests):
        loop.call_at(start + request.at_s, due, number)
    bulk_tasks = [loop.create_task(client()) for _ in range(clients)]
    before = await mark(warm_s)
    after = await mark(warm_s + seconds)
    if tasks:
        await asyncio.wait(tasks, timeout=grace_s)
    run.cut_off()
    await asyncio.gather(*tasks, *bulk_tasks)
    return Replayed(run.answers, before, after)

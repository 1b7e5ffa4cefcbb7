"""A load generator: open and closed loops of streams.

An open loop sends each request at its due time and measures latency from that time, so that it
does not hide the queue it causes. Its own lateness is part of the result. A closed loop keeps a
fixed number of requests in flight.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import uvloop

from orch_sidecar.tools.bench.load.driver import without_collection
from tests.benchmarks.policy.call import Answer, Call, Target
from tests.benchmarks.policy.work import Request

T = TypeVar("T")

_AT_ONCE: Final = 32  # connections made at once by a closed loop when it begins


class Run:
    """Requests under way, and the clock."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.answers: list[Answer] = []
        self.cut = False
        self._calls: set[Call] = set()
        self._loop = asyncio.get_running_loop()
        self._began = time.monotonic()

    def now(self) -> float:
        return time.monotonic() - self._began

    def waiting(self, request: Request) -> Answer:
        """Records a request that is to be sent later."""
        answer = Answer(request)
        self.answers.append(answer)
        return answer

    async def ask(
        self, request: Request, message: bytes | None = None, answer: Answer | None = None
    ) -> Answer:
        """Sends a request. `answer`: of `waiting`."""
        answer = answer or self.waiting(request)
        call = Call(self, answer, message or self.target.message(request))
        try:
            await self._loop.create_connection(lambda: call, "127.0.0.1", self.target.port)
        except OSError as error:
            answer.code, answer.last_s = f"no connection: {error}", self.now()
            return answer
        self._calls.add(call)
        await call.ended
        self._calls.discard(call)
        return answer

    def cut_off(self) -> None:
        """Leaves: what is under way stays unanswered."""
        self.cut = True
        for call in self._calls:
            if call.transport is not None:
                call.transport.abort()


@dataclass(slots=True)
class Loaded(Generic[T]):
    """What a run gave: answers, and what `probe` returned at both ends of the window."""

    answers: list[Answer]
    from_s: float
    until_s: float
    before: T
    after: T

    @property
    def seconds(self) -> float:
        return self.until_s - self.from_s


async def _open(
    target: Target,
    requests: Sequence[Request],
    warm_s: float,
    seconds: float,
    grace_s: float,
    probe: Callable[[], T],
) -> Loaded[T]:
    messages = [target.message(request) for request in requests]
    run, loop, tasks = Run(target), asyncio.get_running_loop(), []

    def send(number: int) -> None:
        tasks.append(loop.create_task(run.ask(requests[number], messages[number])))

    start = loop.time() - run.now()
    for number, request in enumerate(requests):
        loop.call_at(start + request.at_s, send, number)
    await asyncio.sleep(warm_s - run.now())
    before, from_s = await asyncio.to_thread(probe), run.now()
    await asyncio.sleep(warm_s + seconds - run.now())
    after, until_s = await asyncio.to_thread(probe), run.now()
    if tasks:
        await asyncio.wait(tasks, timeout=grace_s)
    run.cut_off()
    await asyncio.gather(*tasks)
    return Loaded(run.answers, from_s, until_s, before, after)


async def _closed(
    target: Target,
    requests: Iterator[Request],
    clients: int,
    warm_s: float,
    seconds: float,
    probe: Callable[[], T],
) -> Loaded[T]:
    run = Run(target)

    async def client(number: int) -> None:
        await asyncio.sleep(0.001 * (number // _AT_ONCE))
        while not run.cut:
            if (await run.ask(next(requests))).code is not None:
                await asyncio.sleep(0.05)  # a refusal is no reason to spin

    tasks = [asyncio.create_task(client(number)) for number in range(clients)]
    await asyncio.sleep(warm_s)
    before, from_s = await asyncio.to_thread(probe), run.now()
    await asyncio.sleep(seconds)
    after, until_s = await asyncio.to_thread(probe), run.now()
    run.cut_off()
    await asyncio.gather(*tasks)
    return Loaded(run.answers, from_s, until_s, before, after)


async def _together(target: Target, requests: Sequence[Request]) -> list[Answer]:
    messages = [target.message(request) for request in requests]
    run = Run(target)
    pairs = zip(requests, messages, strict=True)
    return list(await asyncio.gather(*(run.ask(*pair) for pair in pairs)))


async def _in_turn(pairs: Sequence[tuple[Target, Request]]) -> list[Answer]:
    answers = []
    for target, request in pairs:
        message = target.message(request)
        answers.append(await Run(target).ask(request, message))
    return answers


def open_loop(
    target: Target,
    requests: Sequence[Request],
    probe: Callable[[], T],
    *,
    warm_s: float,
    seconds: float,
    grace_s: float,
) -> Loaded[T]:
    """Sends each request at its time. `probe` is called after `warm_s` and `seconds` later;
    `grace_s` after that, what has not ended is cut off."""
    with without_collection():
        return uvloop.run(_open(target, requests, warm_s, seconds, grace_s, probe))


def closed_loop(
    target: Target,
    requests: Iterator[Request],
    probe: Callable[[], T],
    *,
    clients: int,
    warm_s: float,
    seconds: float,
) -> Loaded[T]:
    """Keeps `clients` requests under way."""
    with without_collection():
        return uvloop.run(_closed(target, requests, clients, warm_s, seconds, probe))


def together(target: Target, requests: Sequence[Request]) -> list[Answer]:
    """Sends all at once and waits for all."""
    with without_collection():
        return uvloop.run(_together(target, requests))


def in_turn(pairs: Sequence[tuple[Target, Request]]) -> list[Answer]:
    """One after the other; each one's times count from when it was sent."""
    with without_collection():
        return uvloop.run(_in_turn(pairs))

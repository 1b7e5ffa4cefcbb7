"""Drives requests: one after the other, as many at a time as asked, on a schedule, all at once.

Watches itself meanwhile: how late it was, and whether it was what held things up.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from orch_sidecar.bench.call import Call, Fate
from orch_sidecar.bench.client import Connections
from orch_sidecar.bench.endpoint import Endpoint

_LOOK_EVERY_S: Final = 0.02

Message = bytes
Work = Coroutine[Any, Any, None]


@dataclass(frozen=True, slots=True)
class Pulse:
    """How the client itself did. `lag_s`: by how much its event loop woke later than it should,
    sampled all along. `cpu_share`: of one core."""

    lag_s: tuple[float, ...]
    cpu_share: float


class Load:
    """The requests of one run, on one event loop."""

    def __init__(self, endpoint: Endpoint, on_end: Callable[[Call], None]) -> None:
        """`on_end`: called with each call that has ended."""
        self._on_end = on_end
        self._began_s = time.perf_counter()
        self._connections = Connections(endpoint, self.now)
        self._lag_s: list[float] = []
        self._stopping = asyncio.Event()
        self.calls: list[Call] = []

    def now(self) -> float:
        """Seconds since the start of the run."""
        return time.perf_counter() - self._began_s

    def stop(self) -> None:
        """Nothing more is sent, and what is under way is cut."""
        self._stopping.set()

    @property
    def stopped(self) -> bool:
        """Whether it was told to stop before its end."""
        return self._stopping.is_set()

    async def closed(
        self, messages: Iterator[Message], clients: int, enough: Callable[[int, float], bool]
    ) -> None:
        """So many clients, each of which asks again when its answer has ended.

        `enough`: told how many requests were sent and how long it has taken, whether to end.
        """

        async def client() -> None:
            while not enough(len(self.calls), self.now()) and not self.stopped:
                await self._one(None, next(messages))

        await self._all([client() for _ in range(clients)])

    async def open(self, messages: Iterator[Message], due_s: Sequence[float]) -> None:
        """Each request when it is due, whatever became of those before it."""
        loop = asyncio.get_running_loop()
        offset = loop.time() - self.now()
        tasks: list[asyncio.Task[None]] = []

        async def sending() -> None:
            for at_s in due_s:
                message = next(messages)  # made before it is due
                await asyncio.sleep(max(0.0, offset + at_s - loop.time()))
                tasks.append(loop.create_task(self._one(at_s, message)))
            await asyncio.gather(*tasks)

        try:
            await self._all([sending()])
        finally:
            await _cancelled(tasks)

    async def at_once(self, messages: Sequence[Message]) -> None:
        """All of them, as fast as they can be sent."""
        due_s = self.now()
        await self._all([self._one(due_s, message) for message in messages])

    async def watched(self, work: Work) -> Pulse:
        """Runs the work, and watches this process meanwhile."""
        cpu_s, began_s = time.process_time(), time.perf_counter()
        watch = asyncio.get_running_loop().create_task(self._watch())
        try:
            await work
        finally:
            watch.cancel()
            self._connections.close()
        took_s = time.perf_counter() - began_s
        return Pulse(tuple(self._lag_s), (time.process_time() - cpu_s) / took_s)

    async def _one(self, due_s: float | None, message: Message) -> None:
        call = Call(due_s)
        self.calls.append(call)
        try:
            await self._connections.run(call, message)
        except asyncio.CancelledError:
            if call.fate is Fate.PENDING:
                call.fate, call.ended_s = Fate.CUT, self.now()
            raise
        finally:
            self._on_end(call)

    async def _all(self, work: Sequence[Work]) -> None:
        """Waits for all of it; what is left when this is told to stop is cancelled."""
        tasks = [asyncio.ensure_future(each) for each in work]
        everything: asyncio.Future[Any] = asyncio.gather(*tasks)
        stop: asyncio.Future[Any] = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait([stop, everything], return_when=asyncio.FIRST_COMPLETED)
            if everything.done():
                everything.result()
        finally:
            await _cancelled([everything, *tasks, stop])

    async def _watch(self) -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(_LOOK_EVERY_S)
            self._lag_s.append(max(0.0, time.perf_counter() - before - _LOOK_EVERY_S))


async def _cancelled(tasks: Sequence[asyncio.Future[Any]]) -> None:
    """Ends those that have not ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

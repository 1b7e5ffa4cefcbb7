"""Drives requests: one after the other, as many at a time as asked, on a schedule, all at once.

Watches itself meanwhile: how late it was, and whether it was what held things up.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from orch_sidecar.tools.bench.load.call import Ask, Call, Fate, Pulse
from orch_sidecar.tools.bench.load.client import Connections
from orch_sidecar.tools.bench.load.endpoint import Endpoint
from orch_sidecar.tools.bench.load.interrupt import cancelled
from orch_sidecar.tools.bench.load.prompts import UsedUp

_LOOK_EVERY_S: Final = 0.02

# Who is turned away at once and asks again at once does nothing but ask.
PAUSE_S: Final = 0.5

# Besides connections: the event loop's own files, the terminal, the interpreter's.
_OTHER_FILES: Final = 64

Work = Coroutine[Any, Any, None]


class TooManyConnections(Exception):
    """This process may not have as many open files as there would be connections."""


def allow(connections: int) -> None:
    """Lets this process have so many at once, and as many more as it may.

    Raises TooManyConnections where the hard limit is below that.
    """
    needed = connections + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise TooManyConnections(
            f"{connections} requests at once need {needed} open files, and this process may have "
            f"{hard} (ulimit -Hn)"
        )
    if soft != hard:
        # Without a hard limit there is still what the kernel can count to for one process.
        most = max(soft, needed) if hard == resource.RLIM_INFINITY else hard
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


@contextmanager
def _no_collection() -> Iterator[None]:
    """Requests leave no reference cycles, and a look for some takes the time of several tokens."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class Load:
    """The requests of one run, on one event loop."""

    def __init__(
        self,
        endpoint: Endpoint,
        on_end: Callable[[Call], None],
        stopping: asyncio.Event | None = None,
    ) -> None:
        """`on_end`: called with each call that has ended. `stopping`: once it is set, nothing
        more is sent, and what is under way is cut."""
        self._on_end = on_end
        self._stopping = asyncio.Event() if stopping is None else stopping
        self._began_s = time.perf_counter()
        self._connections = Connections(endpoint, self.now)
        self._lag_s: list[float] = []
        self.stopped = False  # before its end
        self.ended_by = ""  # what it was that ended it, if not somebody
        self.calls: list[Call] = []

    def now(self) -> float:
        """Seconds since the start of the run."""
        return time.perf_counter() - self._began_s

    async def closed(
        self, asks: Iterator[Ask], clients: int, enough: Callable[[int, float], bool]
    ) -> None:
        """So many clients, each of which asks again when its answer has ended.

        `enough`: told how many requests were sent and how long it has taken, whether to end.
        """

        async def client() -> None:
            ask, free_s = next(asks), self.now()
            while not enough(len(self.calls), self.now()):
                call = self._begun(Call(free_s=free_s))
                sending = asyncio.ensure_future(self._one(call, ask))
                try:
                    await asyncio.sleep(0)  # it is on its way
                    ask = next(asks)  # made while the engine is at work
                    await sending
                finally:
                    sending.cancel()
                if call.fate is not Fate.ANSWERED:
                    await asyncio.sleep(PAUSE_S)
                free_s = self.now()

        await self._all([client() for _ in range(clients)])

    async def open(self, asks: Iterator[Ask], due_s: Sequence[float]) -> None:
        """Each request when it is due, whatever became of those before it."""
        tasks: list[asyncio.Task[None]] = []

        async def sending() -> None:
            for at_s in due_s:
                ask = next(asks)  # made before it is due
                await self._until(at_s)
                call = self._begun(Call(due_s=at_s))
                tasks.append(asyncio.create_task(self._one(call, ask)))
            await asyncio.gather(*tasks)

        try:
            await self._all([sending()])
        finally:
            await cancelled(tasks)

    async def at_once(self, asks: Sequence[Ask]) -> None:
        """All of them, as fast as they can be sent."""
        due_s = self.now()
        await self._all([self._one(self._begun(Call(due_s=due_s)), ask) for ask in asks])

    async def watched(self, work: Work) -> Pulse:
        """Runs the work, from which on time is counted, and watches this process meanwhile."""
        with _no_collection():
            cpu_s, self._began_s = time.process_time(), time.perf_counter()
            watch = asyncio.create_task(self._watch())
            try:
                await work
            finally:
                watch.cancel()
                self._connections.close()
            share = (time.process_time() - cpu_s) / self.now()
        return Pulse(tuple(self._lag_s), share)

    def _begun(self, call: Call) -> Call:
        self.calls.append(call)
        return call

    async def _one(self, call: Call, ask: Ask) -> None:
        try:
            await self._connections.run(call, ask)
        finally:
            if call.fate is Fate.PENDING:
                call.fate, call.ended_s = Fate.CUT, self.now()
            self._on_end(call)

    async def _until(self, at_s: float) -> None:
        """Never returns early: an event loop's timers are true to a millisecond, either way."""
        left_s = at_s - self.now()
        while left_s > 0:
            await asyncio.sleep(left_s)
            left_s = at_s - self.now()

    async def _all(self, work: Sequence[Work]) -> None:
        """Waits for all of it; what is left when this is told to stop, or when there is nothing
        more to ask, is cancelled."""
        tasks = [asyncio.ensure_future(each) for each in work]
        everything: asyncio.Future[Any] = asyncio.gather(*tasks)
        stop: asyncio.Future[Any] = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait([stop, everything], return_when=asyncio.FIRST_COMPLETED)
            if everything.done():
                everything.result()
            else:
                self.stopped = True
        except UsedUp as error:
            self.stopped, self.ended_by = True, str(error)
        finally:
            await cancelled([everything, *tasks, stop])

    async def _watch(self) -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(_LOOK_EVERY_S)
            self._lag_s.append(max(0.0, time.perf_counter() - before - _LOOK_EVERY_S))

"""The load generator: a closed loop, or an open loop on a schedule.

It measures its own event loop and CPU meanwhile, to detect when the client is the bottleneck. What
it and other work does ends early with Ctrl-C and SIGTERM, which become an event to wait for.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import signal
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from orch_sidecar.tools.arguments import Unavailable
from orch_sidecar.tools.bench.load.call import Call, ClientHealth, Fate, Request
from orch_sidecar.tools.bench.load.client import Client
from orch_sidecar.tools.bench.load.endpoint import Endpoint

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

_T = TypeVar("_T")


class Interrupted(Unavailable):
    """The user interrupted the run."""


@contextmanager
def interrupts() -> Iterator[asyncio.Event]:
    """Yields an event that each signal sets and its handler clears; main thread only."""
    loop = asyncio.get_running_loop()
    event = asyncio.Event()
    for number in _SIGNALS:
        loop.add_signal_handler(number, event.set)
    try:
        yield event
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


async def unless_interrupted(event: asyncio.Event, work: Coroutine[Any, Any, _T]) -> _T:
    """Returns the result of the work. Cancels it and raises Interrupted once the event is set."""
    doing, waiting = asyncio.ensure_future(work), asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait([doing, waiting], return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            return doing.result()
        raise Interrupted("the user interrupted the run")
    finally:
        await cancel_and_wait([doing, waiting])


async def cancel_and_wait(tasks: Sequence[asyncio.Future[Any]]) -> None:
    """Cancels the tasks that still run, and waits until all have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def side_by_side(*work: Coroutine[Any, Any, None]) -> None:
    """Performs several works at the same time."""
    async with asyncio.TaskGroup() as tasks:
        for each in work:
            tasks.create_task(each)


_SAMPLE_INTERVAL_S: Final = 0.02

# A client that is rejected at once must not retry in a tight loop.
RETRY_DELAY_S: Final = 0.5

_MANY_FILES: Final = 65_536

Work = Coroutine[Any, Any, None]


def raise_file_limit() -> None:
    """Raises the soft limit on open files: each connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Without a hard limit the kernel still has a maximum per process.
    most = max(soft, _MANY_FILES) if hard == resource.RLIM_INFINITY else hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


@contextmanager
def without_collection() -> Iterator[None]:
    """Disables garbage collection: requests leave no cycles, and a run takes several tokens."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class LoadGenerator:
    """Sends the requests of one run on one event loop.

    `closed_loop` and `open_loop` return the work that `run` performs.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        on_end: Callable[[], None] = lambda: None,
        stopping: asyncio.Event | None = None,
    ) -> None:
        """`on_end`: called whenever a call has ended. `stopping`: once it is set, no more
        requests are sent and those in flight are cancelled."""
        self._on_end = on_end
        self._stopping = asyncio.Event() if stopping is None else stopping
        self._began_s = time.perf_counter()
        self._client = Client(endpoint, self.now)
        self._lag_s: list[float] = []
        self.stopped = False  # ended early
        self.ended = 0  # calls
        self.calls: list[Call] = []

    def now(self) -> float:
        """Returns the seconds since the start of the run."""
        return time.perf_counter() - self._began_s

    async def closed_loop(
        self, requests: Iterator[Request], clients: int, enough: Callable[[int, float], bool]
    ) -> None:
        """Runs that many clients, each of which sends its next request when one has ended.

        `enough`: given the requests sent and the seconds passed, whether to stop sending.
        """

        async def client() -> None:
            request, free_s = next(requests), self.now()
            while not enough(len(self.calls), self.now()):
                call = self.record(Call(free_s=free_s, service_class=request.service_class))
                sending = asyncio.ensure_future(self.send(call, request))
                try:
                    await asyncio.sleep(0)  # lets it be sent
                    request = next(requests)  # built while the engine works
                    await sending
                finally:
                    sending.cancel()
                if call.fate is not Fate.ANSWERED:
                    await asyncio.sleep(RETRY_DELAY_S)
                free_s = self.now()

        await self.until_stopped(*(client() for _ in range(clients)))

    async def open_loop(self, requests: Iterator[Request], due_s: Sequence[float]) -> None:
        """Sends each request when it is due, whether or not earlier ones have ended."""

        async def sending() -> None:
            async with asyncio.TaskGroup() as tasks:
                for at_s in due_s:
                    request = next(requests)  # built before it is due
                    await self._sleep_until(at_s)
                    call = self.record(Call(due_s=at_s, service_class=request.service_class))
                    tasks.create_task(self.send(call, request))

        await self.until_stopped(sending())

    async def run(self, work: Work) -> ClientHealth:
        """Performs the work, whose start is second 0, and returns this process's health."""
        raise_file_limit()
        with without_collection():
            cpu_s, self._began_s = time.process_time(), time.perf_counter()
            watch = asyncio.create_task(self._sample_lag())
            try:
                await work
            finally:
                watch.cancel()
                self._client.close()
            share = (time.process_time() - cpu_s) / self.now()
        return ClientHealth(tuple(self._lag_s), share)

    def record(self, call: Call) -> Call:
        """Adds a call that is about to be sent."""
        self.calls.append(call)
        return call

    async def send(self, call: Call, request: Request) -> None:
        """Sends a request, and returns when its call has ended."""
        try:
            await self._client.run(call, request)
        finally:
            if call.fate is Fate.PENDING:
                call.fate, call.ended_s = Fate.CUT, self.now()
            self.ended += 1
            self._on_end()

    async def _sleep_until(self, at_s: float) -> None:
        """Never returns early, although an event loop's timer may fire a millisecond early."""
        left_s = at_s - self.now()
        while left_s > 0:
            await asyncio.sleep(left_s)
            left_s = at_s - self.now()

    async def until_stopped(self, *work: Work) -> None:
        """Performs work side by side; cancels what is left of it on `stopping`."""
        try:
            await unless_interrupted(self._stopping, side_by_side(*work))
        except Interrupted:
            self.stopped = True

    async def _sample_lag(self) -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(_SAMPLE_INTERVAL_S)
            self._lag_s.append(max(0.0, time.perf_counter() - before - _SAMPLE_INTERVAL_S))

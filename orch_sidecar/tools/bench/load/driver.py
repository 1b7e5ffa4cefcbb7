"""The load generator: a closed loop, or an open loop on a schedule.

It measures its own event loop and CPU meanwhile, to detect when the client is the bottleneck.
Ctrl-C and SIGTERM cancel the task that measures: what can go on without the rest catches that.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from orch_sidecar.tools.arguments import Unavailable
from orch_sidecar.tools.bench.load.call import TIME_DIGITS, Call, Fate, Request, shown
from orch_sidecar.tools.bench.load.endpoint import Endpoint
from orch_sidecar.tools.bench.load.response import Response
from orch_sidecar.wire.client_connections import raise_descriptor_limit
from orch_sidecar.wire.engine_connection import ConnectionPool

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

_T = TypeVar("_T")

Work = Coroutine[Any, Any, None]


class Interrupted(Unavailable):
    """The user interrupted the run."""


@contextmanager
def cancelled_by_signals() -> Iterator[None]:
    """Lets each Ctrl-C and SIGTERM cancel the running task; main thread only.

    Raises Interrupted for one that nothing within has caught.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    for number in _SIGNALS:
        loop.add_signal_handler(number, task.cancel)
    try:
        with interruptible():
            yield
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


@contextmanager
def interruptible() -> Iterator[None]:
    """Lets a cancellation of the running task end what is within only: raises Interrupted."""
    try:
        yield
    except asyncio.CancelledError:
        task = asyncio.current_task()
        assert task is not None
        while task.uncancel():  # signals that came meanwhile mean the same
            pass
        raise Interrupted("the user interrupted the run") from None


async def until_seen(work: Work, watch: Coroutine[Any, Any, _T]) -> _T | None:
    """Performs the work until the watch has seen something: returns that, None if it has not.

    Cancels what is left of both, and waits for its end.
    """
    both = working, watching = asyncio.ensure_future(work), asyncio.ensure_future(watch)
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else watching.result()
    finally:
        for each in both:
            each.cancel()
        await asyncio.gather(*both, return_exceptions=True)


async def side_by_side(*work: Work) -> None:
    """Performs several pieces of work at the same time."""
    async with asyncio.TaskGroup() as tasks:
        for each in work:
            tasks.create_task(each)


_SAMPLE_INTERVAL_S: Final = 0.02

# Connections beyond a server's listen backlog (1024 in the sidecar, 128 elsewhere) are dropped by
# its kernel and retried after a second.
CONNECTING_AT_ONCE: Final = 64
# Where nothing answers, the kernel alone would go on trying for longer.
_CONNECT_S: Final = 60.0

# A client that is rejected at once must not retry in a tight loop.
RETRY_DELAY_S: Final = 0.5


@contextmanager
def without_collection() -> Iterator[None]:
    """Disables garbage collection, which takes as long as several tokens; neither requests nor
    decode steps leave cycles."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class LoadGenerator:
    """Sends the requests of one run on one event loop.

    `closed_loop` and `open_loop` return the work that `run` performs. If it is cancelled, no more
    requests are sent, and those in flight are cut. Of this process, `lag_s`: samples of how late
    its event loop woke up; `cpu_share`: its CPU time as a share of one core, after `run`.
    """

    def __init__(self, endpoint: Endpoint, on_end: Callable[[], None] = lambda: None) -> None:
        """`on_end`: called whenever a call has ended."""
        self._on_end = on_end
        self._began_s = time.perf_counter()
        self._pool = ConnectionPool(endpoint.url, _CONNECT_S)
        self._connecting = asyncio.Semaphore(CONNECTING_AT_ONCE)
        self.lag_s: list[float] = []
        self.ended = 0  # calls
        self.calls: list[Call] = []
        self.cpu_share = 0.0

    def now(self) -> float:
        """Returns the seconds since the start of the run, in whole microseconds."""
        return round(time.perf_counter() - self._began_s, TIME_DIGITS)

    async def closed_loop(
        self, requests: Iterator[Request], clients: int, least_requests: int, least_s: float = 0.0
    ) -> None:
        """Runs that many clients, each of which sends its next request when one has ended, until
        all have sent so many and so many seconds have passed."""

        async def client() -> None:
            request, free_s = next(requests), self.now()
            while len(self.calls) < least_requests or self.now() < least_s:
                call = Call(free_s=free_s, service_class=request.service_class)
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

        await side_by_side(*(client() for _ in range(clients)))

    async def open_loop(self, requests: Iterator[Request], due_s: Sequence[float]) -> None:
        """Sends each request when it is due, whether or not earlier ones have ended."""
        async with asyncio.TaskGroup() as tasks:
            for at_s in due_s:
                request = next(requests)  # built before it is due
                while (left_s := at_s - self.now()) > 0:  # noqa: ASYNC110 (a timer may fire early)
                    await asyncio.sleep(left_s)
                call = Call(due_s=at_s, service_class=request.service_class)
                tasks.create_task(self.send(call, request))

    async def run(self, work: Work) -> None:
        """Performs the work, whose start is second 0."""
        raise_descriptor_limit()  # each connection is one
        with without_collection():
            cpu_s, self._began_s = time.process_time(), time.perf_counter()
            try:
                await until_seen(work, self._sample_lag())
            finally:
                self._pool.close()
                self.cpu_share = (time.process_time() - cpu_s) / self.now()

    def send(self, call: Call, request: Request) -> Work:
        """Records a call at once; returns the work that sends it, until it has ended.

        Its connection is an idle or a new one; it is closed if the work is cancelled.
        """
        self.calls.append(call)
        return self._send(call, request)

    async def _send(self, call: Call, request: Request) -> None:
        began_s, connection = self.now(), self._pool.take()
        try:
            if connection is None:
                async with self._connecting:
                    began_s = self.now()
                    connection = await self._pool.acquire()
            call.sent_s = began_s
            response = Response(call, request, self.now)
            if connection.open:
                connection.send(response, request.message)
            else:
                response.lost(None)
            try:
                await response.ended
            finally:
                if response.reusable:
                    self._pool.give_back(connection)
                else:
                    connection.close()
        except OSError as error:
            why = error.strerror or str(error) or f"not within {_CONNECT_S:g} s"
            call.fate, call.why = Fate.FAILED, f"connection failed: {shown(why)}"
            call.ended_s = self.now()
        finally:
            if call.fate is Fate.PENDING:
                call.fate, call.ended_s = Fate.CUT, self.now()
            self.ended += 1
            self._on_end()

    async def _sample_lag(self) -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(_SAMPLE_INTERVAL_S)
            self.lag_s.append(max(0.0, time.perf_counter() - before - _SAMPLE_INTERVAL_S))

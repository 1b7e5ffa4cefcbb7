"""Turns Ctrl-C and SIGTERM into an event to wait for."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from orch_sidecar.tools.arguments import Unavailable

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

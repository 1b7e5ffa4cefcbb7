"""Ctrl-C, as an event that can be waited for. SIGTERM is meant alike."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

_T = TypeVar("_T")


class Interrupted(Exception):
    """Somebody does not want to wait any longer."""


@contextmanager
def interrupts() -> Iterator[asyncio.Event]:
    """Set by each signal; who has done something about it clears it. For the main thread."""
    loop = asyncio.get_running_loop()
    event = asyncio.Event()
    for number in _SIGNALS:
        loop.add_signal_handler(number, event.set)
    try:
        yield event
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


async def unless(event: asyncio.Event, work: Coroutine[Any, Any, _T]) -> _T:
    """What the work returns. Raises Interrupted once the event is set; the work is cancelled."""
    doing, waiting = asyncio.ensure_future(work), asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait([doing, waiting], return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            return doing.result()
        raise Interrupted("it was stopped")
    finally:
        await cancelled([doing, waiting])


async def cancelled(tasks: Sequence[asyncio.Future[Any]]) -> None:
    """Ends those that have not ended, and waits until they have."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

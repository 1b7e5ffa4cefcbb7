"""Reads files in daemon threads, with a timeout.

A file system that hangs (a network share whose server is gone) blocks the reading thread for an
unlimited time, and no signal ends that. The threads of the event loop's pool are joined when the
process exits; these are not. A read only returns a result, so one that ends after its timeout
changes nothing.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, TypeVar

_Result = TypeVar("_Result")

# Files of settings and keys are small; a healthy file system takes milliseconds, a busy one with
# a cold cache a second.
MAX_READ_S: Final = 5.0


class ReadTimeout(OSError):
    """A read did not end in time, or the previous one has not ended yet."""


class FileReader:
    """Performs one read at a time. For one event loop."""

    def __init__(self, what: str) -> None:
        """`what`: names what is read, in error texts."""
        self._what = what
        self._running: Future[object] | None = None

    async def read(self, call: Callable[[], _Result]) -> _Result:
        """Returns or raises what the call does. Raises ReadTimeout."""
        if self._running is not None and not self._running.done():
            raise self._timeout()
        result: Future[_Result] = in_daemon_thread(call)
        self._running = result  # type: ignore[assignment] # only asked whether it has ended
        try:
            async with asyncio.timeout(MAX_READ_S):
                return await asyncio.wrap_future(result)
        except TimeoutError:
            raise self._timeout() from None

    def read_at_start(self, call: Callable[[], _Result]) -> _Result:
        """Does the same where no event loop runs yet: it blocks."""
        try:
            return in_daemon_thread(call).result(MAX_READ_S)
        except TimeoutError:
            raise self._timeout() from None

    def _timeout(self) -> ReadTimeout:
        return ReadTimeout(
            f"{self._what} cannot be read within {MAX_READ_S:g} s: the file system does not respond"
        )


def in_daemon_thread(call: Callable[[], _Result]) -> Future[_Result]:
    """Calls in a thread that does not prevent the process from exiting."""
    future: Future[_Result] = Future()
    future.set_running_or_notify_cancel()  # like a read, it cannot be cancelled

    def work() -> None:
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001 (raised in the caller's thread)
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=work, name="blocking call", daemon=True).start()
    return future

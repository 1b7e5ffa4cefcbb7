"""Reads files in threads that nobody has to wait for.

A file system that hangs (a network share whose server is gone) blocks the thread that reads for as
long as it likes, and no signal ends that. The event loop's own pool of threads is joined when a
process leaves; these are not. What a read finds is its result and nothing else, so that one that
ends too late changes nothing.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, TypeVar

Found = TypeVar("Found")

# Files of settings and keys are small; a healthy file system takes milliseconds, a busy one with
# a cold cache a second.
READ_WITHIN_S: Final = 5.0


class ReadTimeout(OSError):
    """A read did not end in time, or the one before it has not ended yet."""


class FileReader:
    """Performs one read at a time. Lives on one event loop."""

    def __init__(self, what: str) -> None:
        """`what` is read, in words, for the text of errors."""
        self._what = what
        self._running: Future[object] | None = None

    async def read(self, call: Callable[[], Found]) -> Found:
        """What the call returns or raises. Raises ReadTimeout."""
        if self._running is not None and not self._running.done():
            raise self._timeout()
        result: Future[Found] = _begun(call)
        self._running = result  # type: ignore[assignment] # only asked whether it has ended
        try:
            async with asyncio.timeout(READ_WITHIN_S):
                return await asyncio.wrap_future(result)
        except TimeoutError:
            raise self._timeout() from None

    def read_at_start(self, call: Callable[[], Found]) -> Found:
        """The same, for when no event loop has anything else to do."""
        try:
            return _begun(call).result(READ_WITHIN_S)
        except TimeoutError:
            raise self._timeout() from None

    def _timeout(self) -> ReadTimeout:
        return ReadTimeout(
            f"{self._what} cannot be read within {READ_WITHIN_S:g} s: the file system does not "
            "answer"
        )


def _begun(call: Callable[[], Found]) -> Future[Found]:
    """Calls in a thread that does not keep the process from leaving."""
    future: Future[Found] = Future()
    future.set_running_or_notify_cancel()  # it cannot be cancelled, as a read cannot

    def work() -> None:
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001 (it is the caller's, in another thread)
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=work, name="read files", daemon=True).start()
    return future

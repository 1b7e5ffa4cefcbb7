"""Writes lines in a thread of its own: to a file, or to standard output.

The file may be moved away at any time, as logrotate does: the next lines go to a new one. What
cannot be written, or not fast enough, is dropped and counted; it holds up nothing.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

logger = logging.getLogger("orch.sidecar")

STDOUT: Final = "-"
# Lines that wait to be written: some seconds of the most that a sidecar serves.
MAX_LINES: Final = 32_768

# Returns a line, without its end; called in the thread.
Line = Callable[[], bytes]


class LineWriter:
    """Writes lines in the order in which it gets them. `dropped`: how many were not written."""

    def __init__(self, path: str, most: int = MAX_LINES) -> None:
        """Opens the file. Raises OSError, with the remedy, if that is not possible."""
        self._path = None if path == STDOUT else Path(path)
        self._most = most
        try:
            self._fd = self._open()
        except OSError as error:
            text = (
                f"request_log (--request-log, ORCH_REQUEST_LOG): {path!r}: {error.strerror}: give "
                f"a file that can be written, or {STDOUT} for standard output"
            )
            raise OSError(error.errno, text) from error
        self._batches: deque[Sequence[Line]] = deque()
        self._waiting = 0  # lines; under the lock, as is `dropped`
        self.dropped = 0
        self._lock = threading.Lock()
        self._wakes = threading.Event()
        self._closing = False
        self._failed = False
        self._torn = False  # the file ends in a part of a line
        self._writing = threading.Thread(target=self._run, name="request log", daemon=True)
        self._writing.start()

    def write(self, lines: Sequence[Line]) -> None:
        """Queues lines to be written; drops those that exceed the queue."""
        with self._lock:
            taken = lines[: max(0, self._most - self._waiting)]
            self._waiting += len(taken)
            self.dropped += len(lines) - len(taken)
        if taken:
            self._batches.append(taken)
            self._wakes.set()

    def close(self, within_s: float) -> None:
        """Writes what it has, within this time, and ends. Blocks."""
        self._closing = True
        self._wakes.set()
        self._writing.join(within_s)

    def _run(self) -> None:
        while True:
            self._wakes.wait()
            self._wakes.clear()
            while self._batches:
                self._write(self._batches.popleft())
            if self._closing and not self._batches:
                if self._path is not None:
                    os.close(self._fd)
                return

    def _write(self, batch: Sequence[Line]) -> None:
        written = 0
        try:
            data = b"".join(map(_made, batch))
            if self._was_moved():
                moved, self._fd = self._fd, self._open()
                os.close(moved)
                self._torn = False
            if self._torn:
                self._append(b"\n")
            end = 0
            while end < len(data):
                begin, end = end, end + self._append(memoryview(data)[end:])
                written += data.count(b"\n", begin, end)
            self._failed = False
        except OSError as error:
            if not self._failed:
                logger.warning("the request log cannot be written: %s", error)
            self._failed = True
        with self._lock:
            self._waiting -= len(batch)
            self.dropped += len(batch) - written

    def _append(self, data: bytes | memoryview) -> int:
        """Writes as much as the file takes, which it returns."""
        length = os.write(self._fd, data)
        self._torn = data[length - 1] != ord("\n")
        return length

    def _open(self) -> int:
        if self._path is None:
            return sys.stdout.fileno()
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def _was_moved(self) -> bool:
        """Whether the path names no longer the file that is open."""
        if self._path is None:
            return False
        with suppress(FileNotFoundError):
            return not os.path.samestat(self._path.stat(), os.fstat(self._fd))
        return True


def _made(line: Line) -> bytes:
    """Returns a line with its end; empty if it cannot be made, which costs no other line."""
    try:
        return line() + b"\n"
    except Exception as error:  # noqa: BLE001 (it must not end the thread)
        logger.warning("a line of the request log could not be made: %r", error)
        return b""

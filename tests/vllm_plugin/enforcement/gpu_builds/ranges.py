"""A file that requests only the ranges that are read from it."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Final

# Members of a wheel are some 10 KiB, and adjacent ones are often read in sequence.
_BUFFER_BYTES: Final = 128 * 1024


class _Ranges(io.RawIOBase):
    def __init__(self, size: int, read_range: Callable[[int, int], bytes]) -> None:
        self._size = size
        self._read_range = read_range
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise ValueError(f"seek to {base + offset}, before the start of the file")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override] # Buffer is of Python 3.12
        stop = min(self._position + len(buffer), self._size)
        if stop <= self._position:
            return 0
        part = self._read_range(self._position, stop)
        buffer[: len(part)] = part
        self._position += len(part)
        return len(part)


def open_ranges(size: int, read_range: Callable[[int, int], bytes]) -> io.BufferedReader:
    """Opens a file of `size` bytes; `read_range(start, stop)` returns bytes start to stop - 1."""
    return io.BufferedReader(_Ranges(size, read_range), _BUFFER_BYTES)

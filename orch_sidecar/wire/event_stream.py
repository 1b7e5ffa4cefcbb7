"""Parses server-sent events from the bytes of a stream.

Pure. An empty line completes an event; comments and fields other than `event`
and `data` are ignored. The memory for an incomplete event is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator


class EventStream:
    """Parses the events of one stream."""

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes`: the limit of the data of an event, and of each line."""
        self._max_bytes = max_bytes
        self._line = bytearray()
        self._name = ""
        self._data: list[bytes] = []
        self._data_bytes = 0

    def feed(self, piece: bytes) -> Iterator[tuple[str, bytes]]:
        """Yields the name and the data of each event that `piece` completes.

        Raises ValueError if an event or a line exceeds the limit, or a name is not UTF-8.
        """
        *ends, rest = piece.split(b"\n")
        for end in ends:
            line = bytes(self._line) + end if self._line else end
            self._line.clear()
            if (event := self._parse(line.removesuffix(b"\r"))) is not None:
                yield event
        self._line += rest
        self._check(len(self._line))

    def _parse(self, line: bytes) -> tuple[str, bytes] | None:
        if not line:
            name, data = self._name, self._data
            self._name, self._data, self._data_bytes = "", [], 0
            return (name, b"\n".join(data)) if data else None
        self._check(len(line))
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"event":
            self._name = value.decode()
        elif field == b"data":
            self._data.append(value)
            self._data_bytes += len(value) + 1  # line ends count, and so do empty lines
            self._check(self._data_bytes)
        return None

    def _check(self, size_bytes: int) -> None:
        if size_bytes > self._max_bytes:
            raise ValueError(f"an event exceeds the limit of {self._max_bytes} bytes")

"""Finds the ends of the bodies of HTTP/1.1 responses, and checks their framing.

Pure: bytes in, bytes out, as strict as `http1`. The `feed` of a body takes bytes of the socket and
returns those to forward: whole chunks, unchanged, so that forwarded bytes never end inside of a
chunk. It also appends the content, without framing, to the reader's list; if it raises, the list
may contain more than was forwarded.
"""

from __future__ import annotations

import re
from collections import deque
from typing import Final

from orch_sidecar.wire.http1 import FIELD, FramingError, Head

# Larger chunks are forwarded in pieces instead of being buffered.
MAX_BUFFERED_BYTES: Final = 65_536
MAX_TRAILER_BYTES: Final = 16_384
LAST_CHUNK: Final = b"0\r\n\r\n"

# chunk-size, and extensions without quoted line breaks
_CHUNK_LINE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;[\t\x20-\x7e\x80-\xff]*)?\r\n")
_MAX_CHUNK_LINE: Final = 1024

# The first line of a chunk that is `length` bytes long with its framing, as servers write it. An
# event of a stream is such a chunk, and nearly always all that a read returns: comparing costs a
# third of parsing.
_LINE_OF_CHUNK: Final = {
    len(line) + size + 2: line for size in range(1, 4096) for line in (b"%x\r\n" % size,)
}

# Receives the content of a body; without a reader it is discarded, which costs the least.
Content = list[bytes] | deque[bytes]


def _discard() -> Content:
    return deque(maxlen=0)


class LengthBody:
    """A body delimited by content-length."""

    __slots__ = ("_content", "_remaining", "done")
    delimits_itself = True

    def __init__(self, length: int, content: Content | None = None) -> None:
        self._content = _discard() if content is None else content
        self._remaining = length
        self.done = not length

    def feed(self, data: bytes) -> bytes:
        remaining = self._remaining = self._remaining - len(data)
        if remaining <= 0:
            if remaining:
                raise FramingError("there are bytes after the end of the body")
            self.done = True
        self._content.append(data)
        return data


class CloseBody:
    """A body delimited by the end of the connection."""

    __slots__ = ("_content",)
    delimits_itself = False
    done = False

    def __init__(self, content: Content | None = None) -> None:
        self._content = _discard() if content is None else content

    def feed(self, data: bytes) -> bytes:
        self._content.append(data)
        return data


class ChunkedBody:
    """A chunked body, forwarded with its framing."""

    __slots__ = ("_content", "_needs_crlf", "_pending", "_remaining", "done")
    delimits_itself = True

    def __init__(self, content: Content | None = None) -> None:
        self._content = _discard() if content is None else content
        self._pending = b""  # the beginning of an incomplete chunk, line or trailer
        self._remaining = 0  # payload bytes still expected of a chunk forwarded in pieces
        self._needs_crlf = False  # the CRLF of such a chunk is still expected
        self.done = False

    @property
    def within_chunk(self) -> bool:
        """Whether the bytes forwarded so far end inside of a chunk (a large one)."""
        return self._needs_crlf

    def feed(self, data: bytes) -> bytes:
        """Returns the bytes to forward. Raises FramingError."""
        if self._pending:
            data = self._pending + data
            self._pending = b""
        if self._remaining or self._needs_crlf:
            return self._feed_partial_chunk(data)
        end = len(data)
        line_of_whole = _LINE_OF_CHUNK.get(end)
        if line_of_whole is not None and data.startswith(line_of_whole) and data.endswith(b"\r\n"):
            self._content.append(data[len(line_of_whole) : -2])
            return data
        position = 0
        content = self._content
        while position < end:
            line = _CHUNK_LINE.match(data, position, position + _MAX_CHUNK_LINE)
            if line is None:
                self._keep_line(data, position)
                break
            start = line.end()
            size = int(line[1], 16)
            if size == 0:
                return self._finish(data, position, start)
            after = start + size + 2
            if after > end:
                if end - position > MAX_BUFFERED_BYTES:
                    return self._begin_partial_chunk(data, start, size)
                self._pending = data[position:]
                break
            if data[after - 2 : after] != b"\r\n":
                raise FramingError("the data of a chunk does not end at its size")
            content.append(data[start : after - 2])
            position = after
        return data if position == end else data[:position]

    def _keep_line(self, data: bytes, position: int) -> None:
        rest = data[position:]
        if b"\n" in rest or len(rest) > _MAX_CHUNK_LINE or not _may_become_chunk_line(rest):
            raise FramingError(f"not a chunk size: {rest[:40]!r}")
        self._pending = rest

    def _finish(self, data: bytes, position: int, start: int) -> bytes:
        """Ends the body with the last chunk, at `position`; checks and omits its trailers."""
        before = data[:position]
        if data.startswith(b"\r\n", start):
            after = start + 2
        else:
            blank = data.find(b"\r\n\r\n", start)
            if (blank if blank >= 0 else len(data) - 3) - start > MAX_TRAILER_BYTES:
                raise FramingError(f"the trailer section is longer than {MAX_TRAILER_BYTES} bytes")
            if blank < 0:
                self._pending = data[position:]
                return before
            for field in data[start:blank].split(b"\r\n"):
                if not FIELD.fullmatch(field):
                    raise FramingError(f"not a trailer field: {field[:80]!r}")
            after = blank + 4
        if after != len(data):
            raise FramingError("there are bytes after the end of the body")
        self.done = True
        return before + LAST_CHUNK

    def _begin_partial_chunk(self, data: bytes, start: int, size: int) -> bytes:
        piece = data[start : start + size]
        self._content.append(piece)
        self._remaining = size - len(piece)
        self._needs_crlf = True
        if self._remaining == 0:
            self._pending = data[start + size :]
        return data[: start + len(piece)]

    def _feed_partial_chunk(self, data: bytes) -> bytes:
        piece = data[: self._remaining]
        self._content.append(piece)
        self._remaining -= len(piece)
        rest = data[len(piece) :]
        if self._remaining or not rest:
            return piece
        if len(rest) < 2 and rest == b"\r":
            self._pending = rest
            return piece
        if rest[:2] != b"\r\n":
            raise FramingError("the data of a chunk does not end at its size")
        self._needs_crlf = False
        try:
            return piece + b"\r\n" + self.feed(rest[2:])
        except FramingError:
            self._needs_crlf = True  # none of these bytes are forwarded
            raise


class DechunkedBody:
    """A chunked body, forwarded without its framing."""

    __slots__ = ("_chunked", "_content", "_payloads")
    delimits_itself = True

    def __init__(self, content: Content | None = None) -> None:
        self._content = _discard() if content is None else content
        self._payloads: list[bytes] = []
        self._chunked = ChunkedBody(self._payloads)

    @property
    def done(self) -> bool:
        return self._chunked.done

    def feed(self, data: bytes) -> bytes:
        """Returns the bytes to forward. Raises FramingError."""
        self._chunked.feed(data)
        payload = b"".join(self._payloads)
        self._payloads.clear()
        self._content.append(payload)
        return payload


_PARTIAL_CHUNK_LINE: Final = re.compile(
    rb"(?:[0-9A-Fa-f]{1,15}(?:[ \t]*(?:;[\t\x20-\x7e\x80-\xff]*)?)?\r?)?"
)


def _may_become_chunk_line(rest: bytes) -> bool:
    return _PARTIAL_CHUNK_LINE.fullmatch(rest) is not None


Body = LengthBody | CloseBody | ChunkedBody | DechunkedBody


def body_of(head: Head, *, dechunk: bool, content: Content | None = None) -> Body:
    """Returns the parser of the body that follows a head, in response to a GET or POST.

    `dechunk`: forward a chunked body without its framing. `content`: receives the content.
    """
    if head.status in (204, 304) or head.length == 0:
        return LengthBody(0)
    if head.chunked:
        return DechunkedBody(content) if dechunk else ChunkedBody(content)
    if head.length is not None:
        return LengthBody(head.length, content)
    return CloseBody(content)

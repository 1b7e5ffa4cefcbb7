"""HTTP/1.1 as an engine sends it: where the head ends, and where the body does.

Pure: bytes in, bytes out. Strict about framing (RFC 9112): what could be read in two ways is an
error, because a connection whose framing is in doubt must not be used again. A body object's
`feed` takes what the socket gave and returns what may be passed on: whole chunks as they came,
so that what has been passed on never ends inside of one. The same without framing is appended to
the list that a reader of the answer gives; when `feed` raises, more than what is passed on.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from orch_sidecar.api.headers import CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING, raw

MAX_HEAD_BYTES: Final = 65_536
# A chunk larger than this is passed on in pieces instead of being held back.
MAX_HELD_BYTES: Final = 65_536
MAX_TRAILER_BYTES: Final = 16_384
LAST_CHUNK: Final = b"0\r\n\r\n"

_CONNECTION: Final = raw(CONNECTION)
_CONTENT_LENGTH: Final = raw(CONTENT_LENGTH)
_TRANSFER_ENCODING: Final = raw(TRANSFER_ENCODING)
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: ([\t\x20-\x7e\x80-\xff]*))?")
_FIELD: Final = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([\t\x20-\x7e\x80-\xff]*)")
_DIGITS: Final = re.compile(rb"[0-9]{1,18}")
# chunk-size, and extensions without quoted line breaks
_CHUNK_LINE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;[\t\x20-\x7e\x80-\xff]*)?\r\n")
_MAX_CHUNK_LINE: Final = 1024


class FramingError(Exception):
    """The engine's bytes are not an HTTP/1.1 response that can be passed on."""


@dataclass(frozen=True, slots=True, eq=False)
class Head:
    """A response head. Field names are lower-case; values and order are as they came.

    Compared by identity: heads of the same bytes are the same object (see `_parse_block`).
    """

    status: int
    reason: bytes
    fields: tuple[tuple[bytes, bytes], ...]
    keep_alive: bool
    chunked: bool
    length: int | None


def parse_head(data: bytes) -> tuple[Head, int] | None:
    """Parses a response head. None: it is not complete yet. The int is where the body begins.

    Raises FramingError.
    """
    end = data.find(b"\r\n\r\n")
    # However the bytes arrive: up to 3 of the blank line's may be here without the last.
    if (end if end >= 0 else len(data) - 3) > MAX_HEAD_BYTES:
        raise FramingError(f"the response head is longer than {MAX_HEAD_BYTES} bytes")
    return None if end < 0 else (_parse_block(data[:end]), end + 4)


# An engine's heads repeat: within a second they differ in a content-length at most.
@lru_cache(maxsize=256)
def _parse_block(block: bytes) -> Head:
    lines = block.split(b"\r\n")
    status_line = _STATUS_LINE.fullmatch(lines[0])
    if status_line is None:
        raise FramingError(f"not a status line: {lines[0][:80]!r}")
    keep_alive = status_line[1] == b"1"
    chunked = False
    length: int | None = None
    fields: list[tuple[bytes, bytes]] = []
    for line in lines[1:]:
        match = _FIELD.fullmatch(line)
        if match is None:
            raise FramingError(f"not a header field: {line[:80]!r}")
        name, value = match[1].lower(), match[2].rstrip(b" \t")
        fields.append((name, value))
        if name == _CONTENT_LENGTH:
            if length is not None or not _DIGITS.fullmatch(value):
                raise FramingError(f"content-length {value[:40]!r} is doubled or no number")
            length = int(value)
        elif name == _TRANSFER_ENCODING:
            if chunked or value.lower() != b"chunked":
                raise FramingError(f"transfer-encoding {value[:40]!r} is not understood")
            chunked = True
        elif name == _CONNECTION:
            keep_alive = keep_alive and b"close" not in value.lower()
    if chunked and (length is not None or status_line[1] == b"0"):
        raise FramingError("transfer-encoding together with content-length, or in HTTP/1.0")
    reason = status_line[3] or b""
    return Head(int(status_line[2]), reason, tuple(fields), keep_alive, chunked, length)


# Where the content of a body goes; without a reader nowhere, which costs the least.
Content = list[bytes] | deque[bytes]


def _unread() -> Content:
    return deque(maxlen=0)


class LengthBody:
    """A body of a known length."""

    __slots__ = ("_content", "_left", "done")
    delimits_itself = True

    def __init__(self, length: int, content: Content | None = None) -> None:
        self._content = _unread() if content is None else content
        self._left = length
        self.done = not length

    def feed(self, data: bytes) -> bytes:
        left = self._left = self._left - len(data)
        if left <= 0:
            if left:
                raise FramingError("bytes after the end of the body")
            self.done = True
        self._content.append(data)
        return data


class CloseBody:
    """A body that ends with the connection."""

    __slots__ = ("_content",)
    delimits_itself = False
    done = False

    def __init__(self, content: Content | None = None) -> None:
        self._content = _unread() if content is None else content

    def feed(self, data: bytes) -> bytes:
        self._content.append(data)
        return data


class ChunkedBody:
    """A chunked body, passed on as it came."""

    __slots__ = ("_content", "_held", "_needs_crlf", "_owed", "done")
    delimits_itself = True

    def __init__(self, content: Content | None = None) -> None:
        self._content = _unread() if content is None else content
        self._held = b""  # the beginning of something that is not complete
        self._owed = 0  # payload bytes left of a chunk that is passed on in pieces
        self._needs_crlf = False  # such a chunk's payload is complete, its CRLF is not
        self.done = False

    @property
    def within_chunk(self) -> bool:
        """Whether what was passed on ends inside of a chunk (one that goes out in pieces)."""
        return self._needs_crlf

    def feed(self, data: bytes) -> bytes:
        """Returns what may be passed on. Raises FramingError."""
        if self._held:
            data = self._held + data
            self._held = b""
        if self._owed or self._needs_crlf:
            return self._feed_piece(data)
        end = len(data)
        position = 0
        content = self._content
        while position < end:
            line = _CHUNK_LINE.match(data, position, position + _MAX_CHUNK_LINE)
            if line is None:
                self._hold_line(data, position)
                break
            start = line.end()
            size = int(line[1], 16)
            if size == 0:
                return self._finish(data, position, start)
            after = start + size + 2
            if after > end:
                if end - position > MAX_HELD_BYTES:
                    return self._begin_piece(data, start, size)
                self._held = data[position:]
                break
            if data[after - 2 : after] != b"\r\n":
                raise FramingError("a chunk is longer than its size")
            content.append(data[start : after - 2])
            position = after
        return data if position == end else data[:position]

    def _hold_line(self, data: bytes, position: int) -> None:
        rest = data[position:]
        if b"\n" in rest or len(rest) > _MAX_CHUNK_LINE or not _may_become_chunk_line(rest):
            raise FramingError(f"not a chunk size: {rest[:40]!r}")
        self._held = rest

    def _finish(self, data: bytes, position: int, start: int) -> bytes:
        """The last chunk is at `position`; its trailer fields are checked and left out."""
        before = data[:position]
        if data.startswith(b"\r\n", start):
            after = start + 2
        else:
            blank = data.find(b"\r\n\r\n", start)
            if (blank if blank >= 0 else len(data) - 3) - start > MAX_TRAILER_BYTES:
                raise FramingError("the trailer section is too long")
            if blank < 0:
                self._held = data[position:]
                return before
            for field in data[start:blank].split(b"\r\n"):
                if not _FIELD.fullmatch(field):
                    raise FramingError(f"not a trailer field: {field[:80]!r}")
            after = blank + 4
        if after != len(data):
            raise FramingError("bytes after the end of the body")
        self.done = True
        return before + LAST_CHUNK

    def _begin_piece(self, data: bytes, start: int, size: int) -> bytes:
        piece = data[start : start + size]
        self._content.append(piece)
        self._owed = size - len(piece)
        self._needs_crlf = True
        if self._owed == 0:
            self._held = data[start + size :]
        return data[: start + len(piece)]

    def _feed_piece(self, data: bytes) -> bytes:
        piece = data[: self._owed]
        self._content.append(piece)
        self._owed -= len(piece)
        rest = data[len(piece) :]
        if self._owed or not rest:
            return piece
        if len(rest) < 2 and rest == b"\r":
            self._held = rest
            return piece
        if rest[:2] != b"\r\n":
            raise FramingError("a chunk is longer than its size")
        self._needs_crlf = False
        try:
            return piece + b"\r\n" + self.feed(rest[2:])
        except FramingError:
            self._needs_crlf = True  # nothing of this is passed on
            raise


class DechunkedBody:
    """A chunked body, passed on without the chunk framing."""

    __slots__ = ("_chunked", "_content", "_payloads")
    delimits_itself = True

    def __init__(self, content: Content | None = None) -> None:
        self._content = _unread() if content is None else content
        self._payloads: list[bytes] = []
        self._chunked = ChunkedBody(self._payloads)

    @property
    def done(self) -> bool:
        return self._chunked.done

    def feed(self, data: bytes) -> bytes:
        """Returns what may be passed on. Raises FramingError."""
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
    """The body that follows this head (of the answer to a GET or POST).

    `content`: gets what the body holds, without the framing, as `feed` passes it on.
    """
    if head.status in (204, 304) or head.length == 0:
        return LengthBody(0)
    if head.chunked:
        return DechunkedBody(content) if dechunk else ChunkedBody(content)
    if head.length is not None:
        return LengthBody(head.length, content)
    return CloseBody(content)

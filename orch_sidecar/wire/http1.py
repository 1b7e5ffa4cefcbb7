"""Parses HTTP/1.1 responses of an engine: their heads, and where their bodies end.

Pure: bytes in, values and bytes out. Strict about framing (RFC 9112): whatever is ambiguous is an
error, because a connection with unreliable framing must not be reused. The `feed` of a body takes
bytes of the socket and returns those to forward: whole chunks, unchanged, so that forwarded bytes
never end inside of a chunk. It also appends the content, without framing, to the reader's list; if
it raises, the list may contain more than was forwarded.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from orch_sidecar.api.headers import CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING, raw

MAX_HEAD_BYTES: Final = 65_536

_CONNECTION: Final = raw(CONNECTION)
_CONTENT_LENGTH: Final = raw(CONTENT_LENGTH)
_TRANSFER_ENCODING: Final = raw(TRANSFER_ENCODING)
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: ([\t\x20-\x7e\x80-\xff]*))?")
FIELD: Final = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([\t\x20-\x7e\x80-\xff]*)")
_DIGITS: Final = re.compile(rb"[0-9]{1,18}")

# Larger chunks are forwarded in pieces instead of being buffered.
MAX_BUFFERED_BYTES: Final = 65_536
MAX_TRAILER_BYTES: Final = 16_384
LAST_CHUNK: Final = b"0\r\n\r\n"

# chunk-size, and extensions without quoted line breaks
_CHUNK_LINE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;[\t\x20-\x7e\x80-\xff]*)?\r\n")
_MAX_CHUNK_LINE: Final = 1024

# By the length of a chunk with its framing: its first line, as servers write it. A read nearly
# always returns one event of a stream, which is such a chunk: comparing costs a third of parsing.
_LINE_OF_CHUNK: Final = {
    len(line) + size + 2: line for size in range(1, 4096) for line in (b"%x\r\n" % size,)
}


# The size in such a line. If a read returns many chunks, splitting it at all line ends costs a
# third of parsing them one by one.
_SIZE_IN_LINE: Final = {b"%x" % size: size for size in range(1, 4096)}


class FramingError(Exception):
    """The engine's bytes are not an HTTP/1.1 response that can be forwarded."""


@dataclass(frozen=True, slots=True, eq=False)
class Head:
    """A response head. Field names are lower-case; values and order are unchanged.

    Compared by identity: equal bytes give the same object (see `_parse_block`).
    """

    status: int
    reason: bytes
    fields: tuple[tuple[bytes, bytes], ...]
    keep_alive: bool
    chunked: bool
    length: int | None


def parse_head(data: bytes) -> tuple[Head, int] | None:
    """Parses a response head. Returns it and the offset of the body; None if it is incomplete.

    Raises FramingError.
    """
    end = data.find(b"\r\n\r\n")
    # Up to 3 bytes of the blank line may have arrived without the last: they do not count.
    if (end if end >= 0 else len(data) - 3) > MAX_HEAD_BYTES:
        raise FramingError(f"the response head is longer than {MAX_HEAD_BYTES} bytes")
    return None if end < 0 else (_parse_block(data[:end]), end + 4)


# An engine's heads repeat: within a second they differ at most in content-length.
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
        match = FIELD.fullmatch(line)
        if match is None:
            raise FramingError(f"not a header field: {line[:80]!r}")
        name, value = match[1].lower(), match[2].rstrip(b" \t")
        fields.append((name, value))
        if name == _CONTENT_LENGTH:
            if length is not None or not _DIGITS.fullmatch(value):
                raise FramingError(f"content-length {value[:40]!r} is repeated or not a number")
            length = int(value)
        elif name == _TRANSFER_ENCODING:
            if chunked or value.lower() != b"chunked":
                raise FramingError(
                    f"transfer-encoding {value[:40]!r} is not supported: only chunked is"
                )
            chunked = True
        elif name == _CONNECTION:
            keep_alive = keep_alive and b"close" not in value.lower()
    if chunked and (length is not None or status_line[1] == b"0"):
        raise FramingError("transfer-encoding is not allowed with content-length or in HTTP/1.0")
    reason = status_line[3] or b""
    return Head(int(status_line[2]), reason, tuple(fields), keep_alive, chunked, length)


# What the content of a body is appended to; without a reader it is discarded, which is cheapest.
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
        if line_of_whole is not None and data[-2:] == b"\r\n":  # faster than `endswith`
            start = len(line_of_whole)
            if data[:start] == line_of_whole:
                self._content.append(data[start:-2])
                return data
        if end <= MAX_BUFFERED_BYTES and data.endswith(b"\r\n") and self._feed_whole_chunks(data):
            return data
        return self._feed_one_by_one(data)

    def _feed_whole_chunks(self, data: bytes) -> bool:
        """Takes whole chunks without line ends in their payloads. False: these are not all such."""
        is_last = data.endswith(b"\r\n" + LAST_CHUNK)
        lines = (data[: -len(LAST_CHUNK)] if is_last else data).split(b"\r\n")
        payloads = lines[1::2]
        if list(map(_SIZE_IN_LINE.get, lines[:-1:2])) != list(map(len, payloads)):
            return False
        self._content.extend(payloads)
        self.done = is_last
        return True

    def _feed_one_by_one(self, data: bytes) -> bytes:
        """Takes chunks of any kind one by one. Returns the bytes to forward."""
        position, end = 0, len(data)
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

"""Parses the heads of HTTP/1.1 responses of an engine.

Pure: bytes in, values out. Strict about framing (RFC 9112): whatever is ambiguous is an error,
because a connection with unreliable framing must not be reused.
"""

from __future__ import annotations

import re
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

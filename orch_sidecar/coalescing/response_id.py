"""The response id within an answer: found as the engine writes it, replaced by a client's own.

Pure. vLLM makes it of the X-Request-Id with a word before it (`chatcmpl-`, `cmpl-`), and writes
it as the JSON field `id` of an answer, and of each event of a stream. In a text all quotes are
escaped, so that none can look like that field.
"""

from __future__ import annotations

import re
from typing import Final

_BEFORE: Final = re.compile(rb'"id":[ \t]?"[a-z-]{0,32}\Z')
_BEFORE_BYTES: Final = 48


class ResponseId:
    """The id in one answer, which is looked at in pieces that cut none in two."""

    __slots__ = ("_before", "_field", "_value")

    def __init__(self, request_id: str) -> None:
        """`request_id`: what the engine got as X-Request-Id."""
        self._value = request_id.encode() + b'"'
        self._before = b""
        self._field = b""

    @property
    def known(self) -> bool:
        """Whether it was seen."""
        return bool(self._field)

    def split(self, piece: bytes) -> list[bytes]:
        """The texts around each place of the field."""
        if not self._field and not self._find(piece):
            return [piece]
        return piece.split(self._field)

    def field_of(self, request_id: str) -> bytes:
        """The field, once it is known, as the answer to this X-Request-Id would have it."""
        return b'%b%b"' % (self._before, request_id.encode())

    def _find(self, piece: bytes) -> bool:
        at = piece.find(self._value)
        while at >= 0:
            match = _BEFORE.search(piece, max(0, at - _BEFORE_BYTES), at)
            if match is not None:
                self._before = match[0]
                self._field = self._before + self._value
                return True
            at = piece.find(self._value, at + 1)
        return False

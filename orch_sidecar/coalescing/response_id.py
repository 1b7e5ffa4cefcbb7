"""Finds the response id in a shared response, so that each client gets one of its own.

Pure. vLLM composes it of a prefix (`chatcmpl-`, `cmpl-`) and the X-Request-Id, and writes it as
the JSON field `id` of a response and of each event of a stream. Generated text cannot be mistaken
for that field: its quotes are escaped.
"""

from __future__ import annotations

import re
from typing import Final

_PREFIX: Final = re.compile(rb'"id":[ \t]?"[a-z-]{0,32}\Z')
_PREFIX_BYTES: Final = 48


class ResponseId:
    """The id of one response, which is read in pieces that do not split it."""

    __slots__ = ("_field", "_prefix", "_value")

    def __init__(self, request_id: str) -> None:
        """`request_id`: the X-Request-Id sent to the engine."""
        self._value = request_id.encode() + b'"'
        self._prefix = b""
        self._field = b""

    @property
    def known(self) -> bool:
        """Whether it has been found."""
        return bool(self._field)

    def split(self, piece: bytes) -> list[bytes]:
        """Splits a piece at each occurrence of the field."""
        if not self._field and not self._find(piece):
            return [piece]
        return piece.split(self._field)

    def field_of(self, request_id: str) -> bytes:
        """Returns the field for another X-Request-Id; only once the id is `known`."""
        return b'%b%b"' % (self._prefix, request_id.encode())

    def _find(self, piece: bytes) -> bool:
        at = piece.find(self._value)
        while at >= 0:
            match = _PREFIX.search(piece, max(0, at - _PREFIX_BYTES), at)
            if match is not None:
                self._prefix = match[0]
                self._field = self._prefix + self._value
                return True
            at = piece.find(self._value, at + 1)
        return False

"""Remembers which pool last served the beginning of a prompt, so that its next turn goes there.

An engine that has computed a prefix before does not compute it again. Prefixes are known by salted
checksums of the text from the beginning of the prompt, at fixed lengths: a turn of a chat shares
the longest of them with the turn before. Each client has a table of its own, so that none learns or
evicts what another one sent; all tables together are bounded.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final
from zlib import crc32

Prefixes = tuple[int, ...]

# Prefixes of all clients together: about 6 MiB.
MOST_PREFIXES: Final = 65_536

# Lengths in bytes: the first ones as far apart as a few dozen tokens, from 2 KiB on by an eighth.
_LEAST_BYTES: Final = 256
_LONGEST_BYTES: Final = 256 * 1024
_GROWTH: Final = 8
# Fields before the prompt, such as an id, may differ from turn to turn. Where the prompt begins
# later than this, the body is taken from its beginning.
_PROMPTS: Final = (b'"messages"', b'"prompt"', b'"input"')
_BEGINS_WITHIN: Final = 4096


def _lengths() -> Iterator[int]:
    length = 0
    while length <= _LONGEST_BYTES:
        yield length
        length += max(_LEAST_BYTES, length // _GROWTH)


_PIECES: Final = tuple(pairwise(_lengths()))


def prefixes_of(body: bytes, model: str, salt: int) -> Prefixes:
    """Returns the checksums of the prefixes of a request's prompt, the shortest one first."""
    begin = 0
    for field in _PROMPTS:
        at = body.find(field, 0, _BEGINS_WITHIN)
        if at >= 0:
            begin = at
            break
    checksum, left = crc32(model.encode("utf-8", "replace"), salt), len(body) - begin
    found = []
    for start, end in _PIECES:
        if end > left:
            break
        checksum = crc32(body[begin + start : begin + end], checksum)
        found.append(checksum << 32 | end)
    return tuple(found)


class PrefixAffinity:
    """The pools that last served each prefix, by client."""

    def __init__(self, salt: int, most: int = MOST_PREFIXES) -> None:
        """`salt`: random. `most`: prefixes of all clients together."""
        self._salt = salt
        self._most = most
        # Tables and their prefixes are in the order of their last use, the oldest one first.
        self._tables: dict[bytes, dict[int, str]] = {}
        self.size = 0

    def prefixes_of(self, body: bytes, model: str) -> Prefixes:
        """Returns the salted prefixes of a request."""
        return prefixes_of(body, model, self._salt)

    def served_by(self, client: bytes, prefixes: Prefixes) -> tuple[str, ...]:
        """Returns the pools that last served these prefixes, that of the longest one first."""
        table = self._tables.get(client)
        if not table:
            return ()
        return tuple(dict.fromkeys(table[each] for each in reversed(prefixes) if each in table))

    def placed(self, client: bytes, prefixes: Prefixes, pool: str) -> None:
        """Records that a request with these prefixes goes to `pool`."""
        if not prefixes:
            return
        table = self._tables.pop(client, None)
        if table is None:
            table = {}
        self._tables[client] = table  # the last one now
        before = len(table)
        for each in prefixes:
            table.pop(each, None)
            table[each] = pool
        self.size += len(table) - before
        while self.size > self._most:
            self._evict(client, table)

    def _evict(self, client: bytes, table: dict[int, str]) -> None:
        """Forgets a prefix: of this client if it has more than its share, else of the client that
        was not heard of for the longest time."""
        if len(table) * len(self._tables) < self._most:
            client, table = next(iter(self._tables.items()))
        del table[next(iter(table))]
        self.size -= 1
        if not table:
            del self._tables[client]

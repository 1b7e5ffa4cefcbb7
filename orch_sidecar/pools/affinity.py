"""Remembers which pool last served the beginning of a prompt, so that its next turn goes there.

An engine that has computed a prefix before does not compute it again. Prefixes are known by salted
checksums of the text from the beginning of the prompt, at fixed lengths: a turn of a chat shares
the longest of them with the turn before. Clients that do not share the engines' cache have tables
of their own, so that none learns or evicts what another one sent; all tables together are bounded.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

Prefixes = tuple[int, ...]

# Prefixes of all clients together, about 100 bytes each. A client that is alone remembers a few
# thousand conversations.
MAX_PREFIXES: Final = 65_536

# Lengths in bytes: as far apart as a hundred tokens, from 2 KiB on by a quarter.
_MIN_BYTES: Final = 512
_MAX_BYTES: Final = 64 * 1024
_GROWTH: Final = 4
# Fields before the prompt, such as an id, may differ from turn to turn. Where the prompt begins
# later than this, the body is taken from its beginning.
_PROMPTS: Final = (b'"messages"', b'"prompt"', b'"input"')
_BEGINS_WITHIN: Final = 4096


def _lengths() -> Iterator[int]:
    length = 0
    while length <= _MAX_BYTES:
        yield length
        length += max(_MIN_BYTES, length // _GROWTH)


_PIECES: Final = tuple(pairwise(_lengths()))


def prefixes_of(body: bytes, model: str, salt: int) -> Prefixes:
    """Returns the checksums of the prefixes of a request's prompt, the shortest one first."""
    if len(body) < _MIN_BYTES:
        return ()
    begin = 0
    for field in _PROMPTS:
        at = body.find(field, 0, _BEGINS_WITHIN)
        if at >= 0:
            begin = at
            break
    # Python's own hash: a CRC of as many bytes takes twice the instructions.
    checksum, left = hash((salt, model)), len(body) - begin
    found = []
    for start, end in _PIECES:
        if end > left:
            break
        checksum = hash((checksum, body[begin + start : begin + end]))
        found.append(checksum)
    return tuple(found)


class _PrefixTable:
    """The pools of one client's prefixes, in two generations: a full one replaces the older one,
    so that what was not used for a while is forgotten without an order to maintain."""

    __slots__ = ("new", "old")

    def __init__(self) -> None:
        self.new: dict[int, str] = {}
        self.old: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self.new) + len(self.old)


class PrefixAffinity:
    """The pools that last served each prefix, by who shares the cache."""

    def __init__(self, salt: int, most: int = MAX_PREFIXES) -> None:
        """`salt`: random. `most`: prefixes of all clients together."""
        self._salt = salt
        self._most = most
        # In the order of their last use, the oldest one first.
        self._tables: dict[bytes, _PrefixTable] = {}
        self.size = 0  # prefixes of all clients

    def prefixes_of(self, body: bytes, model: str, cache_salt: str = "") -> Prefixes:
        """Returns the salted prefixes of a request. `cache_salt`: of its body, as it came."""
        return prefixes_of(body, f"{model}\0{cache_salt}", self._salt)

    def served_by(self, client: bytes, prefixes: Prefixes) -> str | None:
        """Returns the pool that last served the longest known one of these prefixes."""
        table = self._tables.get(client)
        if table is not None:
            new, old = table.new, table.old
            for each in reversed(prefixes):
                pool = new.get(each) or old.get(each)
                if pool is not None:
                    return pool
        return None

    def placed(self, client: bytes, prefixes: Prefixes, pool: str) -> None:
        """Records that a request with these prefixes goes to `pool`."""
        if not prefixes:
            return
        table = self._tables.pop(client, None)
        if table is None:
            table = _PrefixTable()
        self._tables[client] = table  # the last one now
        before = len(table.new)
        table.new.update(dict.fromkeys(prefixes, pool))
        self.size += len(table.new) - before
        if 2 * len(table.new) * len(self._tables) >= self._most:  # half of this client's share
            self.size -= len(table.old)
            table.old, table.new = table.new, {}
        while self.size > self._most and len(self._tables) > 1:
            self.size -= len(self._tables.pop(next(iter(self._tables))))

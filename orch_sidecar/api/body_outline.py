"""A large JSON body in, a small one of the same shape out.

Pure. Parsing keeps the event loop from everything else for as long as it takes, so a large body
is first read in slices, each within some milliseconds at most. What comes out has all of the
structure and the whole top level. Wherever admission does not look, strings are empty: what was
there costs nothing, and no character of a string causes a refusal. What would still take long
(more members, items or digits than any use has) is refused before it is parsed.

What is wrong inside of a string that was left out, the engine refuses.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final

from orch_sidecar.api.json_body import InvalidBody

# A body up to this size is parsed as it is: 5 ms for the worst of them.
LARGE_BYTES: Final = 65_536
# The worst slice has a string in every second byte: 5 ms.
SLICE_BYTES: Final = 16_384

# Together they parse within 20 ms. A prompt of 131,072 token ids fits, and a thousand tools do.
MAX_FIELDS: Final = 1000
MAX_CONTAINERS: Final = 20_000
MAX_MEMBERS: Final = 20_000
MAX_FRACTIONS: Final = 20_000
MAX_STRINGS: Final = 50_000
MAX_ITEMS: Final = 150_000
MAX_STRUCTURE_BYTES: Final = 4 * 2**20
# Parsing an integer takes the square of its length; the largest float has 309 digits.
MAX_DIGITS: Final = 400

# Of a string at the top level. The longest name of a field that matters has 132 bytes when all
# of it is escaped; no name of a model is nearly as long.
_KEPT_BYTES: Final = 1024
_UTF_8: Final = ("utf-8", "utf-8-sig")
_DIGITS_ALIKE: Final = bytes.maketrans(b"123456789E", b"000000000e")
_TOO_MANY_DIGITS: Final = b"0" * (MAX_DIGITS + 1)
# What usually stands between two strings, and opens and closes nothing.
_SEPARATORS: Final = frozenset((b",", b", ", b":", b": "))
_SPACES: Final = re.compile(rb"[ \t\n\r]{4,}")
# Where all digits are zeros: what makes a number take several times as long as an integer. The
# `e` of `true` follows no digit.
_EXPONENT: Final = b"0e"
_FRACTION: Final = re.compile(rb"\.0*e?|0e")


def slices(body: bytes) -> Iterator[bytes]:
    """The slices of a body, for `Outline.feed`."""
    return (body[at : at + SLICE_BYTES] for at in range(0, len(body), SLICE_BYTES))


class Outline:
    """What is known of a body of which some slices have been read."""

    def __init__(self) -> None:
        self._out: list[bytes] = []
        self._rest = b""  # the backslash of an escape whose other half is to come
        self._digits = b""  # the end of the last slice, if a number may go on
        self._begun = False
        self._in_string = False
        self._depth = 0
        self._string: list[bytes] = []  # the one that is being read, at the top level
        self._string_bytes = 0
        self._fields = self._containers = self._members = self._fractions = 0
        self._strings = self._items = self._structure_bytes = 0

    def feed(self, piece: bytes) -> None:
        """Reads the next slice, of `SLICE_BYTES` or less. Raises InvalidBody."""
        if not self._begun:
            self._begin(piece)
        raw = self._rest + piece
        # As long as before, and every quote that is left begins or ends a string.
        masked = raw.replace(b"\\\\", b"__").replace(b'\\"', b"__")
        self._rest = b"\\" if masked.endswith(b"\\") else b""
        if self._rest:
            masked = masked[:-1]
        parts = masked.split(b'"')
        outside = parts[self._in_string :: 2]
        self._out.append(self._skeleton(raw, parts))
        self._count(b'"'.join(outside))

    def result(self) -> bytes:
        """The small body, once all slices have been read; it is whole where the body is."""
        return b"".join((*self._out, self._rest, b'"' if self._in_string else b""))

    def _begin(self, piece: bytes) -> None:
        encoding = json.detect_encoding(piece[:4])
        if encoding not in _UTF_8:
            raise InvalidBody(
                f"the body is {encoding}: one of more than {LARGE_BYTES} bytes must be UTF-8"
            )
        self._begun = True

    def _skeleton(self, raw: bytes, parts: list[bytes]) -> bytes:
        """What is kept of a slice, whose `parts` are parted by the quotes of strings."""
        out: list[bytes] = []
        at, last, in_string, depth = 0, len(parts) - 1, self._in_string, self._depth
        for number, part in enumerate(parts):
            if not in_string:
                if part not in _SEPARATORS:
                    opened = part.count(b"{") + part.count(b"[")
                    self._containers += opened
                    depth += opened - part.count(b"}") - part.count(b"]")
                    part = _SPACES.sub(b" ", part)  # noqa: PLW2901 (it stands for the part)
                    self._structure_bytes += len(part)
                out.append(part)
            elif depth == 1:
                self._keep(raw[at : at + len(part)])
                if number < last:
                    out.append(self._kept())
            elif number < last:
                out.append(b'""')
            at += len(parts[number]) + 1
            in_string = not in_string
        self._in_string, self._depth = not in_string, depth
        self._strings += len(parts) // 2
        return b"".join(out)

    def _keep(self, part: bytes) -> None:
        """More of a string at the top level."""
        self._string_bytes += len(part)
        if self._string_bytes <= _KEPT_BYTES:
            self._string.append(part)

    def _kept(self) -> bytes:
        """That string, which is whole now."""
        kept = b"".join(self._string)
        self._fields += 1
        if self._string_bytes > _KEPT_BYTES:
            # Another one each time: two names of fields that are left out are not the same one.
            kept = b"string %d, of %d bytes" % (self._fields, self._string_bytes)
        self._string.clear()
        self._string_bytes = 0
        return b'"%b"' % kept

    def _count(self, outside: bytes) -> None:
        """Counts what there is outside of strings. Raises InvalidBody if it is too much."""
        alike = outside.translate(_DIGITS_ALIKE)
        self._fractions += _fractions(alike)
        self._members += outside.count(b":")
        self._items += outside.count(b",")
        for count, most, what in (
            (self._fields, 2 * MAX_FIELDS, f"{MAX_FIELDS} fields"),
            (self._containers, MAX_CONTAINERS, f"{MAX_CONTAINERS} objects and lists"),
            (self._members, MAX_MEMBERS, f"{MAX_MEMBERS} members of objects"),
            (self._fractions, MAX_FRACTIONS, f"{MAX_FRACTIONS} fractions or exponents"),
            (self._strings, MAX_STRINGS, f"{MAX_STRINGS} strings"),
            (self._items, MAX_ITEMS, f"{MAX_ITEMS} items"),
            (self._structure_bytes, MAX_STRUCTURE_BYTES, f"{MAX_STRUCTURE_BYTES} bytes of numbers"),
        ):
            if count > most:
                raise InvalidBody(f"the body has more than {what}: send fewer")
        digits = self._digits + alike
        if _TOO_MANY_DIGITS in digits:
            raise InvalidBody(
                f"a number in the body has more than {MAX_DIGITS} digits: send fewer of them"
            )
        self._digits = b"" if self._in_string else digits[-MAX_DIGITS:]


def _fractions(digits: bytes) -> int:
    """How many numbers have a fraction or an exponent, where all digits are zeros."""
    if _EXPONENT in digits:
        return sum(1 for _ in _FRACTION.finditer(digits))
    return digits.count(b".")

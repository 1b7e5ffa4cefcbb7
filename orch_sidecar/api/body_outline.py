"""Reduces a large JSON body to a small one of the same shape, its outline.

Pure. Parsing blocks the event loop, so a large body is first read in slices, each within a few
milliseconds. The outline keeps brackets, numbers and the whole top level; below that every string
is empty, names of members too: they cost nothing, and their content never causes a refusal. A body
that would still take long to parse (more members, items or digits than any real request has) is
rejected beforehand.

Errors inside of omitted strings are left to the engine.
"""

from __future__ import annotations

import json
import re
from typing import Final

from orch_sidecar.api.body import UTF_8, InvalidBody

# Bodies up to this size are parsed directly, which takes at most 5 ms.
LARGE_BYTES: Final = 65_536
# And up to this one by the fast parser, if it can, which takes at most 20 ms.
WHOLE_BYTES: Final = 524_288
# The worst slice has a string in every second byte and takes 5 ms.
SLICE_BYTES: Final = 16_384

# Most bodies begin with a few fields, and then have one long text.
FIRST_SLICE_BYTES: Final = 1024

# Within all of these limits parsing takes 20 ms. A prompt of 131,072 token ids fits, and so do a
# thousand tools.
MAX_FIELDS: Final = 1000
MAX_CONTAINERS: Final = 20_000
MAX_MEMBERS: Final = 20_000
MAX_FRACTIONS: Final = 20_000
MAX_STRINGS: Final = 50_000
MAX_ITEMS: Final = 150_000
MAX_STRUCTURE_BYTES: Final = 4 * 2**20
# The time to parse an integer is quadratic in its length; the largest float has 309 digits.
MAX_DIGITS: Final = 400

# In the order in which they are counted.
_LIMITS: Final = (
    (2 * MAX_FIELDS, f"{MAX_FIELDS} fields"),
    (MAX_CONTAINERS, f"{MAX_CONTAINERS} objects and lists"),
    (MAX_MEMBERS, f"{MAX_MEMBERS} members of objects"),
    (MAX_FRACTIONS, f"{MAX_FRACTIONS} fractions or exponents"),
    (MAX_STRINGS, f"{MAX_STRINGS} strings"),
    (MAX_ITEMS, f"{MAX_ITEMS} items"),
    (MAX_STRUCTURE_BYTES, f"{MAX_STRUCTURE_BYTES} bytes of numbers"),
)

# Of a string at the top level. The longest name of a relevant field has 132 bytes if it is escaped
# completely; names of models are much shorter than this limit.
_KEPT_BYTES: Final = 1024
_DIGITS_TO_ZERO: Final = bytes.maketrans(b"123456789E", b"000000000e")
_TOO_MANY_DIGITS: Final = b"0" * (MAX_DIGITS + 1)
# The usual text between two strings, which opens and closes nothing.
_SEPARATORS: Final = frozenset((b",", b", ", b":", b": "))
# Before a quote. If there are more, what follows is read as any other slice.
_FEW_BACKSLASHES: Final = 64
_BACKSLASH: Final = b"\\"
_SPACES: Final = re.compile(rb"[ \t\n\r]{4,}")
# With all digits replaced by zeros: the parts that make a number several times as slow to parse as
# an integer. The `e` of `true` follows no digit.
_EXPONENT: Final = b"0e"
_FRACTION: Final = re.compile(rb"\.0*e?|0e")


class Outline:
    """The outline of the slices that have been read so far: of `read_bytes` in all."""

    def __init__(self) -> None:
        self.read_bytes = 0
        self._out: list[bytes] = []
        self._rest = b""  # the first half of an escape sequence
        self._digits = b""  # the end of the last slice, where a number may continue
        self._in_string = False
        self._depth = 0
        self._string: list[bytes] = []  # the current string of the top level
        self._string_bytes = 0
        self._fields = self._containers = self._members = self._fractions = 0
        self._strings = self._items = self._structure_bytes = 0

    def feed(self, part: bytes, begin: int = 0) -> int:
        """Reads the next slice of a part of the body, and returns where it ends: SLICE_BYTES after
        the string in which it begins, whose content takes next to no time. Raises InvalidBody."""
        at = self._skip(part, begin) if self._in_string else begin
        end = min(at + (SLICE_BYTES if self.read_bytes else FIRST_SLICE_BYTES), len(part))
        raw = part[at:end]
        if not self.read_bytes:
            _check_encoding(raw)
        self.read_bytes += end - begin
        raw = self._rest + raw
        self._rest = _BACKSLASH if _ends_in_escape(raw) else b""
        if self._rest:
            raw = raw[:-1]
        parts = _split_at_quotes(raw)
        outside = parts[self._in_string :: 2]
        self._out.append(self._skeleton(raw, parts))
        self._count(b'"'.join(outside))
        return end

    def result(self) -> bytes:
        """Returns the outline once all slices have been read; valid JSON only if the body is."""
        return b"".join((*self._out, self._rest, b'"' if self._in_string else b""))

    def _skeleton(self, raw: bytes, parts: list[bytes]) -> bytes:
        """Returns the outline of a slice. `parts`: the slice, split at the quotes of strings."""
        out: list[bytes] = []
        at, last, in_string, depth = 0, len(parts) - 1, self._in_string, self._depth
        for number, part in enumerate(parts):
            if not in_string:
                if part not in _SEPARATORS:
                    opened = part.count(b"{") + part.count(b"[")
                    self._containers += opened
                    depth += opened - part.count(b"}") - part.count(b"]")
                    part = _SPACES.sub(b" ", part)  # noqa: PLW2901 (replaces the part)
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

    def _skip(self, part: bytes, begin: int) -> int:
        """Reads on in a string, to the next quote or the backslashes before it. Returns where."""
        end = part.find(b'"', begin)
        if end < 0:
            end = len(part)
        before = part[max(begin, end - _FEW_BACKSLASHES) : end]
        left = before.rstrip(_BACKSLASH)
        if not left:
            return begin
        end -= len(before) - len(left)
        if self._depth == 1:
            self._keep(self._rest + part[begin : min(end, begin + _KEPT_BYTES)])
            self._string_bytes += max(0, end - begin - _KEPT_BYTES)
        self._rest = b""
        return end

    def _keep(self, part: bytes) -> None:
        """Adds to the current string of the top level."""
        self._string_bytes += len(part)
        if self._string_bytes <= _KEPT_BYTES:
            self._string.append(part)

    def _kept(self) -> bytes:
        """Returns the current string of the top level, which is complete."""
        kept = b"".join(self._string)
        self._fields += 1
        if self._string_bytes > _KEPT_BYTES:
            # Different each time: two omitted names of fields must not become equal.
            kept = b"string %d, of %d bytes" % (self._fields, self._string_bytes)
        self._string.clear()
        self._string_bytes = 0
        return b'"%b"' % kept

    def _count(self, outside: bytes) -> None:
        """Counts what is outside of strings. Raises InvalidBody above a limit."""
        zeroed = outside.translate(_DIGITS_TO_ZERO)
        self._fractions += _fractions(zeroed)
        self._members += outside.count(b":")
        self._items += outside.count(b",")
        counts = (
            self._fields,
            self._containers,
            self._members,
            self._fractions,
            self._strings,
            self._items,
            self._structure_bytes,
        )
        for count, (most, what) in zip(counts, _LIMITS, strict=True):
            if count > most:
                raise InvalidBody(f"the body must not have more than {what}: split the request")
        digits = self._digits + zeroed
        if _TOO_MANY_DIGITS in digits:
            raise InvalidBody(
                f"a number in the body must not have more than {MAX_DIGITS} digits: shorten it"
            )
        self._digits = b"" if self._in_string else digits[-MAX_DIGITS:]


def _check_encoding(begin: bytes) -> None:
    encoding = json.detect_encoding(begin[:4])
    if encoding not in UTF_8:
        raise InvalidBody(
            f"the body is encoded in {encoding}, but must be UTF-8 above {LARGE_BYTES} bytes"
        )


def _split_at_quotes(raw: bytes) -> list[bytes]:
    """Splits a slice at the quotes that begin or end a string."""
    if _BACKSLASH in raw and b'\\"' in raw:
        # Of the same length; each remaining quote begins or ends a string.
        raw = raw.replace(b"\\\\", b"__").replace(b'\\"', b"__")
    return raw.split(b'"')


def _ends_in_escape(raw: bytes) -> bool:
    """Whether an odd number of backslashes is at the end."""
    return (len(raw) - len(raw.rstrip(_BACKSLASH))) % 2 == 1


def _fractions(digits: bytes) -> int:
    """Counts the numbers with a fraction or an exponent. All digits of the text are zeros."""
    if _EXPONENT in digits:
        return sum(1 for _ in _FRACTION.finditer(digits))
    return digits.count(b".")

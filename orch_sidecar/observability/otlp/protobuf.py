"""The wire format of Protocol Buffers, as far as OTLP's traces need it.

Pure. Knows the messages AnyValue and KeyValue of opentelemetry/proto/common/v1/common.proto, and
the field of a span that has attributes. What cannot be represented raises: half a surrogate pair in
a text UnicodeEncodeError, an integer beyond 64 bits OverflowError.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

_DOUBLE: Final = struct.Struct("<d")
double: Final = _DOUBLE.pack

# Seven bits each: the last octet of a number, and one that is followed by others.
_LAST_BYTES: Final = tuple(bytes((bits,)) for bits in range(128))
_OTHER_BYTES: Final = tuple(bytes((bits | 128,)) for bits in range(128))

# Tags of the fields of AnyValue.
_STRING, _BOOL, _INT, _DOUBLE_VALUE = b"\x0a", b"\x10", b"\x18", b"\x21"
_ARRAY, _PAIRS, _BYTES = b"\x2a", b"\x32", b"\x3a"

# Field 1, length-delimited: the first field of most messages.
FIRST: Final = b"\x0a"
# Field 9 of Span: its attributes.
SPAN_ATTRIBUTE: Final = b"\x4a"

# Encoded integers that are kept are smaller: token counts of most requests, at most half a megabyte
# of each attribute.
_KEPT_INTEGERS: Final = 4096
# Numbers that are encoded already: lengths of most spans.
VARINTS: Final = tuple(
    bytes((bits,)) if bits < 128 else bytes((bits & 127 | 128, bits >> 7)) for bits in range(4096)
)


def varint(number: int) -> bytes:
    """Encodes a number from 0 to 2**64 - 1."""
    if number < len(VARINTS):
        return VARINTS[number]
    octets = []
    while number > 127:
        octets.append(_OTHER_BYTES[number & 127])
        number >>= 7
    octets.append(_LAST_BYTES[number])
    return b"".join(octets)


def sized(tag: bytes, content: bytes) -> bytes:
    """Encodes a length-delimited field: a text, bytes or a message."""
    return tag + varint(len(content)) + content


def integer(number: int) -> bytes:
    """Encodes an int64. Raises OverflowError if it has more bits."""
    if -(1 << 63) <= number < 1 << 63:
        return varint(number & (1 << 64) - 1)
    bits = number.bit_length()
    raise OverflowError(f"an integer has {bits} bits, OTLP takes 63 and a sign: it is left out")


def any_value(value: Any) -> bytes:
    """Encodes an AnyValue, without its tag and length. Raises TypeError for other types."""
    match value:
        case None:
            return b""
        case str():
            return sized(_STRING, value.encode())
        case bool():
            return _BOOL + _LAST_BYTES[value]
        case int():
            return _INT + integer(value)
        case float():
            return _DOUBLE_VALUE + _DOUBLE.pack(value)
        case bytes():
            return sized(_BYTES, value)
        case Mapping():
            return sized(_PAIRS, b"".join(attribute(FIRST, str(k), v) for k, v in value.items()))
        case Sequence():
            return sized(_ARRAY, b"".join(sized(FIRST, any_value(each)) for each in value))
    raise TypeError(f"{value!r} is no attribute: it must be a text, number, list or mapping")


def attribute(tag: bytes, key: str, value: Any) -> bytes:
    """Encodes a KeyValue as a field with this tag."""
    return sized(tag, sized(FIRST, key.encode()) + sized(b"\x12", any_value(value)))


def attributes(tag: bytes, items: Iterable[tuple[str, Any]]) -> bytes:
    """Encodes several KeyValues."""
    return b"".join([attribute(tag, key, value) for key, value in items])


def before_text(key: str, length: int) -> bytes:
    """Returns what precedes the value in attributes of spans whose values are texts. `length`: of
    the value in bytes."""
    whole = attribute(SPAN_ATTRIBUTE, key, "x" * length)
    return whole[: len(whole) - length]


class Integers(dict[int | None, bytes]):
    """Attributes of spans of one key whose values are integers, encoded: nothing for None. Keeps
    small ones."""

    def __init__(self, key: str) -> None:
        super().__init__({None: b""})
        self._key = key

    def __missing__(self, value: int) -> bytes:
        encoded = attribute(SPAN_ATTRIBUTE, self._key, value)
        if 0 <= value < _KEPT_INTEGERS:
            self[value] = encoded
        return encoded


def before_float(key: str) -> bytes:
    """Returns what precedes the value (`double`) in attributes of spans whose values are
    floating-point numbers."""
    return attribute(SPAN_ATTRIBUTE, key, 0.0)[: -_DOUBLE.size]

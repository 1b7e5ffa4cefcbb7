"""Reads what a collector answers: protobuf messages of two or three fields.

By hand: importing their generated classes would hold the event loop for tens of milliseconds.
"""

from __future__ import annotations

from typing import Final

_VARINT: Final = 0
_FIXED64: Final = 1
_BYTES: Final = 2
_FIXED32: Final = 5

_RETRY_INFO: Final = "type.googleapis.com/google.rpc.RetryInfo"


def partial_success(body: bytes) -> tuple[int, str]:
    """Returns the rejected spans and the message in an ExportTraceServiceResponse.

    Raises ValueError if it is none.
    """
    rejected, message = 0, ""
    for number, value in _fields(body):
        if number == 1:
            for inner, content in _fields(_bytes(value)):
                if inner == 1:
                    rejected = _signed(content)
                elif inner == 2:
                    message = _bytes(content).decode()
    return rejected, message


def status_message(body: bytes) -> str:
    """Returns the message of a google.rpc.Status. Raises ValueError if it is none."""
    message = ""
    for number, value in _fields(body):
        if number == 2:
            message = _bytes(value).decode()
    return message


def status_retry_delay_s(body: bytes) -> float | None:
    """Returns the delay of the RetryInfo in a google.rpc.Status, None if there is none.

    Raises ValueError if it is no Status.
    """
    for number, detail in _fields(body):
        if number != 3:
            continue
        kind, content = "", b""
        for inner, value in _fields(_bytes(detail)):
            if inner == 1:
                kind = _bytes(value).decode()
            elif inner == 2:
                content = _bytes(value)
        if kind == _RETRY_INFO:
            return retry_delay_s(content)
    return None


def retry_delay_s(body: bytes) -> float:
    """Returns the delay of a google.rpc.RetryInfo. Raises ValueError if it is none."""
    seconds = nanos = 0
    for number, value in _fields(body):
        if number == 1:
            for inner, content in _fields(_bytes(value)):
                if inner == 1:
                    seconds = _signed(content)
                elif inner == 2:
                    nanos = _signed(content)
    return max(0.0, seconds + nanos / 1e9)


def _fields(body: bytes) -> list[tuple[int, int | bytes]]:
    """Returns the numbers and values of a message's fields. Raises ValueError."""
    found: list[tuple[int, int | bytes]] = []
    at = 0
    while at < len(body):
        tag, at = _varint(body, at)
        number, kind = tag >> 3, tag & 7
        if not number:
            raise ValueError("a field has the number 0")
        if kind == _VARINT:
            value, at = _varint(body, at)
            found.append((number, value))
            continue
        if kind == _BYTES:
            size, at = _varint(body, at)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"a field has the wire type {kind}")
        if at + size > len(body):
            raise ValueError("a field is longer than its message")
        found.append((number, body[at : at + size]))
        at += size
    return found


def _varint(body: bytes, at: int) -> tuple[int, int]:
    """Returns the number at this place, and the place behind it."""
    value = 0
    for index, byte in enumerate(body[at : at + 10]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value & (2**64 - 1), at + index + 1
    raise ValueError("a number does not end")


def _signed(value: int | bytes) -> int:
    if isinstance(value, bytes):
        raise ValueError("a field is not a number")
    return value - 2**64 if value >= 2**63 else value


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a field is a number")
    return value

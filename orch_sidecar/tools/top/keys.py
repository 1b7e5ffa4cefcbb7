"""Reads single keys from a terminal."""

from __future__ import annotations

import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Final

_CONTROL_CHARACTERS: Final = 6  # in the list of `termios.tcgetattr`


class Key(StrEnum):
    """A key that is not a letter."""

    UP = "up"
    DOWN = "down"
    LEFT = "left"
    RIGHT = "right"
    ESCAPE = "escape"
    OTHER = "other"


# The ends of escape sequences, in both modes of the arrow keys.
_ARROWS: Final = {b"A": Key.UP, b"B": Key.DOWN, b"C": Key.RIGHT, b"D": Key.LEFT, b"Z": Key.LEFT}


@contextmanager
def single_keys(terminal: int) -> Iterator[None]:
    """Makes a terminal deliver each key at once, without showing it; restores it at the end.

    Ctrl-Z is off: a suspended program would leave its screen behind.
    """
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)
    mode = termios.tcgetattr(terminal)
    mode[_CONTROL_CHARACTERS][termios.VSUSP] = b"\0"
    termios.tcsetattr(terminal, termios.TCSANOW, mode)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def keys(data: bytes) -> Iterator[str]:
    """Yields the keys that a terminal has sent: letters, and names of `Key`."""
    rest = data
    while rest:
        if rest[:1] != b"\x1b":
            letter, rest = rest[:1], rest[1:]
            if letter.isascii():
                yield letter.decode("ascii")
        elif rest[1:2] in (b"[", b"O"):
            end = 2
            while end < len(rest) - 1 and not 0x40 <= rest[end] <= 0x7E:
                end += 1
            yield _ARROWS.get(rest[end : end + 1], Key.OTHER)
            rest = rest[end + 1 :]
        else:
            yield Key.ESCAPE
            rest = rest[1:]

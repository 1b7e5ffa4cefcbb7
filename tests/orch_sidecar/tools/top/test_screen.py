"""Keys of a terminal."""

from __future__ import annotations

import os
import pty
import termios
from contextlib import suppress

import pytest

from orch_sidecar.tools.top.screen import keys, single_keys


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"q", ["q"]),
        (b"\x1b[A\x1b[Bk", ["up", "down", "k"]),
        (b"\x1bOA\x1bOC\x1b[D", ["up", "right", "left"]),
        (b"\x1b[1;5Aq", ["up", "q"]),
        (b"\x1b[3~q", ["other", "q"]),
        (b"\x1b", ["escape"]),
        (b"\x1bq", ["escape", "q"]),
        (b"\x1b[", ["other"]),
        (b"\t\x1b[Z", ["\t", "left"]),
        ("é✓".encode(), []),
        (b"", []),
    ],
)
def test_keys_are_read(data: bytes, found: list[str]) -> None:
    assert list(keys(data)) == found


def test_terminal_is_restored_also_after_an_error() -> None:
    main, terminal = pty.openpty()
    try:
        before = termios.tcgetattr(terminal)
        with suppress(RuntimeError), single_keys(terminal):
            changed = termios.tcgetattr(terminal)
            assert not changed[3] & (termios.ICANON | termios.ECHO)
            assert changed[3] & termios.ISIG, "Ctrl-C still interrupts"
            raise RuntimeError
        assert termios.tcgetattr(terminal) == before
    finally:
        os.close(main)
        os.close(terminal)

"""A program in a terminal of its own, 80 x 24, as over ssh."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import re
import struct
import termios
from collections.abc import Callable

from tests.integration.running import eventually
from tests.patience import HANG_S

_HOME = "\x1b[H"
_SEQUENCE = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|[@-_])")


class Terminal:
    """Reads what a program draws, and presses keys."""

    def __init__(self, columns: int = 80, rows: int = 24) -> None:
        self._main, self.side = pty.openpty()
        self.resize(columns, rows)
        os.set_blocking(self._main, False)
        self.output = ""
        self._process: asyncio.subprocess.Process | None = None
        asyncio.get_running_loop().add_reader(self._main, self._read)

    def resize(self, columns: int, rows: int) -> None:
        self._rows = rows
        size = struct.pack("HHHH", rows, columns, 0, 0)
        fcntl.ioctl(self.side, termios.TIOCSWINSZ, size)

    async def start(self, *command: str, **env: str) -> asyncio.subprocess.Process:
        self._process = await asyncio.create_subprocess_exec(
            *("setsid", "--ctty", *command),  # so that the terminal is the program's own
            stdin=self.side,
            stdout=self.side,
            stderr=self.side,
            env=os.environ | {"TERM": "xterm-256color"} | env,
        )
        return self._process

    def press(self, keys: str) -> None:
        os.write(self._main, keys.encode())

    @property
    def lines(self) -> list[str]:
        """The lines of the last complete picture, without colors."""
        pictures = self.output.split(_HOME)
        is_complete = pictures[-1].count("\n") == self._rows - 1
        text = pictures[-1] if is_complete or len(pictures) < 3 else pictures[-2]
        return [line.rstrip() for line in _SEQUENCE.sub("", text).replace("\r", "").split("\n")]

    @property
    def picture(self) -> str:
        return "\n".join(self.lines)

    async def shows(self, text: str | Callable[[str], bool], within_s: float = HANG_S) -> None:
        """Waits until the picture has a text."""
        found = text if callable(text) else lambda picture: text in picture
        try:
            await eventually(lambda: found(self.picture), within_s)
        except AssertionError:
            raise AssertionError(f"{text!r} is not in\n{self.picture}") from None

    async def close(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        asyncio.get_running_loop().remove_reader(self._main)
        os.close(self._main)
        os.close(self.side)

    def _read(self) -> None:
        try:
            self.output += os.read(self._main, 65_536).decode(errors="replace")
        except OSError:
            asyncio.get_running_loop().remove_reader(self._main)

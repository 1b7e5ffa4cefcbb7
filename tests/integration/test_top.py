"""`orch top` in front of a real sidecar: in a terminal of 80 x 24, for scripts, and without one."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import re
import struct
import sys
import termios
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from orch_sidecar.tools.top import cli
from tests.integration.client import Client
from tests.integration.held import Held, started
from tests.integration.keyed import KeyRing
from tests.integration.running import Running, Start, eventually, pools
from tests.integration.scripted_engine import Engine, ScriptedEngine
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


TOP = (sys.executable, "-W", "error", "-m", "orch_sidecar", "top")
ALTERNATE, CURSOR = "\x1b[?1049l", "\x1b[?25h"


def operators(running: Running) -> tuple[str, str]:
    return "--url", f"http://127.0.0.1:{running.sidecar.admin_port}"


def clients(running: Running) -> tuple[str, str]:
    return "--url", f"http://127.0.0.1:{running.port}"


async def ended(*words: str) -> str:
    """The error with which the command ends, here: a process takes a second to start."""
    with pytest.raises(SystemExit) as failure:
        await asyncio.to_thread(cli.main, list(words))
    return str(failure.value.code)


@pytest.fixture
async def terminal() -> AsyncIterator[Terminal]:
    made = Terminal()
    yield made
    await made.close()


async def full(sidecar: Running, held: Held) -> Client:
    """Four requests on four slots, and a fifth that waits; returns its client."""
    await started(sidecar, n=1)
    for _ in range(3):
        await started(sidecar)
    await eventually(lambda: len(held.waiting) == 4)
    waits = await started(sidecar)
    await eventually(lambda: sidecar.queued)
    return waits


async def test_terminal_shows_the_sidecar_and_obeys_keys(
    sidecar: Running, held: Held, terminal: Terminal
) -> None:
    waits = await full(sidecar, held)
    process = await terminal.start(*TOP, *operators(sidecar))
    await terminal.shows("queued 0")
    for part in ("orch top", "cloud", "batched_online", "4/4", "iiii", "waits", "q quit"):
        assert part in terminal.picture, terminal.picture
    assert len(terminal.lines) == 24
    assert max(map(len, terminal.lines)) <= 80
    terminal.press("k")  # the last row is that of the queue
    await terminal.shows(lambda picture: re.search(r"^>\S+ +queued 0", picture, re.M) is not None)
    terminal.press("c")
    await terminal.shows("cancel the request")
    terminal.press("n")
    await terminal.shows("q quit")
    assert sidecar.queued == 1
    terminal.press("cy")
    await terminal.shows("cancelled")
    assert (await waits.response()).status == 499
    terminal.press("dy")
    await terminal.shows("draining")
    await eventually(lambda: sidecar.sidecar.pools.draining)
    terminal.press("ry")
    await eventually(lambda: not sidecar.sidecar.pools.draining)
    terminal.press("s")
    await terminal.shows("s sort:age")
    terminal.resize(60, 12)
    terminal.press("s")
    await terminal.shows("s sort:class")
    assert len(terminal.lines) == 12
    assert max(map(len, terminal.lines)) <= 60
    terminal.press("q")
    async with asyncio.timeout(HANG_S):
        assert await process.wait() == 0
    await eventually(lambda: ALTERNATE in terminal.output and CURSOR in terminal.output)
    held.release_all()


async def test_terminal_follows_a_restart_of_the_sidecar(start: Start, terminal: Terminal) -> None:
    first = await start()
    address = {"port": first.port, "admin_port": first.sidecar.admin_port}
    process = await terminal.start(*TOP, *operators(first))
    await terminal.shows("q quit")
    await first.stop()
    await terminal.shows("AWAY")
    assert "cloud" in terminal.picture, "what it was stays in sight"
    await start(**address)
    await terminal.shows(lambda picture: "AWAY" not in picture and "up " in picture)
    process.terminate()
    async with asyncio.timeout(HANG_S):
        assert await process.wait() == 0
    await eventually(lambda: ALTERNATE in terminal.output)


async def test_once_prints_a_snapshot_of_all_pools(
    start: Start, engine: ScriptedEngine, another: Engine
) -> None:
    home = await another(profile="home", slots=1)
    both = await start(**pools(cloud=engine, home=home))
    process = await asyncio.create_subprocess_exec(
        *TOP, *operators(both), "--once", stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(HANG_S):
        printed, _ = await process.communicate()
    text = printed.decode()
    assert process.returncode == 0
    assert "\x1b" not in text, "no colors in a pipe"
    assert max(map(len, text.splitlines())) <= 80
    assert {"cloud", "home"} <= set(text.split())
    assert "single_stream" in text


async def test_json_is_the_document(sidecar: Running, capsys: pytest.CaptureFixture[str]) -> None:
    await asyncio.to_thread(cli.main, [*operators(sidecar), "--json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["operator"] is True
    assert [pool["name"] for pool in found["pools"]] == ["cloud"]
    await asyncio.to_thread(cli.main, [*clients(sidecar), "--json"])
    assert json.loads(capsys.readouterr().out)["operator"] is False


async def test_key_is_read_from_the_environment_and_never_shown(
    start: Start,
    ring: KeyRing,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    key = ring.keys["alice"]
    running = await start(api_keys_file=str(ring.path))
    for wrong in ("", "sk-wrong"):
        monkeypatch.setenv("OPENAI_API_KEY", wrong)
        error = await ended(*clients(running), "--json")
        assert "refuses" in error
        assert "$OPENAI_API_KEY" in error
        assert "operators' listener" in error
        assert "sk-wrong" not in error
    monkeypatch.setenv("OPENAI_API_KEY", key)
    await asyncio.to_thread(cli.main, [*clients(running), "--once"])
    assert "cloud" in capsys.readouterr().out


async def test_without_a_sidecar_the_error_names_what_is_there_instead(
    engine: ScriptedEngine, free_port: int
) -> None:
    nobody = f"http://127.0.0.1:{free_port}"
    assert await ended("--url", nobody, "--once") == (
        f"orch top: {nobody}: connection refused: is a sidecar running there? `orch sidecar` and "
        "`orch up` print their addresses"
    )
    assert "has no live document (404" in await ended("--url", engine.url, "--json")
    assert "is not the URL of an endpoint" in await ended("--url", "127.0.0.1:9080", "--json")
    assert "stdin and stdout must be a terminal" in await ended("--url", engine.url)


@pytest.fixture
async def free_port() -> int:
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port: int = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    return port

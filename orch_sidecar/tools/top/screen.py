"""The screen of `orch top`: draws the live document as it changes, and obeys single keys."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import termios
import tty
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from rich.console import Console, Group
from rich.live import Live as Terminal

from orch_sidecar.tools.top.live import Choice, Live
from orch_sidecar.tools.top.sidecar import Away, Events, Sidecar
from orch_sidecar.tools.top.view import Look, screen

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


# Ages grow without events.
_REDRAW_S: Final = 1.0
# Slow terminals take no more.
_LEAST_S: Final = 0.1
_RETRY_S: Final = 1.0
_NOTE_S: Final = 5.0
_KEY_BYTES: Final = 1024

_ONLY_OPERATORS: Final = (
    "cancel, drain and resume are for the operators' listener (1000 above the sidecar's port)"
)


@dataclass(frozen=True, slots=True)
class _Question:
    """What is done if the next key is `y`."""

    text: str
    order: Callable[[], Awaitable[str]]
    done: str


class Screen:
    """One reader at one terminal, until it quits."""

    def __init__(self, sidecar: Sidecar, console: Console) -> None:
        self._sidecar = sidecar
        self._console = console
        self._live = Live()
        self._choice = Choice()
        self._away = ""
        self._note = ""
        self._note_until_s = 0.0
        self._question: _Question | None = None
        self._changed = asyncio.Event()
        self._quit = asyncio.Event()
        self._orders: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Shows the sidecar until the reader quits.

        Raises Away if it does not answer at first, NoSidecar and InvalidDocument.
        """
        loop, terminal = asyncio.get_running_loop(), sys.stdin.fileno()
        events = self._sidecar.events()
        # Before the terminal changes, so that an error stays visible.
        self._live.apply(*await anext(events))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._quit.set)
        with (
            single_keys(terminal),
            Terminal(console=self._console, screen=True, auto_refresh=False) as drawn,
        ):
            loop.add_reader(terminal, self._read_keys, terminal)
            loop.add_signal_handler(signal.SIGWINCH, self._changed.set)
            tasks = [
                asyncio.create_task(work)
                for work in (self._follow(events), self._draw(drawn), self._quit.wait())
            ]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                loop.remove_reader(terminal)
                for task in (*tasks, *self._orders):
                    task.cancel()
                ended = await asyncio.gather(*tasks, *self._orders, return_exceptions=True)
        for error in ended:
            if isinstance(error, Exception):
                raise error

    async def _follow(self, events: Events) -> None:
        """Applies events, and connects again after a loss, for as long as it takes."""
        while True:
            try:
                async for name, data in events:
                    self._live.apply(name, data)
                    self._away = ""
                    self._changed.set()
            except Away as error:
                self._away = f"{self._sidecar.url}: {error}"
                self._changed.set()
            await asyncio.sleep(_RETRY_S)
            events = self._sidecar.events()

    async def _draw(self, drawn: Terminal) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._changed.clear()
            if loop.time() > self._note_until_s:
                self._note = ""
            note = self._note if self._question is None else f"{self._question.text} y/n"
            size = self._console.size
            look = Look(size.width, size.height)
            lines = screen(self._live, self._choice, look, note, self._away)
            drawn.update(Group(*lines), refresh=True)
            await asyncio.sleep(_LEAST_S)
            try:
                async with asyncio.timeout(_REDRAW_S):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def _read_keys(self, terminal: int) -> None:
        try:
            data = os.read(terminal, _KEY_BYTES)
        except OSError:
            data = b""
        if not data:
            self._quit.set()  # the terminal has gone
        for key in keys(data):
            self._press(key)
        self._changed.set()

    def _press(self, key: str) -> None:
        if self._question is not None:
            question, self._question = self._question, None
            if key in ("y", "Y"):
                self._give(question)
            return
        match key:
            case "q" | Key.ESCAPE:
                self._quit.set()
            case Key.UP | "k":
                self._choice.move_request(self._live, -1)
            case Key.DOWN | "j":
                self._choice.move_request(self._live, 1)
            case Key.LEFT:
                self._choice.move_pool(self._live, -1)
            case Key.RIGHT | "\t":
                self._choice.move_pool(self._live, 1)
            case "s":
                self._choice.order = self._choice.order.next
            case "p":
                self._choice.sort_pools(self._live)
            case "c" | "d" | "r":
                self._ask(key)

    def _ask(self, key: str) -> None:
        """Asks whether to cancel the chosen request, or to drain or resume the chosen pool."""
        pool = self._choice.pool_of(self._live)
        if not self._live.document.get("operator"):
            self._show_note(_ONLY_OPERATORS)
            return
        if pool is None:
            return
        order, name = self._sidecar.order, pool["name"]
        if key != "c":
            verb = {"d": "drain", "r": "resume"}[key]
            self._question = _Question(
                f"{verb} the pool {name}?",
                lambda: order("POST", "v1", "pools", name, verb),
                f"{name}: {verb} ordered",
            )
            return
        request = self._choice.request_of(pool)
        if request is None:
            self._show_note("choose a request first, by the keys up and down")
            return
        self._question = _Question(
            f"cancel the request {request['id']}?",
            lambda: order("DELETE", "v1", "requests", request["id"]),
            f"{request['id']}: cancelled",
        )

    def _give(self, question: _Question) -> None:
        async def give() -> None:
            self._show_note(await question.order() or question.done)
            self._changed.set()

        task = asyncio.create_task(give())
        self._orders.add(task)
        task.add_done_callback(self._orders.discard)

    def _show_note(self, text: str) -> None:
        self._note = text
        self._note_until_s = asyncio.get_running_loop().time() + _NOTE_S

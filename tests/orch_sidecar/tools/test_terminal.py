"""Progress and colour: what a terminal gets, and what a file gets."""

from __future__ import annotations

import io
import time
from collections.abc import Callable

import pytest

from orch_sidecar.tools import terminal
from orch_sidecar.tools.terminal import Progress, bad, good
from tests.patience import wait_until


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(terminal, "_REWRITE_S", 0.001)


def test_terminal_is_shown_one_line_that_is_rewritten_and_cleared() -> None:
    screen = Terminal()
    with Progress("reading", screen, after_s=0.0) as progress:
        wait_until(lambda: "reading (0 s)" in screen.getvalue())
        progress.phase("judging", "3 spans")
        wait_until(lambda: "judging, 3 spans" in screen.getvalue())
    shown = screen.getvalue()
    assert "\n" not in shown
    assert shown.startswith("\r\x1b[K")
    assert shown.endswith("\r\x1b[K")


def test_file_gets_a_line_for_each_phase_without_control_sequences() -> None:
    out = io.StringIO()
    with Progress("reading", out, after_s=0.0) as progress:
        wait_until(out.getvalue)
        for _ in range(3):
            progress.phase("reading", "more")
            time.sleep(0.005)
        progress.phase("judging")
        wait_until(lambda: "judging" in out.getvalue())
    assert [line.split(" (")[0] for line in out.getvalue().splitlines()] == ["reading", "judging"]
    assert "\x1b" not in out.getvalue()


def test_what_is_over_soon_shows_nothing() -> None:
    screen = Terminal()
    with Progress("reading", screen) as progress:
        progress.share = 0.5
        time.sleep(0.01)
    assert screen.getvalue() == ""


def test_line_has_the_share_and_the_time_that_is_left() -> None:
    progress = Progress("simulating", Terminal())
    start = progress._started
    assert progress.text(start + 3.0) == "simulating (3 s)"
    progress.share = 0.25
    assert progress.text(start + 10.0) == "simulating, 25% (10 s, about 30 s left)"
    progress.share = 1.0
    assert progress.text(start + 10.0) == "simulating, 100% (10 s)"
    progress.phase("another")
    assert progress.text(start + 10.0) == "another (10 s)"


def test_stream_that_is_gone_disturbs_nothing() -> None:
    screen = Terminal()
    with Progress("reading", screen, after_s=0.0):
        wait_until(screen.getvalue)
        screen.close()
        time.sleep(0.01)


@pytest.mark.parametrize("colour", [good, bad])
def test_colour_is_for_terminals_that_want_it(
    colour: Callable[[str, io.StringIO], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert colour("text", io.StringIO()) == "text"
    coloured = colour("text", Terminal())
    assert coloured != "text"
    assert coloured.endswith("\x1b[0m")
    monkeypatch.setenv("NO_COLOR", "")  # as if it was not set
    assert colour("text", Terminal()) == coloured
    monkeypatch.setenv("NO_COLOR", "1")
    assert colour("text", Terminal()) == "text"
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert colour("text", Terminal()) == "text"

"""How much of a run is over."""

from __future__ import annotations

import io
import sys

import pytest

from orch_sidecar.tools.bench.runs.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_terminal_is_shown_a_bar_with_the_estimated_end() -> None:
    screen = Terminal()
    with Progress("offline at once", 4, 0.0, screen) as progress:
        progress.ended(1.0)
    shown = screen.getvalue()
    assert "offline at once" in shown
    assert "ETA" in shown


def test_file_is_shown_nothing() -> None:
    out = io.StringIO()
    with Progress("x", 4, 0.0, out) as progress:
        progress.ended(1.0)
    assert out.getvalue() == ""


def test_without_tqdm_a_terminal_shows_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    screen = Terminal()
    with Progress("offline at once", 4, 0.0, screen) as progress:
        progress.ended(1.0)
    assert screen.getvalue() == "offline at once (for a progress bar: pip install tqdm)\n"


def test_run_is_over_when_requests_and_time_are() -> None:
    with Progress("x", 4, 10.0, io.StringIO()) as progress:
        for now_s, share in ((1.0, 0.1), (2.0, 0.2), (9.0, 0.75), (9.5, 0.95), (20.0, 1.0)):
            progress.ended(now_s)
            assert progress.share(now_s) == pytest.approx(share)

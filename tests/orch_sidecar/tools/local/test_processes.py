"""Child processes: their sessions, what is left of them, what they printed."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from orch_sidecar.tools.local import stack as processes
from orch_sidecar.tools.local.stack import Child, Plan, Stack, StackError
from tests.patience import HANG_S, wait_until

AUTOGROUP = Path("/proc/self/autogroup")
shares_cores_by_sessions = pytest.mark.skipif(
    not AUTOGROUP.exists(), reason="this kernel does not share cores by sessions"
)


@contextmanager
def running(folder: Path, code: str, niceness: int = 0) -> Iterator[Child]:
    """A child that has printed its first line."""
    program = [sys.executable, "-u", "-c", code]
    child = Child("child", program, os.environ, folder / "log", niceness)
    try:
        wait_until(lambda: child.last_lines(1))
        yield child
    finally:
        child.kill()


SLEEPS = "import time; print('here'); time.sleep(60)"
STAYS = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);" + SLEEPS


def test_child_is_in_a_session_of_its_own(tmp_path: Path) -> None:
    with running(tmp_path, SLEEPS) as child:
        assert os.getsid(child.pid) == child.pid
        assert child.exit_code is None


@shares_cores_by_sessions
@pytest.mark.parametrize("niceness", [0, 5])
def test_session_gets_its_niceness(tmp_path: Path, niceness: int) -> None:
    with running(tmp_path, SLEEPS, niceness) as child:
        autogroup = Path(f"/proc/{child.pid}/autogroup").read_text()
        assert autogroup.split()[1:] == ["nice", str(niceness)]
        assert AUTOGROUP.read_text() != autogroup


@shares_cores_by_sessions
def test_session_whose_niceness_cannot_be_set_is_logged_and_runs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running(tmp_path, SLEEPS, niceness=100) as child:
        assert child.exit_code is None
    assert "cannot set the niceness" in caplog.text


def test_child_is_terminated_and_then_killed(tmp_path: Path) -> None:
    with running(tmp_path, SLEEPS) as child:
        assert child.stop(HANG_S) == -15
    with running(tmp_path, STAYS) as child:
        assert child.stop(0.1) == -9


@pytest.mark.parametrize("code", ["", "import os; os.kill(os.getpid(), 9)"])
def test_nothing_is_left_of_a_child_that_ended_by_itself(tmp_path: Path, code: str) -> None:
    """The workers of an engine that was killed keep its memory, on a GPU too."""
    worker = "import subprocess as s, sys; w = s.Popen(['sleep', '600']); print(w.pid, flush=True);"
    with running(tmp_path, worker + code) as child:
        left = Path(f"/proc/{child.last_lines(1)[0]}/cmdline")
        child._process.wait(HANG_S)
        wait_until(lambda: left.read_bytes().startswith(b"sleep"))  # empty: it begins
        child.stop(HANG_S)
        wait_until(lambda: not (left.exists() and left.read_bytes()))  # empty: a zombie


def test_start_appends_to_the_log_after_a_line_that_marks_it(tmp_path: Path) -> None:
    log, starts = tmp_path / "8080" / "log", ("first", "second")
    for text in starts:
        program = [sys.executable, "-u", "-c", f"print('{text}')", "--api-key", "secret", "--x"]
        child = Child("engine", program, os.environ, log)
        child._process.wait(HANG_S)
        assert child.last_lines(9) == [text]
    marks = [line for line in log.read_text().splitlines() if "starts the engine" in line]
    assert len(marks) == 2
    for mark, text in zip(marks, starts, strict=True):
        assert re.fullmatch(r"[-\d]{10} [:,\d]{12} INFO orch\.local: orch \S+ starts .*", mark)
        assert f"print('\"'\"'{text}'\"'\"')" in mark
        assert mark.endswith(" --api-key *** --x")
    assert [each.stat().st_mode & 0o777 for each in (log.parent, log)] == [0o700, 0o600]


def test_log_that_is_too_long_is_set_aside_at_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_LONGEST_LOG_BYTES", 10)
    for _ in range(3):
        with running(tmp_path, SLEEPS) as child:
            child.stop(10.0)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["log", "log.1"]
    assert child.log.read_text().count("starts the child") == 1


def test_last_lines_are_the_end_of_what_was_printed(tmp_path: Path) -> None:
    code = "print('\\n'.join(map(str, range(20_000))), flush=True);" + SLEEPS
    with running(tmp_path, code) as child:
        wait_until(lambda: child.last_lines(1) == ["here"])
        assert child.last_lines(3) == ["19998", "19999", "here"]


def test_engine_that_ends_while_it_starts_is_an_error_with_what_it_said(tmp_path: Path) -> None:
    stack = Stack(Plan("home", "tiny"))
    ends = "print('that is no model'); raise SystemExit(3)"
    said = r"the child exited with code 3; the end of .*\n(.*\n)*  \| that is no model"
    with running(tmp_path, ends) as stack.engine, pytest.raises(StackError, match=said):
        stack.wait_ready(HANG_S, lambda waited, why: None)


def test_proxies_of_the_environment_are_not_asked_for_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where http_proxy is set, the stack would never be ready."""

    class Ready(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(503)
            self.end_headers()
            self.wfile.write(b'{"state": "starting"}')

    with HTTPServer(("127.0.0.1", 0), Ready) as server:
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
        threading.Thread(target=server.handle_request, daemon=True).start()
        answer = processes.get_json(f"http://127.0.0.1:{server.server_port}/readyz", HANG_S)
    assert answer == (503, {"state": "starting"})

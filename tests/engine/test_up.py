"""`orch up` as a newcomer runs it: what it prints works as printed, and Ctrl-C ends it all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orch_sidecar.tools.local.stack import free_port
from orch_sidecar.tools.local.up import cache_directory
from tests.engine.conftest import Stacks
from tests.engine.test_check import check_printed
from tests.patience import HANG_S, READY_WITHIN_S
from vllm_plugin.contracts.lease_protocol import CLAIMS_PATH


def processes_of(session: int) -> list[int]:
    """The processes that carry a marker in their environment, whoever their parent is now."""
    marker = f"ORCH_TEST_MARKER={session}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and marker in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue  # it has just ended, or is not ours to look at
    return found


@pytest.fixture
def marked(stacks: Stacks) -> dict[str, str]:
    stacks.stop_all()
    return dict(os.environ) | {"ORCH_TEST_MARKER": str(free_port())}


def test_the_printed_lines_work_and_ctrl_c_leaves_nothing_behind(
    marked: dict[str, str], tmp_path: Path
) -> None:
    port = free_port()
    printed = tmp_path / "printed"
    with printed.open("wb") as output:
        up = subprocess.Popen(
            [sys.executable, "-m", "orch_sidecar", "up", "--port", str(port)],
            env=marked,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        until = time.monotonic() + READY_WITHIN_S
        while "Press Ctrl-C to stop." not in printed.read_text():
            assert up.poll() is None, printed.read_text()
            assert time.monotonic() < until
            time.sleep(0.2)
        text = printed.read_text()
        assert "the engine: " in text  # the phases of its start
        assert "ready: single_stream, 1 slots" in text
        commands = text[text.index("  curl") : text.index("Ctrl-C")].split("\n\n")
        curl, python = (command.strip() for command in commands[:2])
        answer = subprocess.run(curl, shell=True, capture_output=True, text=True, timeout=HANG_S)
        assert '"object":"chat.completion"' in answer.stdout
        answer = subprocess.run(python, shell=True, capture_output=True, text=True, timeout=HANG_S)
        assert answer.returncode == 0, answer.stderr
        assert answer.stdout.strip()
        engine_and_sidecar_share_a_key(int(marked["ORCH_TEST_MARKER"]))
    finally:
        up.send_signal(signal.SIGINT)
        assert up.wait(HANG_S) == 0
    assert printed.read_text().endswith("stopping\nstopped\n")
    assert processes_of(int(marked["ORCH_TEST_MARKER"])) == []


def engine_and_sidecar_share_a_key(marker: int) -> None:
    """Both have it in their environment, nobody has it in its arguments, and no log has it."""
    keys: dict[str, str] = {}
    arguments: dict[str, list[str]] = {}
    for process in map(str, processes_of(marker)):
        environ = Path("/proc", process, "environ").read_text().split("\0")
        words = Path("/proc", process, "cmdline").read_text().split("\0")
        found = [each for each in environ if each.startswith("ORCH_SIDECAR_KEY=")]
        for name, word in (("engine", "vllm_plugin.serve"), ("sidecar", "sidecar")):
            if word in words:
                [keys[name]], arguments[name] = found, words
        assert not any(each.partition("=")[2] in " ".join(words) for each in found)
    assert keys["engine"] == keys["sidecar"]
    key = keys["engine"].partition("=")[2]
    assert len(key) >= 40
    for log in (cache_directory() / "logs").rglob("*.log"):
        assert key not in log.read_text(errors="replace")
    port = arguments["engine"][arguments["engine"].index("--port") + 1]
    url = f"http://127.0.0.1:{port}{CLAIMS_PATH}{'a' * 16}"
    body, claim = '{"cost": 1, "urgent": true}', ["curl", "-s", "-X", "PUT", url, "-d"]
    for more in ([], ["-H", "X-Orch-Sidecar-Key: guessed"], ["-H", "X-Forwarded-For: 127.0.0.1"]):
        done = subprocess.run([*claim, body, *more], capture_output=True, text=True, timeout=HANG_S)
        assert '"not_a_sidecar"' in done.stdout
        assert "ORCH_SIDECAR_KEY" in done.stdout


@pytest.mark.long
def test_check_shows_answer_capabilities_and_trace(marked: dict[str, str]) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "orch_sidecar", "up", "--check", "--profile", "offline"),
            *("--port", str(free_port())),
        ],
        env=marked,
        capture_output=True,
        text=True,
        timeout=READY_WITHIN_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    check_printed(done.stdout, "offline")
    assert '"requests_total": 4' in done.stdout
    assert '"steps_by_batch": {}' not in done.stdout
    assert done.stdout.splitlines()[-1].startswith("all is well: 4 requests answered")
    assert processes_of(int(marked["ORCH_TEST_MARKER"])) == []


@pytest.mark.long  # a start for what test_enforcement and the unit tests show
def test_check_reports_what_is_wrong(marked: dict[str, str], tmp_path: Path) -> None:
    port = str(free_port())
    done = subprocess.run(
        [
            *(sys.executable, "-m", "orch_sidecar", "up", "--check"),
            *("--port", port, "--", "--scheduler-cls", "mine"),
        ],
        env=marked,
        capture_output=True,
        text=True,
        timeout=READY_WITHIN_S,
    )
    assert done.returncode == 1
    assert "the engine exited with code 1" in done.stderr
    assert "--scheduler-cls is given, must not be" in done.stderr
    log = (cache_directory() / "logs" / port / "engine.log").read_text(errors="replace")
    assert "Starting to load model" not in log
    assert "command is deprecated" not in log, "it is started in a way that vLLM supports"

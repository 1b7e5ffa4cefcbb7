"""`orch bench` before it measures anything: what is refused, and with which exit code."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from orch_sidecar.tools.bench.cli import main
from tests.orch_sidecar.tools.facts.rows import HEADER

ONLINE = ("batched-online", "--rate", "1")


def code_of(*words: str) -> int:
    """The exit code of a command that is run here."""
    try:
        main(list(words))
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ((), "the following arguments are required: COMMAND"),
        (("batched-online",), "one of the arguments --rate --concurrency --trace is required"),
        (("sweep", "--plot", "x.gif"), "x.gif: the suffix of a plot must be .png or .svg"),
        ((*ONLINE, "--output", "/nowhere/x.json"), "it cannot be written: no such folder"),
        ((*ONLINE, "--output", "f.csv"), "argument --output: 'f.csv' must end in .json"),
        ((*ONLINE, "--facts", "/"), "--facts /: it cannot be written: /: must be a regular file"),
        ((*ONLINE, "--report", "a.json"), "'a.json' must end in .html"),
        ((*ONLINE, "--report", "/nowhere/a.html"), "it cannot be written: no such folder"),
    ],
)
def test_bad_usage_exits_with_2(
    words: tuple[str, ...], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of(*words) == 2
    assert error in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "error"),
    [("a,b\n1,2\n", ":1"), (f'{HEADER}\nm/x,"x', ":2: invalid CSV")],
)
def test_table_that_cannot_be_appended_to_is_rejected_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, error: str
) -> None:
    table = tmp_path / "table.csv"
    table.write_text(content, encoding="utf-8")
    assert code_of(*ONLINE, "--facts", str(table)) == 2
    assert f"{table}{error}" in capsys.readouterr().err


def test_one_file_for_two_things_is_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "f.json"
    same = str(tmp_path / "." / "f.json")
    assert code_of(*ONLINE, "--output", str(path), "--facts", same) == 2
    assert f"--facts {same}: it must not be the file of --output" in capsys.readouterr().err
    assert not path.exists()


def test_unwritable_folder_is_rejected_before_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody can make a file in /proc, not even root."""
    monkeypatch.chdir("/proc")
    assert code_of(*ONLINE) == 2
    assert "--output orch-bench.json: it cannot be written: " in capsys.readouterr().err
    assert code_of(*ONLINE, "--output", "/proc/x.json") == 2
    assert "--output /proc/x.json: it cannot be written: " in capsys.readouterr().err


def test_invalid_url_exits_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of(*ONLINE, "--url", "localhost:8080") == 1
    assert "'localhost:8080' is not the URL of an endpoint" in capsys.readouterr().err


def test_endpoint_that_is_not_there_exits_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        assert code_of(*ONLINE, "--url", url) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"orch bench batched-online: GET {url}/v1/capabilities: ")
    assert "Traceback" not in error


@pytest.mark.parametrize(
    "command", ["", "single-stream", "batched-online", "offline", "sweep", "report", "compare"]
)
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of(*command.split(), "--help") == 0
    printed = capsys.readouterr().out
    assert "usage: orch bench" in printed
    assert "%(" not in printed

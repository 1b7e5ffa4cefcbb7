"""Mistakes on the command line: a line with value and rule, before anything starts."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from orch_sidecar import cli
from orch_sidecar.tools.local import engine, stack, up
from orch_sidecar.tools.local.stack import Plan, Stack, StackError, free_port

ROOT = Path(__file__).parents[4]

pytestmark = pytest.mark.usefixtures("no_settings_in_the_environment")


class Started(BaseException):
    """Something would run now."""


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def start(*_: object, **__: object) -> None:
        raise Started

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(subprocess, "run", start)
    monkeypatch.setattr(stack, "Child", start)
    monkeypatch.setattr(os, "execv", start)
    for module in (up, engine):
        monkeypatch.setattr(module, "find_spec", lambda name: object())
    monkeypatch.setattr("orch_sidecar.tools.local.up.signal.signal", lambda *_: None)


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Returns the one line that a command prints before it exits for bad usage."""
    with pytest.raises(SystemExit) as exited:
        cli.main(words)
    printed = capsys.readouterr()
    assert (exited.value.code, printed.out) == (2, "")
    [line] = printed.err.splitlines()
    assert line.startswith(f"orch {words[0]}: ")
    return line


@pytest.mark.parametrize(
    ("words", "value", "rule"),
    [
        ("up --port 99999", "'99999'", "less than or equal to 65535"),
        ("up --port http", "'http'", "valid integer"),
        ("up --port=-1", "'-1'", "greater than or equal to 0"),
        ("up --slots 0", "--slots is 0", "must be 1 in profile 'home'"),
        ("up --profile home --slots 4", "--slots is 4", "must be 1 in profile 'home'"),
        ("up --profile cloud --slots 1", "--slots is 1", "must be at least 2 in profile 'cloud'"),
        ("up --slots many", "'many'", "int"),
        ("up --profile nowhere", "'nowhere'", "use one of cloud, home, offline"),
        ("up --model /no/such", "'/no/such'", "must be a directory that exists"),
        ("up --model ./such -- --x", "'./such'", "must be a directory that exists"),
        ("up -- --max-num-seqs=4", "--max-num-seqs is 4", "must be 1 in profile 'home'"),
        ("up --sluts 4", "--sluts", "unrecognized"),
        ("engine --port 99999 m", "'99999'", "from 0 to 65535"),
        ("engine m --max_num_seqs 4", "--max-num-seqs is 4", "must be 1 in profile 'home'"),
        ("engine --profile cloud m --max-num-seqs 0", "is 0", "at least 2 in profile 'cloud'"),
        ("engine ~/no-such-model", "'~/no-such-model'", "must be a directory that exists"),
        ("engine --model a/b/c", "'a/b/c'", "must be a directory that exists"),
        ("engine --profile nowhere m", "'nowhere'", "use one of cloud, home, offline"),
        ("sidecar --port 99999", "'99999'", "less than or equal to 65535"),
        ("sidecar --slots 4", "--slots", "unrecognized"),
    ],
)
def test_mistake_is_one_line_with_value_and_rule(
    words: str, value: str, rule: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refused(capsys, *words.split())
    assert value in line
    assert rule in line


@pytest.mark.parametrize("name", ["ORCH_PORT", "ORCH_ADMIN_PORT"])
def test_environment_of_the_sidecar_is_read_before_anything_starts(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "99999")
    for command in ("up", "sidecar"):
        assert f"{name}): '99999'" in refused(capsys, command)


@pytest.mark.parametrize(
    "words",
    [
        *(f"engine {model}" for model in ("m", "org/model", "s3://bucket/deep/model", ".", "/")),
        "up --port 0 --model org/model",
    ],
)
def test_model_that_may_exist_is_left_to_vllm(words: str) -> None:
    with pytest.raises(Started):
        cli.main(words.split())


def test_numbers_in_a_form_of_vllm_are_left_to_it() -> None:
    with pytest.raises(Started):
        cli.main(["engine", "m", "--profile", "cloud", "--max-num-batched-tokens", "8k"])


@pytest.mark.parametrize("model", ["m", ""])
def test_home_that_cannot_be_written_to_is_named(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    with pytest.raises(SystemExit) as exited:
        cli.main(["up", "--port", "0", *(["--model", model] if model else [])])
    text = str(exited.value.code)
    assert text.startswith("orch up: ")
    assert f"Not a directory: '{tmp_path}/file/.cache" in text
    assert "set HOME or XDG_CACHE_HOME" in text
    assert "\n" not in text


@pytest.mark.parametrize(("admin", "port"), [("0", None), ("{}", "{}")])
def test_admin_port_is_that_of_the_environment(
    admin: str, port: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = free_port()
    monkeypatch.setenv("ORCH_ADMIN_PORT", admin.format(wanted))
    monkeypatch.setenv("ORCH_PORT", "0")
    started: list[Stack] = []

    def start(self: Stack) -> None:
        started.append(self)
        raise Started

    monkeypatch.setattr(Stack, "start_engine", start)
    with pytest.raises(Started):
        cli.main(["up", "--model", "m"])
    [found] = started
    assert found.admin_port == (wanted if port else found.admin_port) != 0
    assert found.admin_url == f"http://127.0.0.1:{found.admin_port}"


def test_admin_port_that_is_taken_is_rejected_before_anything_starts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        plan = Plan("home", "model", admin_port=taken.getsockname()[1])
        with pytest.raises(StackError, match="choose another port with ORCH_ADMIN_PORT"):
            Stack(plan).require_ports()
    port = free_port()
    with pytest.raises(StackError, match="choose another port with ORCH_ADMIN_PORT"):
        Stack(Plan("home", "model", port=port, admin_port=port)).require_ports()


def test_mistake_is_found_before_anything_heavy_is_imported() -> None:
    code = (
        "import sys; from orch_sidecar import cli\n"
        "try: cli.main(['up', '--slots', '4'])\n"
        "except SystemExit: print({'vllm', 'torch', 'aiohttp'} & set(sys.modules))"
    )
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.Popen([sys.executable, "-c", code], env=environ, stdout=subprocess.PIPE)
    assert done.communicate()[0] == b"set()\n"

"""The command line of `orch`: its commands, and what `--help` shows of each setting."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from orch_sidecar import cli
from orch_sidecar.config.settings import SidecarSettings

pytestmark = pytest.mark.usefixtures("no_settings_in_the_environment")

UNITS = {"_s": "seconds", "_bytes": "bytes", "_depth": "levels", "_capacity": "requests"}


@pytest.fixture
def help_entries(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """The options of `orch sidecar --help`: flag -> its whole entry on one line."""
    with pytest.raises(SystemExit) as exited:
        cli.main(["sidecar", "--help"])
    assert exited.value.code == 0
    options = capsys.readouterr().out.partition("\noptions:\n")[2]
    entries = re.split(r"\n  (?=-)", "\n" + options)
    return {entry.split()[0]: " ".join(entry.split()) for entry in entries if entry.strip()}


@pytest.mark.parametrize("name", SidecarSettings.model_fields)
def test_help_lists_the_setting_with_default_and_unit(
    name: str, help_entries: dict[str, str]
) -> None:
    field = SidecarSettings.model_fields[name]
    entry = help_entries[f"--{name.replace('_', '-')}"]
    assert field.description
    assert field.description in entry
    assert ("(default: " in entry) == (field.default is not None)
    if field.default is not None:
        assert f"(default: {field.default})" in entry
    for suffix, unit in UNITS.items():
        if name.endswith(suffix):
            assert unit in entry


def test_variable_that_is_almost_one_of_a_setting_is_named() -> None:
    wrong = ("ORCH_API_KEY_FILE", "ORCH_QUEUE_TIMEOUT", "ORCH_POOL", "ORCH_BATCH", "ORCH_ENGINEURL")
    meant = ("API_KEYS_FILE", "QUEUE_TIMEOUT_S", "POOLS", "BATCHES", "ENGINE_URL")
    found = cli.misspelt([*wrong, "ORCH_PORT", "ORCH_CONFIG", "ORCH_EVIDENCE_KEY", "ORCH_WARM_UP"])
    assert found == {name: f"ORCH_{right}" for name, right in zip(wrong, meant, strict=True)}


def test_ctrl_c_before_the_sidecar_runs_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(arguments: list[str]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_sidecar", interrupted)
    with pytest.raises(SystemExit) as exited:
        cli.main(["sidecar"])
    assert exited.value.code == "orch sidecar: interrupted"


def test_help_names_no_type_of_python(help_entries: dict[str, str]) -> None:
    shown = {entry.split()[1] for flag, entry in help_entries.items() if flag != "-h,"}
    assert {"KEY", "SECONDS", "JSON", "true|false", "keys|open", "N"} <= shown
    words = ("str", "int", "float", "bool", "Path", "SecretStr", "PoolSettings", "null", "None")
    found = [
        (flag, word)
        for flag, entry in help_entries.items()
        for word in words
        if word in re.findall(r"\w+", entry.split(" (default: ")[0])
    ]
    assert found == []


def test_help_lists_the_sources_of_settings(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["sidecar", "--help"])
    text = capsys.readouterr().out
    assert "--config" in text
    assert "ORCH_CONFIG" in text
    assert "OTEL_" in text


@pytest.mark.parametrize("words", [[], ["nonsense"], ["--port", "1"]])
def test_command_line_without_a_command_is_bad_usage(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exited:
        cli.main(words)
    assert exited.value.code == 2
    assert "usage: orch" in capsys.readouterr().err


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        cli.main(["--help"])
    assert exited.value.code == 0
    out = capsys.readouterr().out
    for command in ("up", "engine", "sidecar"):
        assert re.search(rf"^ +{command} +\w", out, re.MULTILINE)


def test_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        cli.main(["--version"])
    assert exited.value.code == 0
    assert capsys.readouterr().out == f"orch {version('orch-sidecar')} (pure)\n"


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_knows_the_options_of_every_command(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cli.main(["completion", shell])
    script = capsys.readouterr().out
    for word in ("--version", "--engine-api-key", "--check", "--weight", "from-jaeger", "--since"):
        assert word in script, word
    for command in cli._COMMANDS:
        assert command in script


def test_output_that_nobody_reads_any_more_is_no_error() -> None:
    """As that of `orch completion bash | head`."""
    command = [sys.executable, "-c", "from orch_sidecar.cli import main; main()"]
    reader, writer = os.pipe()
    os.close(reader)
    try:
        ended = subprocess.run(
            [*command, "completion", "bash"], stdout=writer, stderr=subprocess.PIPE, check=False
        )
    finally:
        os.close(writer)
    assert (ended.returncode, ended.stderr) == (128 + signal.SIGPIPE, b"")


def test_completion_by_bash_itself(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    cli.main(["completion", "bash"])
    script = tmp_path / "orch.bash"
    script.write_text(capsys.readouterr().out)
    ask = r"""
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMP_LINE="$*"
COMP_POINT=${#COMP_LINE}; $(complete -p orch | sed 's/.*-F \([^ ]*\).*/\1/')
printf '%s\n' "${COMPREPLY[@]}"
"""

    def completed(*words: str) -> set[str]:
        run = ["bash", "-c", ask, "bash", str(script), "orch", *words]
        return set(subprocess.run(run, capture_output=True, text=True, check=True).stdout.split())

    assert {"sidecar", "simulate"} <= completed("s")
    assert completed("sidecar", "--request-l") == {"--request-log"}
    assert {"single-stream", "sweep"} <= completed("bench", "s")
    assert completed("drain", "--eng") == {"--engine-stops"}


def test_completion_without_shtab_states_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    with pytest.raises(SystemExit, match="pip install shtab"):
        cli.main(["completion", "bash"])

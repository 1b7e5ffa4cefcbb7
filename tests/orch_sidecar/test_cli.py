"""The command line of `orch`: its commands, and what `--help` says of each setting."""

from __future__ import annotations

import re

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
    default = "null" if field.default is None else str(field.default)
    assert f"(default: {default})" in entry
    for suffix, unit in UNITS.items():
        if name.endswith(suffix):
            assert unit in entry


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

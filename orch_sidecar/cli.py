"""The command line: `orch up`, `orch engine`, `orch sidecar`, `orch key`, `orch simulate`,
`orch bench`, `orch facts`, `orch drain`."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import CliApp, SettingsError

from orch_sidecar.config.settings import SidecarSettings
from vllm_plugin.profile import ProfileError

_COMMANDS: Final = {
    "up": "engine and sidecar on this machine, ready for an OpenAI client",
    "engine": "vLLM's OpenAI server under a profile",
    "sidecar": "admission and relay in front of engines",
    "key": "a new API key for a client of a sidecar",
    "simulate": "what admission would do with an engine and a traffic, in virtual time",
    "bench": "measures an endpoint or a device, and says what the figure is worth",
    "drain": "has a sidecar take nothing more, and waits for what it has",
    "facts": "labelled throughput figures: check, merge and compare tps_model_gpu.csv",
}

_SIDECAR_HELP: Final = """Admission and relay in front of vLLM engines.

Each setting is a flag, or ORCH_<NAME> in the environment, or a key of the YAML file that
--config or ORCH_CONFIG names; the first of these that is given counts. Traces are configured
by the standard OTEL_* variables."""

_EPILOG: Final = "`orch COMMAND --help` explains each."


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command; exits with 2 for bad usage, with 1 when something did not work."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(
        prog="orch",
        description="Batching-aware serving for vLLM.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, text in _COMMANDS.items():
        commands.add_parser(name, help=text, add_help=False)
    command = parser.parse_args(words[:1]).command
    runs = {
        "up": _up,
        "engine": _engine,
        "sidecar": _sidecar,
        "key": _key,
        "simulate": _simulate,
        "bench": _bench,
        "drain": _drain,
        "facts": _facts,
    }
    try:
        runs[command](words[1:])
    except ProfileError as error:
        sys.exit(f"orch {command}: {error}")


def _up(words: list[str]) -> None:
    from orch_sidecar.tools.local.up import main as up

    up(words)


def _engine(words: list[str]) -> None:
    from orch_sidecar.tools.local.engine import main as engine

    engine(words)


def _key(words: list[str]) -> None:
    from orch_sidecar.tools.new_key import main as key

    key(words)


def _simulate(words: list[str]) -> None:
    from orch_sidecar.tools.simulate.cli import main as simulate

    simulate(words)


def _bench(words: list[str]) -> None:
    from orch_sidecar.tools.bench.cli import main as bench

    bench(words)


def _facts(words: list[str]) -> None:
    from orch_sidecar.tools.facts.cli import main as facts

    facts(words)


def _drain(words: list[str]) -> None:
    from orch_sidecar.tools.drain import main as drain

    drain(words)


def _sidecar(words: list[str]) -> None:
    settings = read_settings(words)
    logging.basicConfig(
        level=settings.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    import uvloop

    from orch_sidecar.app.sidecar import serve

    try:
        code = uvloop.run(serve(settings, lambda: load_settings(words)))
    except (OSError, ValueError) as error:
        if isinstance(error, ProfileError):
            raise
        sys.exit(f"orch sidecar: {error}")
    sys.exit(code)


class InvalidSettings(ValueError):
    """Settings that cannot be used; the message names each, its value and the rule."""


def read_settings(words: list[str]) -> SidecarSettings:
    """Settings from flags, environment and file; exits with what is wrong with them."""
    try:
        return load_settings(words)
    except InvalidSettings as wrong:
        sys.exit(f"orch sidecar: {wrong}")


def load_settings(words: list[str]) -> SidecarSettings:
    """Settings from flags, environment and file. Raises InvalidSettings."""
    first = argparse.ArgumentParser(prog="orch sidecar", add_help=False, allow_abbrev=False)
    first.add_argument("--config", default=os.environ.get("ORCH_CONFIG"))
    chosen, rest = first.parse_known_args(words)

    class Settings(SidecarSettings):
        __doc__ = _SIDECAR_HELP

    if chosen.config is not None:
        Settings.file_values = _file_values(chosen.config)
    try:
        return CliApp.run(Settings, cli_args=rest)
    except ValidationError as error:
        problems = [_told(problem) for problem in error.errors()]
        raise InvalidSettings("\n              ".join(problems)) from error
    except SettingsError as error:
        raise InvalidSettings(str(error)) from error


def _file_values(path: str) -> dict[str, Any]:
    """The settings in a file, by name; none in an empty one. Raises InvalidSettings."""
    if not Path(path).is_file():
        raise InvalidSettings(f"--config {path}: no such file")
    try:
        document = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise InvalidSettings(f"--config {path}: not a YAML mapping: {error}") from error
    if document is None:
        return {}
    if not isinstance(document, dict) or not all(isinstance(name, str) for name in document):
        text = "settings by their names are needed"
        raise InvalidSettings(f"--config {path}: not a YAML mapping: {text}")
    return document


def _told(problem: ErrorDetails) -> str:
    """One wrong setting: its name, its value (never a key) and the rule."""
    name = str(problem["loc"][0]) if problem["loc"] else "settings"
    within = ".".join(map(str, problem["loc"][1:]))
    value = repr(problem["input"])
    in_pools = name == "pools" and (
        not within or isinstance(problem["input"], dict) or problem["type"] == "extra_forbidden"
    )
    # A key, what may hold one or be one under a name mistyped, or a URL with a password.
    if in_pools or "api_key" in name + within or "@" in value:
        value = "(not shown)"
    place = f"{within}: " if within else ""
    return (
        f"{name} (--{name.replace('_', '-')}, ORCH_{name.upper()}): "
        f"{place}{value}: {problem['msg']}"
    )


if __name__ == "__main__":
    main()

"""The command line `orch` and its commands."""

from __future__ import annotations

import argparse
import difflib
import importlib
import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import CliApp, CliSettingsSource, SettingsError

from orch_sidecar.config.installation import VERSION, build
from orch_sidecar.config.pool_settings import in_home
from orch_sidecar.config.settings import SidecarSettings
from vllm_plugin.contracts.profile import ProfileError

_COMPLETION: Final = "tools.completion"
_UP: Final = "tools.local.up"

# Each command, the module whose `main` runs it (imported on demand), and its help. A module's
# `parser` has its arguments; without a module the command is here.
_COMMANDS: Final = {
    "up": (_UP, "run an engine and a sidecar on this machine"),
    "engine": ("tools.local.engine", "run vLLM's OpenAI server under a profile"),
    "sidecar": (None, "run the sidecar: admission in front of engines"),
    "key": ("tools.new_key", "generate an API key for a client of a sidecar"),
    "simulate": ("tools.simulate.cli", "simulate admission with an engine and traffic"),
    "bench": ("tools.bench.cli", "measure an endpoint or a device, and validate the figures"),
    "tune": ("tools.sizing.tune", "find slots and step size of an engine from one warm run"),
    "plan": ("tools.sizing.plan", "predict how many engines your traffic needs"),
    "top": ("tools.top.cli", "show what a sidecar does, live in a terminal or once for a script"),
    "drain": ("tools.drain", "drain the pools of a sidecar, and wait until they are empty"),
    "facts": ("tools.facts.cli", "check, merge and compare labelled throughput figures"),
    "completion": (_COMPLETION, "print the completion script of a shell"),
}

_Parser = argparse.ArgumentParser

# What the help shows of a value, by the end of the setting's name, else by its type.
_SHOWN: Final = {
    "port": "PORT",
    "host": "ADDRESS",
    "url": "URL",
    "_file": "FILE",
    "request_log": "FILE",
    "batches": "PATH",
    "_database": "URL",
    "_s": "SECONDS",
    "_bytes": "BYTES",
    "_key": "KEY",
    "pools": "JSON",
    "_hosts": "JSON",
    "gateways": "JSON",
    "parents": "keys|open",
    "log_level": "LEVEL",
    "profile": "NAME",
}

# A letter or a word of two letters more or less; the variables of engines are less like them.
_ALIKE: Final = 0.88

_SIDECAR_HELP: Final = """Runs the sidecar: admission and proxying in front of vLLM engines.

Each setting is a flag, an environment variable ORCH_<NAME>, or a key of the YAML file given by
--config or ORCH_CONFIG, in this order of precedence. Traces are configured by the standard OTEL_*
variables."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command; exits with 2 for bad usage and with 1 if the command failed."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    command = _parser(lambda name: ()).parse_args(words[:1]).command
    module, _ = _COMMANDS[command]
    try:
        if module is None:
            _sidecar(words[1:])
        elif module == _COMPLETION:
            script = importlib.import_module(f"orch_sidecar.{module}").script
            print(script(words[1:], lambda: _parser(_arguments)))
        elif module == _UP:
            importlib.import_module(f"orch_sidecar.{module}").main(words[1:], read_settings)
        else:
            importlib.import_module(f"orch_sidecar.{module}").main(words[1:])
        if sys.stdout is not None:
            sys.stdout.flush()
    except KeyboardInterrupt:  # while modules are imported: a sidecar that runs ends by itself
        sys.exit(f"orch {command}: interrupted")
    except BrokenPipeError:  # `| head` has what it wants
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
    except (InvalidSettings, ProfileError) as error:
        print(f"orch {command}: {error}", file=sys.stderr)
        sys.exit(2)
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("orch_sidecar."):
            raise
        sys.exit(f"orch {command}: this installation has no tools: install the project (README.md)")


def _parser(arguments: Callable[[str], Sequence[argparse.ArgumentParser]]) -> _Parser:
    """Returns the parser of the commands, each with the arguments that are given for its name."""
    parser = _Parser(
        prog="orch",
        description="Batching-aware serving for vLLM.",
        epilog="`orch COMMAND --help` describes each command.",
    )
    text = f"orch {VERSION} ({build()})"
    parser.add_argument("--version", action="version", version=text, help="print it, and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (_, text) in _COMMANDS.items():
        commands.add_parser(name, help=text, add_help=False, parents=list(arguments(name)))
    return parser


def _arguments(name: str) -> Sequence[argparse.ArgumentParser]:
    """Returns the parser of one command; imports what it needs."""
    module, _ = _COMMANDS[name]
    if module is not None:
        parser: _Parser = importlib.import_module(f"orch_sidecar.{module}").parser()
        return (parser,)
    return (_source(SidecarSettings).root_parser,)


def _sidecar(arguments: list[str]) -> None:
    settings = read_settings(arguments)
    logging.basicConfig(
        level=settings.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logger = logging.getLogger("orch.sidecar")
    for name, meant in misspelt(os.environ).items():
        logger.warning("%s has no effect: did you mean %s?", name, meant)
    import uvloop

    from orch_sidecar.app.sidecar import serve

    try:
        code = uvloop.run(serve(settings, lambda: read_settings(arguments)))
    except ProfileError:
        raise
    except (OSError, ValueError) as error:
        number = f"[Errno {error.errno}] " if isinstance(error, OSError) else ""
        sys.exit(f"orch sidecar: {str(error).removeprefix(number)}")
    sys.exit(code)


class InvalidSettings(ValueError):
    """Invalid settings; the message gives each with its value and the rule."""


def read_settings(arguments: list[str]) -> SidecarSettings:
    """Reads the settings from flags, environment and file. Raises InvalidSettings."""
    first = argparse.ArgumentParser(prog="orch sidecar", add_help=False, allow_abbrev=False)
    first.add_argument("--config", default=os.environ.get("ORCH_CONFIG"))
    chosen, rest = first.parse_known_args(arguments)

    class Settings(SidecarSettings):
        __doc__ = _SIDECAR_HELP

    if chosen.config is not None:
        Settings.file_values = _file_values(in_home(chosen.config))
    try:
        return CliApp.run(Settings, cli_args=rest, cli_settings_source=_source(Settings))
    except ValidationError as error:
        problems = [_describe(problem) for problem in error.errors()]
        raise InvalidSettings("\n              ".join(problems)) from error
    except SettingsError as error:
        if not (found := re.search('value for field "(.+?)" from', str(error))):
            raise InvalidSettings(str(error)) from error
        variable = f"ORCH_{found[1].upper()}"
        rule = 'must be a list in JSON, such as ["10.0.0.7"]'
        raise InvalidSettings(f"{variable}: {os.environ.get(variable)!r}: {rule}") from error


def misspelt(environ: Iterable[str]) -> dict[str, str]:
    """Returns variables that are like one of a setting and none, with that one: who mistypes that
    of the key file would serve everybody. Others beginning like them may be anything's."""
    known = {f"ORCH_{name.upper()}" for name in SidecarSettings.model_fields}
    others = {name for name in environ if name.startswith("ORCH_")} - known
    like = {name: difflib.get_close_matches(name, known, 1, _ALIKE) for name in sorted(others)}
    return {name: found[0] for name, found in like.items() if found}


def _source(settings: type[SidecarSettings]) -> CliSettingsSource[Any]:
    """Returns the command line of the settings, whose help has words instead of Python's types."""
    source = CliSettingsSource[Any](settings)
    for action in source.root_parser._actions:
        if (field := settings.model_fields.get(action.dest)) is not None:
            action.metavar = _shown_type(action.dest, field.annotation)
            action.help = (action.help or "").replace(" (default: null)", "")
    return source


def _shown_type(name: str, annotation: Any) -> str:
    """Returns what the help shows in place of a setting's value."""
    ends = (shown for end, shown in _SHOWN.items() if name.endswith(end))
    return next(ends, "true|false" if annotation is bool else "N")


def _file_values(path: str) -> dict[str, Any]:
    """Reads the settings of a file by name. Raises InvalidSettings."""
    if not Path(path).is_file():
        raise InvalidSettings(f"--config {path}: no such file")
    try:
        document = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise InvalidSettings(f"--config {path}: not a YAML mapping: {error}") from error
    if document is None:
        return {}
    if not isinstance(document, dict) or not all(isinstance(name, str) for name in document):
        raise InvalidSettings(
            f"--config {path}: not a YAML mapping: it must map setting names to values"
        )
    return document


def _describe(problem: ErrorDetails) -> str:
    """Describes an invalid setting by name, value (never a key) and rule."""
    name = str(problem["loc"][0]) if problem["loc"] else "settings"
    within = ".".join(map(str, problem["loc"][1:]))
    value = repr(problem["input"])
    in_pools = name == "pools" and (
        not within or isinstance(problem["input"], dict) or problem["type"] == "extra_forbidden"
    )
    # A key, a value that may contain one or be one under a mistyped name, or a URL with a password.
    if in_pools or "_key" in name.replace("api_keys_required", "") + within or "@" in value:
        value = "(not shown)"
    place = f"{within}: " if within else ""
    return (
        f"{name} (--{name.replace('_', '-')}, ORCH_{name.upper()}): "
        f"{place}{value}: {problem['msg']}"
    )


if __name__ == "__main__":
    main()

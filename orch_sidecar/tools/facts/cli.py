"""`orch facts`: the composition of its commands."""

from __future__ import annotations

import argparse
from typing import Final

from orch_sidecar.tools.arguments import TextParser, run_command
from orch_sidecar.tools.facts.commands import rows, tables
from orch_sidecar.tools.terminal import escape_unencodable_output

_DESCRIPTION: Final = """Labelled throughput figures, as rows of tps_model_gpu.csv.

A row states how the engine was batching (measurement_type), and its notes the lengths of prompt and
answer and whether sequences were batched. Faults are printed as file:line:column: name 'value':
rule."""

_EPILOG: Final = """exit codes: 0 success, 1 faults, rejected measurements or nothing to compare,
            2 usage error or unreadable input

`orch facts COMMAND --help` describes a command."""


def main(arguments: list[str]) -> None:
    """Runs a command; exits with its code unless that is 0."""
    escape_unencodable_output()
    options = parser().parse_args(arguments)
    run_command("orch facts", lambda: int(options.run(options)))


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    found = TextParser(prog="orch facts", description=_DESCRIPTION, epilog=_EPILOG)
    commands = found.add_subparsers(dest="facts_command", metavar="COMMAND", required=True)
    rows.add_commands(commands)
    tables.add_commands(commands)
    return found

"""`orch facts`: the composition of its commands.

Each module of `commands` has a function `add_commands`, which defines the arguments of its commands
and, for each, what does its work and returns the exit code.
"""

from __future__ import annotations

import argparse
import sys
from typing import Final

from orch_sidecar.tools.arguments import TextParser
from orch_sidecar.tools.facts.commands import compare, imports, tables, traces, verify
from orch_sidecar.tools.facts.commands.terminal import (
    Refused,
    escape_unencodable_output,
    print_error,
)
from orch_sidecar.tools.facts.tables.files import Conflict
from orch_sidecar.tools.facts.tables.table import UnreadableFile

# In the order in which `orch facts --help` shows their commands.
_MODULES: Final = (traces, imports, tables, verify, compare)

_DESCRIPTION: Final = """Labelled throughput figures, as rows of tps_model_gpu.csv.

A row states how the engine was batching (measurement_type), and its notes the lengths of prompt and
answer and whether sequences were batched. Faults are printed as file:line:column: name 'value':
rule."""

_EPILOG: Final = """exit codes: 0 success, 1 faults, rejected measurements or nothing to compare,
            2 usage error or unreadable input

`orch facts COMMAND --help` describes a command."""


def main(arguments: list[str]) -> None:
    """Runs a command; exits with its code unless that is 0, with 2 for unreadable input."""
    escape_unencodable_output()
    options = parser().parse_args(arguments)
    try:
        code: int = options.run(options)
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        print_error(f"orch facts: {what}")
        sys.exit(2)
    except MemoryError:
        print_error("orch facts: the input is too large for the memory of this machine")
        sys.exit(2)
    except Refused as error:
        print_error(error)
        sys.exit(1)
    except (UnreadableFile, Conflict) as error:
        print_error(f"orch facts: {error}")
        sys.exit(1 if isinstance(error, Conflict) else 2)
    if code:
        sys.exit(code)


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    found = TextParser(prog="orch facts", description=_DESCRIPTION, epilog=_EPILOG)
    commands = found.add_subparsers(dest="facts_command", metavar="COMMAND", required=True)
    for module in _MODULES:
        module.add_commands(commands)
    return found

"""`orch facts`: the composition of its commands.

Each module of `_MODULES` brings some: `add_commands` gives them their arguments, and a function
`run` that does the work and returns the exit code.
"""

from __future__ import annotations

import argparse
import sys
from typing import Final

from orch_sidecar.tools.facts.commands import compare as compare_cli
from orch_sidecar.tools.facts.commands import imports as imports_cli
from orch_sidecar.tools.facts.commands import tables as tables_cli
from orch_sidecar.tools.facts.commands import traces as traces_cli
from orch_sidecar.tools.facts.commands.terminal import print_anything
from orch_sidecar.tools.facts.tables.files import Conflict
from orch_sidecar.tools.facts.tables.table import UnreadableFile

# In the order in which `orch facts --help` shows their commands.
_MODULES: Final = (traces_cli, imports_cli, tables_cli, compare_cli)

_DESCRIPTION: Final = """Labelled throughput figures, as rows of tps_model_gpu.csv.

A row says how the engine was batching (measurement_type), and its notes say the prompt's and the
answer's length and whether sequences were batched. What breaks a rule is told as
file:line:column: name 'value': rule."""

_EPILOG: Final = """exit codes: 0 fine, 1 faults were found or nothing can be compared,
            2 bad usage or a file that cannot be read

`orch facts COMMAND --help` explains each."""


def main(words: list[str]) -> None:
    """Runs a command; exits with its code unless that is 0, with 2 for what cannot be read."""
    print_anything()
    options = _parser().parse_args(words)
    try:
        code: int = options.run(options)
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        print(f"orch facts: {what}", file=sys.stderr)
        sys.exit(2)
    except (UnreadableFile, Conflict) as error:
        print(f"orch facts: {error}", file=sys.stderr)
        sys.exit(1 if isinstance(error, Conflict) else 2)
    if code:
        sys.exit(code)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="orch facts",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="facts_command", metavar="COMMAND", required=True)
    for module in _MODULES:
        module.add_commands(commands)
    return parser

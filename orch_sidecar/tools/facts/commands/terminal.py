"""How `orch bench` and `orch facts` add their commands."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

Commands: TypeAlias = "argparse._SubParsersAction[Any]"


def add_command(
    commands: Commands,
    name: str,
    run: Callable[[argparse.Namespace], int],
    text: str,
    *,
    files: str | None = None,
) -> argparse.ArgumentParser:
    """Adds a command.

    `run`: does its work and returns the exit code. `text`: its first paragraph says what that is;
    what begins with `examples:` is shown below the options. `files`: what it reads, if it does.
    """
    summary = text.partition("\n\n")[0].rstrip(".")
    description, begin, rest = text.partition("examples:\n")
    parser: argparse.ArgumentParser
    parser = commands.add_parser(
        name, help=summary, description=description, epilog=f"{begin}{rest}"
    )
    parser.set_defaults(run=run)
    if files is not None:
        parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help=files)
    return parser

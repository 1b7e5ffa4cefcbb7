"""What the commands share: parsers with examples, and output."""

from __future__ import annotations

import argparse
import io
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from orch_sidecar.tools.facts.tables.row import COLUMNS, Row
from orch_sidecar.tools.facts.tables.table import record_text, row_fields

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def escape_unencodable_output() -> None:
    """Makes stdout and stderr write characters that they cannot encode as escapes, as `\\u2026`.

    A name in a table must not cost the result of a measurement.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def add_command(
    commands: Commands, name: str, summary: str, description: str, epilog: str | None = None
) -> argparse.ArgumentParser:
    """Adds a command whose `--help` keeps the line breaks of description and epilog."""
    parser = commands.add_parser(
        name,
        help=summary,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(usage=parser)
    return parser


def print_rows(rows: Sequence[Row]) -> None:
    """Prints rows as a table with a header, nothing without rows."""
    if rows:
        records = (COLUMNS, *map(row_fields, rows))
        print("".join(record_text(each, "\n") for each in records), end="")


def print_json(document: object) -> None:
    print(json.dumps(document, indent=2))


def print_error(text: object) -> None:
    print(text, file=sys.stderr)


def counted(number: int, noun: str) -> str:
    """Formats a count: `no rows`, `1 row`, `2 rows`."""
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"

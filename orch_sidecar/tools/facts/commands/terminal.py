"""What the commands share: parsers with examples, options of commands that make rows, servers,
output."""

from __future__ import annotations

import argparse
import http.client
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

from orch_sidecar.tools.arguments import Unavailable
from orch_sidecar.tools.facts.tables.check import LocatedRow, check, valid_rows
from orch_sidecar.tools.facts.tables.files import append, read
from orch_sidecar.tools.facts.tables.row import COLUMNS, Row
from orch_sidecar.tools.facts.tables.table import record_text, row_fields
from orch_sidecar.tools.terminal import print_error, print_json

_TIMEOUT_S: Final = 60.0
# The characters of an answer that an error message shows.
_SHOWN_CHARACTERS: Final = 300

Commands: TypeAlias = "argparse._SubParsersAction[Any]"


def add_command(
    commands: Commands,
    name: str,
    run: Callable[[argparse.Namespace], int],
    description: str,
    epilog: str | None = None,
    *,
    files: str | None = None,
) -> argparse.ArgumentParser:
    """Adds a command, whose options name its parser as `usage`.

    `run`: does its work and returns the exit code. `description`: its first paragraph says what
    that is. `files`: what it reads, if it reads files.
    """
    summary = description.partition("\n\n")[0].rstrip(".")
    parser: argparse.ArgumentParser
    parser = commands.add_parser(name, help=summary, description=description, epilog=epilog)
    parser.set_defaults(usage=parser, run=run)
    if files is not None:
        parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help=files)
    return parser


def add_output_options(parser: argparse.ArgumentParser, model_id: str) -> None:
    """Adds where rows go, and the names of their model. `model_id`: helps with its id."""
    add = parser.add_argument
    add("--output", type=Path, metavar="CSV", help="append rows that are not in this file yet")
    add("--json", action="store_true", help="print rows as JSON")
    add("--model-id", help=model_id)
    name_help = "display name of the model (default: the last part of its id)"
    add("--model-name", help=name_help)


def http_url(text: str) -> str:
    """Parses the URL of a server, without a slash at its end."""
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise argparse.ArgumentTypeError(f"{text!r} must begin with http:// or https://")
    return text.rstrip("/")


def read_url(url: str, key: str | None = None) -> bytes:
    """Returns what a server has there. `key`: of its client. Raises ValueError."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 (the scheme was checked)
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:  # noqa: S310
            return bytes(response.read())
    except urllib.error.HTTPError as error:
        with error:
            body = " ".join(error.read().decode("utf-8", "replace").split())
        reason: object = f"{error.code} {error.reason}: {body:.{_SHOWN_CHARACTERS}}"
    except (OSError, http.client.HTTPException) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else repr(error)
    raise ValueError(f"cannot read {url.partition('?')[0]}: {reason}") from None


def write_rows(options: argparse.Namespace, made: Sequence[Row | str]) -> list[Row]:
    """Appends rows to --output, or prints them as a table with a header, nothing without rows; with
    --json as a list. `made`: rows, and why others are none. Returns the rows. Raises Unavailable,
    OSError, ValueError."""
    rows = [each for each in made if isinstance(each, Row)]
    if options.output is not None and rows:
        added = append(options.output, rows)
        print_error(f"{options.output}: {added} added, {len(rows) - added} already present")
    if options.json:
        print_json([asdict(row) for row in rows])
    elif options.output is None and rows:
        records = (COLUMNS, *map(row_fields, rows))
        print("".join(record_text(each, "\n") for each in records), end="")
    for each in made:
        if isinstance(each, str):
            print_error(each)
    return rows


def sound_rows(paths: Sequence[Path], why: str) -> list[LocatedRow]:
    """Returns the rows of tables. Where these have faults it prints them, and raises Unavailable
    with `why`, what is not done then. Raises OSError and ValueError."""
    tables = list(map(read, paths))
    if faults := [str(fault) for table in tables for fault in check(table)]:
        print_error("\n".join(faults))
        raise Unavailable(why)
    return [located for table in tables for located in valid_rows(table)]

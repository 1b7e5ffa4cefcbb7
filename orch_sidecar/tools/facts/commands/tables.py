"""`orch facts check` and `merge`: checks tables, and makes one of several."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import Final

from orch_sidecar.tools.drawing.texts import counted
from orch_sidecar.tools.facts.commands.terminal import (
    Commands,
    add_command,
)
from orch_sidecar.tools.facts.tables.check import Fault, check, merge, valid_rows
from orch_sidecar.tools.facts.tables.files import locked, read, write
from orch_sidecar.tools.facts.tables.notes import ENGINE
from orch_sidecar.tools.facts.tables.row import MEASUREMENT, Label
from orch_sidecar.tools.facts.tables.table import Table

_CHECK: Final = """Reports the faults of tables of facts by line and column.

They are of the header, of the number of fields of a row, of each field, of fields and notes that
must agree, and of rows of one run or measurement."""

_MERGE: Final = f"""Merges tables of facts into one, in the given order.

A row that several files contain is written once. Nothing is written if a file has a fault, if
rows of one run have different labels, or if two different rows have the same measurement, which
are these columns and notes:

  {" ".join(MEASUREMENT)}
  {" ".join(ENGINE)}"""


def add_commands(commands: Commands) -> None:
    """Adds `check` and `merge`."""
    add_command(commands, "check", _check, _CHECK, files="tables of facts")
    add = add_command(commands, "merge", _merge, _MERGE, files="tables of facts").add_argument
    add("-o", "--output", type=Path, metavar="OUT", required=True, help="the file to write")


def _check(options: argparse.Namespace) -> int:
    code = 0
    for path in options.files:
        table = read(path)
        faults = check(table)
        print(*faults, _summary(table, faults), sep="\n")
        code = max(code, 1 if faults else 0)
    return code


def _merge(options: argparse.Namespace) -> int:
    with locked(options.output):
        tables = [read(path) for path in options.files]
        merged = merge(tables)
        if isinstance(merged, list):
            print(*merged, sep="\n")
            print(f"{counted(len(merged), 'fault')}: {options.output} is not written")
            return 1
        write(options.output, merged.text)
    repeated = sum(len(table.rows) for table in tables) - len(merged.rows)
    omitted = f" ({repeated} repeated omitted)" if repeated else ""
    print(f"{options.output}: {counted(len(merged.rows), 'row')}{omitted}")
    return 0


def _summary(table: Table, faults: list[Fault]) -> str:
    """Counts the rows, the valid ones by label, and the faults."""
    labels = Counter(located.row.measurement_type for located in valid_rows(table))
    counts = [f"{labels[label]} {label}" for label in Label if labels[label]]
    valid = ", ".join(counts) if counts else "none valid"
    rows = counted(len(table.rows), "row")
    return f"{table.name}: {rows} ({valid}), {counted(len(faults), 'fault')}"

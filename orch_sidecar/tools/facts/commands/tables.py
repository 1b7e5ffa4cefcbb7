"""`orch facts check`, `merge` and `publish`: checks tables, makes one of several, describes it."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Final

from orch_sidecar.tools.arguments import Unavailable
from orch_sidecar.tools.drawing.texts import counted
from orch_sidecar.tools.facts.commands.terminal import (
    Commands,
    add_command,
    sound_rows,
)
from orch_sidecar.tools.facts.commands.verify import beside
from orch_sidecar.tools.facts.signing.evidence_file import SUFFIX, digest
from orch_sidecar.tools.facts.tables.check import Fault, check, merge, valid_rows
from orch_sidecar.tools.facts.tables.files import locked, read, write
from orch_sidecar.tools.facts.tables.notes import ENGINE
from orch_sidecar.tools.facts.tables.publish import data_package_of, named_evidence
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

_PUBLISH: Final = """Describes a table of facts for others, as a package of Frictionless Data.

It is datapackage.json beside the table: its columns, and the evidence that rows name as further
resources, each with its size and SHA-256. The table must be without faults, and its evidence beside
it."""


def add_commands(commands: Commands) -> None:
    """Adds `check`, `merge` and `publish`."""
    add_command(commands, "check", _check, _CHECK, files="tables of facts")
    add = add_command(commands, "merge", _merge, _MERGE, files="tables of facts").add_argument
    add("-o", "--output", type=Path, metavar="OUT", required=True, help="the file to write")
    add = add_command(commands, "publish", _publish, _PUBLISH).add_argument
    add("file", type=Path, metavar="FILE", help="a table of facts")


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


def _publish(options: argparse.Namespace) -> int:
    path: Path = options.file
    rows = sound_rows([read(path)], f"{path} has faults and is not published")
    read_evidence = beside(path)
    evidence: dict[str, bytes] = {}
    for name in named_evidence(located.row for located in rows):
        content = read_evidence(name)
        if content is None or digest(content) != name:
            lacks = "is not beside it" if content is None else "was changed: its SHA-256 is another"
            raise Unavailable(f"{path} is not published: its evidence {name}{SUFFIX} {lacks}")
        evidence[f"{name}{SUFFIX}"] = content
    package = path.with_name("datapackage.json")
    document = data_package_of(path.name, path.read_bytes(), evidence)
    write(package, json.dumps(document, indent=2) + "\n")
    print(package)
    return 0


def _summary(table: Table, faults: list[Fault]) -> str:
    """Counts the rows, the valid ones by label, and the faults."""
    labels = Counter(located.row.measurement_type for located in valid_rows(table))
    counts = [f"{labels[label]} {label}" for label in Label if labels[label]]
    valid = ", ".join(counts) if counts else "none valid"
    rows = counted(len(table.rows), "row")
    return f"{table.name}: {rows} ({valid}), {counted(len(faults), 'fault')}"

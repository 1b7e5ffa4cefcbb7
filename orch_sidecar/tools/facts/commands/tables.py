"""`orch facts check` and `merge`: tables in, what is wrong with them or one table out."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orch_sidecar.tools.facts.tables.check import Fault, check, valid_rows
from orch_sidecar.tools.facts.tables.files import locked, read, write
from orch_sidecar.tools.facts.tables.merge import merge
from orch_sidecar.tools.facts.tables.migrate import migrate
from orch_sidecar.tools.facts.tables.row import Label
from orch_sidecar.tools.facts.tables.table import Table

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

_CHECK: Final = """Checks tables of facts: the header, the number of fields of each row, every
field by itself, and what the fields of a row and its notes must agree on.

--migrate-legacy rewrites rows of older files before it checks: aggregate and per_user_stream
become to_be_confirmed, and required notes are added where they follow from the row. Every row
that is rewritten or that cannot be is told; a row with any other fault keeps its bytes."""

_CHECK_EPILOG: Final = """examples:
  orch facts check tps_model_gpu.csv
  orch facts check --migrate-legacy --output migrated.csv tps_model_gpu.csv
  orch facts check --confirmed facts/*.csv"""

_MERGE: Final = """Merges tables of facts into one, in the order given.

A row that stands in two files is written once. Two rows for the same measurement (model_id,
engine, precision, gpu, gpu_count, batch, input_tokens, output_tokens, measurement_type and
source_tag) that differ are faults, and nothing is written; so is every fault of the files."""


def add_commands(commands: Commands) -> None:
    """`check` and `merge`."""
    check_parser = commands.add_parser(
        "check",
        help="what is wrong with tables, by line and column",
        description=_CHECK,
        epilog=_CHECK_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = check_parser.add_argument
    add("files", nargs="+", type=Path, metavar="FILE")
    add("--confirmed", action="store_true", help="a row that is to_be_confirmed is a fault, too")
    add("--migrate-legacy", action="store_true", help="rewrite what older files say, then check")
    where = check_parser.add_mutually_exclusive_group()
    where.add_argument("--output", type=Path, metavar="FILE", help="write the migrated table here")
    where.add_argument("--in-place", action="store_true", help="rewrite the files themselves")
    check_parser.set_defaults(run=_check, usage=check_parser)

    merge_parser = commands.add_parser(
        "merge",
        help="several tables as one",
        description=_MERGE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = merge_parser.add_argument
    add("files", nargs="+", type=Path, metavar="FILE")
    add("-o", "--output", type=Path, metavar="OUT", required=True, help="the file to write")
    merge_parser.set_defaults(run=_merge)


def _check(options: argparse.Namespace) -> int:
    written = options.output is not None or options.in_place
    if options.migrate_legacy != written:
        options.usage.error("--migrate-legacy goes with --output FILE or --in-place")
    if options.output is not None and len(options.files) > 1:
        options.usage.error(f"--output takes one FILE, not {len(options.files)}")
    code = 0
    for path in options.files:
        if options.migrate_legacy:
            table = _migrated(path, path if options.in_place else options.output)
        else:
            table = read(path)
        faults = check(table, confirmed=options.confirmed)
        _tell(faults)
        print(_summary(table, faults))
        code = max(code, 1 if faults else 0)
    return code


def _migrated(path: Path, to: Path) -> Table:
    """The migrated table of a file, as it stands in another or the same one now."""
    with locked(to):
        migration = migrate(read(path))
        for step in migration.steps:
            print(step)
        changed = migration.table.text.encode() != path.read_bytes()
        if changed or to.resolve() != path.resolve():
            write(to, migration.table.text)
    return read(to)


def _merge(options: argparse.Namespace) -> int:
    with locked(options.output):
        merged = merge([read(path) for path in options.files])
        if isinstance(merged, list):
            _tell(merged)
            print(f"{_count(len(merged), 'fault')}: {options.output} is not written")
            return 1
        write(options.output, merged.table.text)
    again = f", {merged.repeated} that stood there twice left out" if merged.repeated else ""
    print(f"{options.output}: {_count(len(merged.table.rows), 'row')}{again}")
    return 0


def _tell(faults: Sequence[Fault]) -> None:
    for fault in faults:
        print(fault)


def _summary(table: Table, faults: Sequence[Fault]) -> str:
    """Rows, how many of the sound ones have which label, and faults."""
    labels = Counter(placed.row.measurement_type for placed in valid_rows(table))
    counts = [f"{labels[label]} {label}" for label in Label if labels[label]]
    sound = ", ".join(counts) if counts else "none sound"
    return (
        f"{table.name}: {_count(len(table.rows), 'row')} ({sound}), {_count(len(faults), 'fault')}"
    )


def _count(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"

"""`orch facts check` and `merge`: reports the faults of tables, and merges tables."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orch_sidecar.tools.facts.commands.terminal import add_command, counted
from orch_sidecar.tools.facts.tables.check import Fault, check, valid_rows
from orch_sidecar.tools.facts.tables.files import locked, read, write
from orch_sidecar.tools.facts.tables.merge import merge
from orch_sidecar.tools.facts.tables.migrate import migrate
from orch_sidecar.tools.facts.tables.row import Label
from orch_sidecar.tools.facts.tables.table import Table

if TYPE_CHECKING:
    from orch_sidecar.tools.facts.commands.terminal import Commands

_CHECK: Final = """Checks tables of facts: the header, the number of fields of each row, each field,
the fields and notes of a row that must agree, and rows of one run or measurement.

--migrate-legacy rewrites rows of older files before the check: aggregate and per_user_stream
become to_be_confirmed, and required notes are added where they follow from the row. Notes may be
separated by semicolons, commas or spaces, and batching may be true or false. Each row that is
rewritten, or cannot be, is reported; a row with any other fault keeps its bytes."""

_CHECK_EPILOG: Final = """examples:
  orch facts check tps_model_gpu.csv
  orch facts check --migrate-legacy --output migrated.csv tps_model_gpu.csv
  orch facts check --confirmed facts/*.csv"""

_MERGE: Final = """Merges tables of facts into one, in the given order.

A row that several files contain is written once. Nothing is written if a file has a fault, if
rows of one run have different labels, or if two different rows have the same measurement: the
columns model_id, engine, precision, gpu, gpu_count, batch, input_tokens, output_tokens,
measurement_type and source_tag, and the notes speculative, quantization, kv_cache_dtype,
prefix_caching, attention_backend, tensor_parallel, pipeline_parallel and data_parallel."""


def add_commands(commands: Commands) -> None:
    """Adds `check` and `merge`."""
    parser = add_command(
        commands, "check", "report the faults of tables by line and column", _CHECK, _CHECK_EPILOG
    )
    add = parser.add_argument
    add("files", nargs="+", type=Path, metavar="FILE", help="tables of facts")
    add("--confirmed", action="store_true", help="report rows that are to_be_confirmed, too")
    add("--migrate-legacy", action="store_true", help="migrate rows of older files first")
    target = parser.add_mutually_exclusive_group()
    target.add_argument("--output", type=Path, metavar="FILE", help="write the migrated table here")
    target.add_argument("--in-place", action="store_true", help="rewrite the files themselves")
    parser.set_defaults(run=_check)

    parser = add_command(commands, "merge", "merge several tables into one", _MERGE)
    add = parser.add_argument
    add("files", nargs="+", type=Path, metavar="FILE", help="tables of facts")
    add("-o", "--output", type=Path, metavar="OUT", required=True, help="the file to write")
    parser.set_defaults(run=_merge)


def _check(options: argparse.Namespace) -> int:
    has_target = options.output is not None or options.in_place
    if options.migrate_legacy != has_target:
        options.usage.error("--migrate-legacy requires --output FILE or --in-place, and vice versa")
    if options.output is not None and len(options.files) > 1:
        options.usage.error(f"--output requires a single FILE, not {len(options.files)}")
    code = 0
    for path in options.files:
        if options.migrate_legacy:
            table = _migrated(path, path if options.in_place else options.output)
        else:
            table = read(path)
        faults = check(table, confirmed=options.confirmed)
        print(*faults, _summary(table, faults), sep="\n")
        code = max(code, 1 if faults else 0)
    return code


def _migrated(path: Path, target: Path) -> Table:
    """Writes the migrated table of a file to another, or the same, and returns it."""
    with locked(target):
        migration = migrate(read(path))
        for step in migration.steps:
            print(step)
        changed = migration.table.text.encode() != path.read_bytes()
        if changed or target.resolve() != path.resolve():
            write(target, migration.table.text)
    return read(target)


def _merge(options: argparse.Namespace) -> int:
    with locked(options.output):
        merged = merge([read(path) for path in options.files])
        if isinstance(merged, list):
            print(*merged, sep="\n")
            print(f"{counted(len(merged), 'fault')}: {options.output} is not written")
            return 1
        write(options.output, merged.table.text)
    repeated = f" ({merged.repeated} repeated omitted)" if merged.repeated else ""
    print(f"{options.output}: {counted(len(merged.table.rows), 'row')}{repeated}")
    return 0


def _summary(table: Table, faults: list[Fault]) -> str:
    """Counts the rows, the valid ones by label, and the faults."""
    labels = Counter(located.row.measurement_type for located in valid_rows(table))
    counts = [f"{labels[label]} {label}" for label in Label if labels[label]]
    valid = ", ".join(counts) if counts else "none valid"
    rows = counted(len(table.rows), "row")
    return f"{table.name}: {rows} ({valid}), {counted(len(faults), 'fault')}"

"""Several tables of facts as one.

Pure. Order is that of the tables, and of their rows. A row that stands in two tables is written
once. Two rows for the same measurement that say different things cannot both stand: neither is
chosen, both places are named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from orch_sidecar.tools.facts.tables.check import (
    Fault,
    LocatedRow,
    check,
    conflict,
    identity,
    valid_rows,
)
from orch_sidecar.tools.facts.tables.row import measurement_key
from orch_sidecar.tools.facts.tables.table import Table, with_raw


@dataclass(frozen=True, slots=True)
class Merged:
    """One table, and how many rows it has once that stood in the given ones again."""

    table: Table
    repeated: int


def merge(tables: Sequence[Table]) -> Merged | list[Fault]:
    """One table in the form (line ends, byte order mark) of the first of at least one.

    Faults instead, where a table has any, or two rows for one measurement differ.
    """
    faults = [fault for table in tables for fault in check(table)]
    if faults:
        return faults
    rows = [placed for table in tables for placed in valid_rows(table)]
    first_of: dict[tuple[object, ...], LocatedRow] = {}
    kept: list[LocatedRow] = []
    for placed in rows:
        first = first_of.setdefault(measurement_key(placed.row), placed)
        if first is placed:
            kept.append(placed)
        elif identity(first.record) != identity(placed.record):
            faults.append(conflict(first, placed))
    if faults:
        return faults
    header = replace(tables[0], records=tables[0].records[:1])
    table = with_raw(header, (placed.record.raw for placed in kept))
    return Merged(table, len(rows) - len(kept))

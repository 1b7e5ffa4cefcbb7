"""Merges several tables of facts into one.

Pure. Keeps the order of the tables and of their rows. A row that several tables contain is
written once. Where two rows for the same measurement differ, or two rows of one run have different
labels, neither is chosen: the conflict is reported with both locations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from orch_sidecar.tools.facts.tables.check import (
    Fault,
    LocatedRow,
    Measurements,
    check,
    valid_rows,
)
from orch_sidecar.tools.facts.tables.table import Table, with_raw


@dataclass(frozen=True, slots=True)
class Merged:
    """The merged table, and how many repeated rows were omitted from it."""

    table: Table
    repeated: int


def merge(tables: Sequence[Table]) -> Merged | list[Fault]:
    """Merges at least one table, using the line ends and the byte order mark of the first.

    Returns the faults instead where a table has any, two rows for one measurement differ, or two
    rows of one run have different labels.
    """
    faults = [fault for table in tables for fault in check(table)]
    if faults:
        return faults
    rows = [located for table in tables for located in valid_rows(table)]
    measured = Measurements()
    kept: list[LocatedRow] = []
    for located in rows:
        if measured.contains(located):
            continue
        fault = measured.add(located)
        if fault is None:
            kept.append(located)
        else:
            faults.append(fault)
    if faults:
        return faults
    header = replace(tables[0], records=tables[0].records[:1])
    table = with_raw(header, (located.record.raw for located in kept))
    return Merged(table, len(rows) - len(kept))

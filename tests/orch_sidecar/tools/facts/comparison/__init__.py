"""Rows in a table, and what is compared of them."""

from __future__ import annotations

from orch_sidecar.tools.facts.comparison.compare import Comparison, as_page, compare
from orch_sidecar.tools.facts.tables.row import COLUMNS, Row
from orch_sidecar.tools.facts.tables.table import (
    LocatedRow,
    Table,
    row_fields,
    valid_rows,
    with_records,
)


def located(*rows: Row, name: str = "t.csv") -> list[LocatedRow]:
    found = valid_rows(with_records(Table(name), [COLUMNS, *map(row_fields, rows)]))
    assert len(found) == len(rows)
    return found


def compared(*rows: Row) -> Comparison:
    return compare(located(*rows))


def text_of(found: Comparison) -> str:
    return as_page(found).plain

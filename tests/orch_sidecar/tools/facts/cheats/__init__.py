"""The cheats: ways to a label or a figure that was not earned. Each is a row of one table.

A module has those of one source; `test_cheats` runs all of them. A cheat goes through every gate
that its source reaches: what the judge or an import lets pass is a row, which is checked and
verified. Rows that no gate refuses are honest ones at the edge of a rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import NamedTuple

from orch_sidecar.tools.facts.commands.tables import verdicts_of
from orch_sidecar.tools.facts.signing.verdict import Verdict
from orch_sidecar.tools.facts.tables.row import COLUMNS, Row
from orch_sidecar.tools.facts.tables.table import Table, check, row_fields, with_records


class Gate(StrEnum):
    """What may refuse a cheat."""

    JUDGE = "judge"  # of a run, or of traces
    IMPORT = "import"  # of another tool's file
    CHECK = "check"  # of a table
    VERIFY = "verify"  # of a row's evidence


class Cheat(NamedTuple):
    """`rules`: the gates that refuse it, each with a part of what it says. `said`: makes the cheat,
    and returns what each gate that it passes through says; nothing where it lets it pass."""

    name: str
    rules: Mapping[Gate, str]
    said: Callable[[], Mapping[Gate, str]]


def said_of(row: Row) -> dict[Gate, str]:
    """Returns what `check` and `verify` say of a row that the gate before them let pass."""
    return said_of_table(with_records(Table("t.csv"), [COLUMNS, row_fields(row)]))


def said_of_table(table: Table) -> dict[Gate, str]:
    """Returns the faults of a table, and why rows of it have failed verification."""
    failed = [each for each in verdicts_of([table], {}).values() if each.verdict is Verdict.FAILED]
    return {
        Gate.CHECK: "; ".join(fault.text for fault in check(table)),
        Gate.VERIFY: "; ".join(reason for each in failed for reason in each.reasons),
    }

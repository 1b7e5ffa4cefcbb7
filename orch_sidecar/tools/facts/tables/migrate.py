"""Migrates a table of older files: adds what follows from a row, and never guesses.

Pure. No row is dropped, and one with any other fault stays as it is.

- `aggregate` and `per_user_stream` do not state how the engine was batching. They become
  `to_be_confirmed`, and the notes keep the old label.
- Where the notes are free text, the required ones follow from the row's own columns, and `batching`
  from the definition of the label; the text is kept as `legacy_notes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from orch_sidecar.tools.facts.tables.check import Fault, header_fault, row_faults
from orch_sidecar.tools.facts.tables.row import (
    COLUMNS,
    MEANINGS,
    REQUIRED_NOTES,
    Label,
    format_notes,
)
from orch_sidecar.tools.facts.tables.table import Record, Table, with_records

_OLD_LABELS: Final = ("aggregate", "per_user_stream")
# The columns that are rewritten; faults in others are not repaired.
_REWRITTEN: Final = ("measurement_type", "scenario_notes")


def migrate(table: Table) -> tuple[Table, list[str]]:
    """Rewrites the rows that can be repaired, none under another header.

    Returns the table, and what was done with each row that has a fault.
    """
    if header_fault(table) is not None:
        return table, []
    rows, steps = [], []
    for record in table.rows:
        faults = row_faults(record)
        fields = _rewritten(record, faults)
        remaining = row_faults(replace(record, fields=fields))
        rows.append(record.fields if remaining else fields)
        place = f"{table.name}:{record.line}"
        if remaining:
            steps.append(f"{place}: unchanged: {'; '.join(fault.text for fault in remaining)}")
        elif faults:
            steps.append(f"{place}: migrated: {', '.join(fields[-3:-1])}")
    return with_records(Table(table.name), [COLUMNS, *rows]), steps


def _rewritten(record: Record, faults: Sequence[Fault]) -> tuple[str, ...]:
    """Returns the fields with a current label and notes, as they are where it is not known how."""
    ragged = len(record.fields) != len(COLUMNS)
    if not faults or ragged or any(fault.name not in _REWRITTEN for fault in faults):
        return record.fields
    values = dict(zip(COLUMNS, record.fields, strict=True))
    old, text = values["measurement_type"], " ".join(values["scenario_notes"].split())
    if "=" in text or old not in {*_OLD_LABELS, *Label}:
        return record.fields
    label = Label.TO_BE_CONFIRMED if old in _OLD_LABELS else Label(old)
    batching = "unknown" if label is Label.TO_BE_CONFIRMED else MEANINGS[label].batching
    notes = {name: {**values, "batching": batching}[name] for name in REQUIRED_NOTES}
    if old != label:
        notes["legacy_label"] = old
    if text:
        notes["legacy_notes"] = text.replace(";", ",")
    changed = {"measurement_type": label.value, "scenario_notes": format_notes(notes)}
    return tuple({**values, **changed}.values())

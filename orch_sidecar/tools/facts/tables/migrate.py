"""Migrates tables of older files: adds what follows from a row, and never guesses.

Pure. A row is rewritten only if the result is valid; a row with any other fault stays as it is
and can be migrated again after a repair. No row is ever dropped.

- `aggregate` and `per_user_stream` do not state how the engine was batching. They become
  `to_be_confirmed`, and the notes keep the old label and the old text.
- Under a current label, missing notes are derived from the row's own columns; `batching` follows
  from the definition of the label. Text that is not a note is kept as `legacy_notes`.
- Notes may be separated by semicolons, commas or spaces, and `batching` may be `true` or `yes`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from orch_sidecar.tools.facts.tables.check import Fault, header_fault, row_faults
from orch_sidecar.tools.facts.tables.row import (
    COLUMNS,
    REQUIRED_NOTES,
    Label,
    format_notes,
    parse_notes,
)
from orch_sidecar.tools.facts.tables.rules import BATCHING, LEGACY_LABELS
from orch_sidecar.tools.facts.tables.table import Record, Table, with_changes

_LABEL: Final = COLUMNS.index("measurement_type")
_NOTES: Final = COLUMNS.index("scenario_notes")

# The columns that are rewritten; faults in others are not repaired.
_REWRITTEN: Final = ("measurement_type", "scenario_notes")
_LINE_BREAKS: Final = re.compile(r"\s*[\r\n]+\s*")
# Between notes: a semicolon, or commas and spaces before the next `name=`.
_SEPARATOR: Final = re.compile(r"\s*;\s*|[\s,]+(?=[a-z][a-z0-9_]*=)")
_ON_OR_OFF: Final = {
    **dict.fromkeys(("true", "yes", "on"), "on"),
    **dict.fromkeys(("false", "no", "off"), "off"),
}
_EXPECTED: Final = "notes are read as name=value, separated by semicolons, commas or spaces"


class Action(StrEnum):
    """What was done with an invalid row."""

    RELABELLED = "relabelled"
    NOTES_ADDED = "notes added"
    UNCHANGED = "unchanged"


@dataclass(frozen=True, slots=True)
class Step:
    """One invalid row: what was done, and the new values or the remaining faults."""

    file: str
    line: int
    action: Action
    details: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.action}: {'; '.join(self.details)}"


@dataclass(frozen=True, slots=True)
class Migration:
    """The table with the rows that could be migrated, and a step for each invalid row."""

    table: Table
    steps: tuple[Step, ...]


def migrate(table: Table) -> Migration:
    """Rewrites the invalid rows that can be repaired, none under another header."""
    if header_fault(table) is not None:
        return Migration(table, ())
    changes: dict[int, Sequence[str]] = {}
    steps = []
    for index, record in enumerate(table.records):
        faults = row_faults(table.name, record) if index else []
        if faults:
            step, fields = _migrated(table.name, record, faults)
            steps.append(step)
            if fields is not None:
                changes[index] = fields
    return Migration(with_changes(table, changes), tuple(steps))


def _migrated(
    file: str, record: Record, faults: Sequence[Fault]
) -> tuple[Step, tuple[str, ...] | None]:
    """Returns what is done with a row that has faults, and its new fields if there are any."""
    unrepairable = _unrepairable(record, faults)
    fields = None if unrepairable else _rewritten(record.fields)
    if fields is None:
        return _unchanged(file, record, unrepairable or faults), None
    remaining = row_faults(file, replace(record, fields=fields))
    if remaining:
        return _unchanged(file, record, remaining), None
    was, label, notes = record.fields[_LABEL], fields[_LABEL], fields[_NOTES]
    if was == label:
        return Step(file, record.line, Action.NOTES_ADDED, (notes,)), fields
    return Step(file, record.line, Action.RELABELLED, (f"{was} is now {label}", notes)), fields


def _unrepairable(record: Record, faults: Sequence[Fault]) -> Sequence[Fault]:
    """Returns the faults that no label and no note can repair."""
    if record.misquoted is not None or len(record.fields) != len(COLUMNS):
        return faults
    return [fault for fault in faults if fault.name not in _REWRITTEN]


def _unchanged(file: str, record: Record, faults: Sequence[Fault]) -> Step:
    details = tuple(fault.text for fault in faults)
    if any(fault.name == COLUMNS[_NOTES] for fault in faults):
        details = (*details, _EXPECTED)
    return Step(file, record.line, Action.UNCHANGED, details)


def _rewritten(fields: Sequence[str]) -> tuple[str, ...] | None:
    """Returns the fields with a current label and notes; None under an unknown label."""
    old_label, text = fields[_LABEL], _LINE_BREAKS.sub(" ", fields[_NOTES]).strip()
    if old_label in LEGACY_LABELS:
        label, old = Label.TO_BE_CONFIRMED, {"legacy_label": old_label, **_legacy_notes(text)}
    elif old_label in set(Label):
        label, old = Label(old_label), _notes_in(text)
    else:
        return None
    notes = _derived(fields, label) | old
    notes |= _conflicting_notes(text, notes, label)
    new = list(fields)
    new[_LABEL], new[_NOTES] = label.value, format_notes(notes)
    return tuple(new)


def _derived(fields: Sequence[str], label: Label) -> dict[str, str]:
    """Returns the required notes that follow from the columns and the label of a row."""
    input_tokens, output_tokens = (fields[COLUMNS.index(name)] for name in REQUIRED_NOTES[:2])
    batching = "unknown" if label is Label.TO_BE_CONFIRMED else BATCHING[label][0]
    return dict(zip(REQUIRED_NOTES, (input_tokens, output_tokens, batching), strict=True))


def _notes_in(text: str) -> dict[str, str]:
    """Parses notes; other text becomes one note that keeps it."""
    parts = _parts(text)
    if all(equals for _, equals, _ in parts):
        try:
            return parse_notes("; ".join(f"{name}={value}" for name, _, value in parts))
        except ValueError:
            return _legacy_notes(text)
    return _legacy_notes(text)


def _parts(text: str) -> list[tuple[str, str, str]]:
    """Splits a text at what may separate notes: name, `=` and value; a part may be no note."""
    found = (part.partition("=") for part in _SEPARATOR.split(text.strip(" ;,")))
    return [
        (name, equals, _ON_OR_OFF.get(value.strip().lower(), value.strip()))
        if name == "batching"
        else (name, equals, value.strip())
        for name, equals, value in found
    ]


def _legacy_notes(text: str) -> dict[str, str]:
    """Keeps free text as a note, with commas for its semicolons."""
    return {"legacy_notes": text.replace(";", ",")} if text else {}


def _conflicting_notes(text: str, notes: Mapping[str, str], label: Label) -> dict[str, str]:
    """Returns the required notes in a free text that differ from the derived ones.

    With them the row contradicts itself, and stays as it is: which of the two is true cannot be
    decided here. Under `to_be_confirmed`, what the text states about batching is unconfirmed, too.
    """
    names = REQUIRED_NOTES[:2] if label is Label.TO_BE_CONFIRMED else REQUIRED_NOTES
    return {
        name: value
        for name, equals, value in _parts(text)
        if equals and name in names and value != notes[name]
    }

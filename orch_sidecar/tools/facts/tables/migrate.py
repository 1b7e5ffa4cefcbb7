"""What an older file says, said in today's form: only what follows, and nothing guessed.

Pure. A row is rewritten where the result is sound, and left as it stands where anything else is
wrong with it: whoever repairs that may migrate once more. No row is ever dropped.

- `aggregate` and `per_user_stream` do not say how the engine was batching. They become
  `to_be_confirmed`, and the notes keep the old label and the old text.
- Under a label of today, notes that are missing are made from the row's own columns; `batching`
  follows from the label's definition. Text that is no note is kept as `legacy_notes`.
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

# The columns that are rewritten; a fault in any other one is not ours to repair.
_REWRITTEN: Final = ("measurement_type", "scenario_notes")
_LINE_BREAKS: Final = re.compile(r"\s*[\r\n]+\s*")


class Did(StrEnum):
    """What became of a row that was not sound."""

    RELABELLED = "relabelled"
    NOTES_ADDED = "notes added"
    LEFT = "left as it is"


@dataclass(frozen=True, slots=True)
class Step:
    """One row that was not sound: what was done, and what it says now or what is in the way."""

    file: str
    line: int
    did: Did
    says: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.did}: {'; '.join(self.says)}"


@dataclass(frozen=True, slots=True)
class Migration:
    """The table with the rows that could be migrated, and a step for each that was not sound."""

    table: Table
    steps: tuple[Step, ...]


def migrate(table: Table) -> Migration:
    """Rewrites what can be; a table under another header is left alone."""
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
    """What is done with a row that has faults, and its new fields where it gets any."""
    fields = None if _not_ours(record, faults) else _rewritten(record.fields)
    if fields is None:
        return _left(file, record, _not_ours(record, faults) or faults), None
    remaining = row_faults(file, replace(record, fields=fields))
    if remaining:
        return _left(file, record, remaining), None
    was, label, notes = record.fields[_LABEL], fields[_LABEL], fields[_NOTES]
    if was == label:
        return Step(file, record.line, Did.NOTES_ADDED, (notes,)), fields
    return Step(file, record.line, Did.RELABELLED, (f"{was} is now {label}", notes)), fields


def _not_ours(record: Record, faults: Sequence[Fault]) -> Sequence[Fault]:
    """The faults that no label and no note can repair."""
    if record.misquoted is not None or len(record.fields) != len(COLUMNS):
        return faults
    return [fault for fault in faults if fault.name not in _REWRITTEN]


def _left(file: str, record: Record, faults: Sequence[Fault]) -> Step:
    says = tuple(f"{fault.name} {fault.value!r} {fault.rule}" for fault in faults)
    return Step(file, record.line, Did.LEFT, says)


def _rewritten(fields: Sequence[str]) -> tuple[str, ...] | None:
    """The fields with a label of today and notes; None under a label that nobody knows."""
    said, text = fields[_LABEL], _LINE_BREAKS.sub(" ", fields[_NOTES]).strip()
    if said in LEGACY_LABELS:
        label, old = Label.TO_BE_CONFIRMED, {"legacy_label": said, **_kept(text)}
    elif said in set(Label):
        label, old = Label(said), _notes_in(text)
    else:
        return None
    notes = _derived(fields, label) | old
    notes |= _otherwise(text, notes, label)
    new = list(fields)
    new[_LABEL], new[_NOTES] = label.value, format_notes(notes)
    return tuple(new)


def _derived(fields: Sequence[str], label: Label) -> dict[str, str]:
    """The required notes, as they follow from a row's columns and its label's definition."""
    input_tokens, output_tokens = (fields[COLUMNS.index(name)] for name in REQUIRED_NOTES[:2])
    batching = "unknown" if label is Label.TO_BE_CONFIRMED else BATCHING[label][0]
    return dict(zip(REQUIRED_NOTES, (input_tokens, output_tokens, batching), strict=True))


def _notes_in(text: str) -> dict[str, str]:
    """The notes of a text that is notes, or else one note that keeps it."""
    try:
        return parse_notes(text)
    except ValueError:
        return _kept(text)


def _kept(text: str) -> dict[str, str]:
    """A free text as a note: its semicolons become commas."""
    return {"legacy_notes": text.replace(";", ",")} if text else {}


def _otherwise(text: str, notes: Mapping[str, str], label: Label) -> dict[str, str]:
    """The required notes that a free text has otherwise than they would be derived.

    With them the row contradicts itself, and is left: which of the two is true is not ours to
    say. Under a label that is to be confirmed, what the text says of batching is to be, too.
    """
    asked = REQUIRED_NOTES[:2] if label is Label.TO_BE_CONFIRMED else REQUIRED_NOTES
    parts = (part.strip().partition("=") for part in text.split(";"))
    return {
        name: value.strip()
        for name, _, value in parts
        if name in asked and value.strip() != notes[name]
    }

"""Finds the faults of tables of facts, and where they are, repairs those of older tables, merges
tables that have none.

Pure. Each fault is reported once, at its location: a ragged row has one fault, and none for the
values that it shifts; nothing is compared in a row with a field that has a fault of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Final

from orch_sidecar.tools.facts.tables.contradictions import contradictions
from orch_sidecar.tools.facts.tables.forms import invisible_rule
from orch_sidecar.tools.facts.tables.row import (
    BENCH,
    COLUMNS,
    MEANINGS,
    REQUIRED_NOTES,
    TYPES,
    Label,
    Row,
    format_notes,
    label_of_run,
    measurement_key,
    run_of,
    violated_rule,
)
from orch_sidecar.tools.facts.tables.table import Record, Table, row_fields, with_records

_LABEL: Final = COLUMNS.index("measurement_type")
_NOTES: Final = COLUMNS.index("scenario_notes")

_OLD_LABELS: Final = ("aggregate", "per_user_stream")
# The columns that are rewritten in older tables; faults in others are not repaired.
_REWRITTEN: Final = ("measurement_type", "scenario_notes")

# Characters of a value that a message shows: a comma without quotes shifts whole texts.
_SHOWN_CHARACTERS: Final = 60


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. `line` and `column` count from 1; `name` is the name of the column."""

    file: str
    line: int
    column: int
    name: str
    value: str
    rule: str

    @classmethod
    def at(cls, record: Record, index: int, rule: str, value: str | None = None) -> Fault:
        """Returns the fault of one field of a record, or of one that it lacks or has too many.

        `value`: what is wrong in the field, None for all of it.
        """
        name = COLUMNS[index] if index < len(COLUMNS) else "(no column)"
        if value is None:
            value = record.fields[index] if index < len(record.fields) else ""
        return cls(record.file, record.line, index + 1, name, value, rule)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.text}"

    @property
    def text(self) -> str:
        """The column, its value and the rule, without the location."""
        value = self.value
        if len(value) > _SHOWN_CHARACTERS:
            value = f"{value[: _SHOWN_CHARACTERS - 1]}…"
        return f"{self.name} {value!r}: {self.rule}"


@dataclass(frozen=True, slots=True)
class LocatedRow:
    """A valid row; `record` is its text in its file."""

    record: Record
    row: Row

    @property
    def place(self) -> str:
        return f"{self.record.file}:{self.record.line}"


def check(table: Table) -> list[Fault]:
    """Returns every fault of a table, in the order of its lines."""
    if (fault := header_fault(table)) is not None:
        return [fault]
    own = (fault for record in table.rows for fault in row_faults(record))
    _, repeated, contradicting = sifted(valid_rows(table))
    return sorted((*own, *repeated, *contradicting), key=lambda fault: fault.line)


def merge(tables: Sequence[Table]) -> Table | list[Fault]:
    """Merges at least one table: the first, and below it the rows of others that it does not have.

    Returns the faults instead where a table has any, two rows for one measurement differ, or two
    rows of one run have different labels.
    """
    faults = [fault for table in tables for fault in check(table)]
    new, _, contradicting = sifted(located for table in tables for located in valid_rows(table))
    if faults or contradicting:
        return faults or contradicting
    # Of the first table each row is new.
    added = new[len(tables[0].rows) :]
    return with_records(tables[0], [located.record.fields for located in added])


def sifted(rows: Iterable[LocatedRow]) -> tuple[list[LocatedRow], list[Fault], list[Fault]]:
    """Returns the rows that are new, the faults of those that repeat one before, and of those that
    contradict one before: another result of one measurement, or another label of one run."""
    firsts: dict[tuple[object, ...], LocatedRow] = {}
    labelled: dict[str, LocatedRow] = {}
    new, repeated, contradicting = [], [], []
    for located in rows:
        key, run = measurement_key(located.row), run_of(located.row.source_tag)
        label, first = label_of_run(located.row), firsts.get(key)
        other = located if run is None or label is None else labelled.setdefault(run, located)
        if first is not None and first.row == located.row:
            rule = f"the row repeats line {first.record.line}"
            repeated.append(Fault.at(located.record, 0, rule))
        elif label is not label_of_run(other.row):
            contradicting.append(_two_labels(str(run), other, located))
        elif first is not None:
            contradicting.append(_conflict(first, located))
        else:
            firsts[key] = located
            new.append(located)
    return new, repeated, contradicting


def _two_labels(run: str, first: LocatedRow, second: LocatedRow) -> Fault:
    """Returns the fault of two rows that state different labels for one run."""
    label = label_of_run(first.row)
    rule = f"{first.place} has {str(label)!r} for the same run, {run}: a run has one label"
    if second.row.is_confirmed:
        return Fault.at(second.record, _LABEL, rule)
    return Fault.at(second.record, _NOTES, f"the note claim: {rule}")


def _conflict(first: LocatedRow, second: LocatedRow) -> Fault:
    """Returns the fault of two rows that report different results for one measurement, at the
    first column in which they differ."""
    pairs = zip(COLUMNS, first.record.fields, second.record.fields, strict=True)
    index, other = next((COLUMNS.index(name), one) for name, one, two in pairs if one != two)
    kind = "one run" if second.row.source_tag.startswith(BENCH) else "an identical key"
    rule = f"{first.place}:{index + 1} has {other!r} for the same measurement ({kind})"
    return Fault.at(second.record, index, rule)


def valid_rows(table: Table) -> list[LocatedRow]:
    """Returns the rows without a fault; none if the header has one."""
    found = [] if header_fault(table) else [(each, parse_row(each)) for each in table.rows]
    return [LocatedRow(record, row) for record, row in found if isinstance(row, Row)]


def header_fault(table: Table) -> Fault | None:
    """Returns the first difference between the header and the 13 columns, None if there is none."""
    rule = f"the header must be {','.join(COLUMNS)}; rows under another header are not checked"
    header = table.header or Record(table.name, 1, ())
    for index, (name, column) in enumerate(zip_longest(header.fields, COLUMNS)):
        if name != column:
            unseen = invisible_rule(name or "")
            return Fault.at(header, index, f"{unseen}; {rule}" if unseen else rule)
    return None


def parse_row(record: Record) -> Row | list[Fault]:
    """Converts a record to a row; returns its faults instead if it has any. It is not compared with
    other rows."""
    if len(record.fields) != len(COLUMNS):
        return [_ragged(record)]
    values = dict(zip(COLUMNS, record.fields, strict=True))
    faults = [
        Fault.at(record, index, rule)
        for index, (name, value) in enumerate(values.items())
        if (rule := violated_rule(name, value)) is not None
    ]
    if faults:
        return faults
    row = Row(**{name: of_type(values[name]) for name, of_type in TYPES.items()})
    found = contradictions(row)
    faults = [Fault.at(record, COLUMNS.index(name), rule, noted) for name, noted, rule in found]
    return sorted(faults, key=lambda fault: fault.column) or row


def row_faults(record: Record) -> list[Fault]:
    """Returns the faults of one record."""
    found = parse_row(record)
    return found if isinstance(found, list) else []


def invalid_fields(row: Row) -> list[Fault]:
    """Returns the faults that `check` would find in a row that is not in a table yet."""
    return row_faults(Record("row", 1, row_fields(row)))


def _ragged(record: Record) -> Fault:
    """Returns the one fault of a row with too few or too many fields, at the first of these."""
    found, expected = len(record.fields), len(COLUMNS)
    if not found:
        return Fault.at(record, 0, "an empty line is not a row")
    rule = "one is missing here or before" if found < expected else "a comma in one must be quoted"
    return Fault.at(
        record, min(found, expected), f"the row has {found} fields, not {expected}: {rule}"
    )


def migrate(table: Table) -> tuple[Table, list[str]]:
    """Adds to the rows of an older table what follows from them, and never guesses.

    `aggregate` and `per_user_stream` do not state how the engine was batching. They become
    `to_be_confirmed`, and the notes keep the old label. Where the notes are free text, the required
    ones follow from the row's own columns, and `batching` from the definition of the label; the
    text is kept as `legacy_notes`. No row is dropped, and one with any other fault stays as it is.
    Returns the table, and what was done with each row that has a fault; none under another header.
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

"""Finds the faults of a table of facts, and where they are.

Pure. Each fault is reported once, at its location: a ragged row has one fault, and none for the
values that it shifts; nothing is compared with a field that has a fault of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from orch_sidecar.tools.facts.tables import characters, rules
from orch_sidecar.tools.facts.tables.agreement.runs import label_of_run, makes_one_row, run_of
from orch_sidecar.tools.facts.tables.row import COLUMNS, Label, Row, measurement_key
from orch_sidecar.tools.facts.tables.table import Record, Table, row_fields

_THROUGHPUT: Final = COLUMNS.index("throughput_tokens_per_sec")
_LABEL: Final = COLUMNS.index("measurement_type")
_NOTES: Final = COLUMNS.index("scenario_notes")

# Characters of a value that a message shows: an unclosed quote makes the rest of the file one
# value.
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
    """A valid row and its location; `record` is its text in the file."""

    file: str
    record: Record
    row: Row

    @property
    def place(self) -> str:
        return f"{self.file}:{self.record.line}"


def check(table: Table, *, confirmed: bool = False) -> list[Fault]:
    """Returns every fault of a table, in the order of its lines.

    `confirmed`: rows that are `to_be_confirmed` are faults, too.
    """
    fault = header_fault(table)
    if fault is not None:
        return [fault]
    found: list[Fault] = []
    seen: dict[tuple[str | float, ...], int] = {}
    measured = Measurements()
    for record in table.rows:
        faults = row_faults(table.name, record)
        if faults:
            found += faults
        elif confirmed and record.fields[_LABEL] == Label.TO_BE_CONFIRMED:
            found.append(_fault(table.name, record, _LABEL, "the batching is not confirmed"))
        if record.misquoted is None and len(record.fields) == len(COLUMNS):
            first = seen.setdefault(identity(record), record.line)
            if first != record.line:
                found.append(_fault(table.name, record, 0, f"the row repeats line {first}"))
            elif not faults:
                located = LocatedRow(table.name, record, parse_row(record))
                contradicted = measured.add(located)
                if contradicted is not None:
                    found.append(contradicted)
    return found


class Measurements:
    """The measurements and runs of rows, of one table or of several."""

    def __init__(self) -> None:
        self._first: dict[tuple[object, ...], LocatedRow] = {}
        self._labelled: dict[str, LocatedRow] = {}

    def add(self, located: LocatedRow) -> Fault | None:
        """Adds a row; returns its contradiction to a row before it, which stays instead of it."""
        run, label = run_of(located.row.source_tag), label_of_run(located.row)
        if run is not None and label is not None:
            other = self._labelled.setdefault(run, located)
            if label is not label_of_run(other.row):
                return _two_labels(run, other, located)
        first = self._first.setdefault(_key(located.row), located)
        return None if first is located else _conflict(first, located)

    def contains(self, located: LocatedRow) -> bool:
        """Returns whether an equal row was added."""
        first = self._first.get(_key(located.row))
        return first is not None and identity(first.record) == identity(located.record)


def _key(row: Row) -> tuple[object, ...]:
    """Returns what two rows cannot share: their measurement, or their run if it makes one row."""
    return (row.source_tag,) if makes_one_row(row.source_tag) else measurement_key(row)


def _two_labels(run: str, first: LocatedRow, second: LocatedRow) -> Fault:
    """Returns the fault of two rows that state different labels for one run."""
    label = label_of_run(first.row)
    rule = f"{first.place} has {str(label)!r} for the same run, {run}: a run has one label"
    if second.row.measurement_type is not Label.TO_BE_CONFIRMED:
        return _fault(second.file, second.record, _LABEL, rule)
    return _fault(second.file, second.record, _NOTES, f"the note claim: {rule}")


def _conflict(first: LocatedRow, second: LocatedRow) -> Fault:
    """Returns the fault of two rows that report different results for one measurement.

    Located at the throughput, or at the first other column in which they differ.
    """
    differing = [name for name in COLUMNS if getattr(first.row, name) != getattr(second.row, name)]
    name = COLUMNS[_THROUGHPUT] if COLUMNS[_THROUGHPUT] in differing else differing[0]
    index = COLUMNS.index(name)
    other = first.record.fields[index]
    same = (
        f"measurement ({'one run' if makes_one_row(second.row.source_tag) else 'an identical key'})"
    )
    rule = f"{first.place}:{index + 1} has {other!r} for the same {same}"
    return _fault(second.file, second.record, index, rule)


def valid_rows(table: Table) -> list[LocatedRow]:
    """Returns the rows without a fault; none if the header has one."""
    if header_fault(table) is not None:
        return []
    valid = [record for record in table.rows if not row_faults(table.name, record)]
    return [LocatedRow(table.name, record, parse_row(record)) for record in valid]


def parse_row(record: Record) -> Row:
    """Converts a record without a fault to a row."""
    model_id, model_name, engine, precision, gpu, *counts = record.fields
    gpu_count, batch, input_tokens, output_tokens, throughput, label, notes, source = counts
    return Row(
        model_id=model_id,
        model_name=model_name,
        engine=engine,
        precision=precision,
        gpu=gpu,
        gpu_count=int(gpu_count),
        batch=int(batch),
        input_tokens=int(input_tokens),
        output_tokens=int(output_tokens),
        throughput_tokens_per_sec=float(throughput),
        measurement_type=Label(label),
        scenario_notes=notes,
        source_tag=source,
    )


def identity(record: Record) -> tuple[str | float, ...]:
    """Returns a key that is equal for equal rows: `92.72` and `92.720` are one figure."""
    fields: list[str | float] = list(record.fields)
    if rules.violated_rule(COLUMNS[_THROUGHPUT], record.fields[_THROUGHPUT]) is None:
        fields[_THROUGHPUT] = float(record.fields[_THROUGHPUT])
    return tuple(fields)


def header_fault(table: Table) -> Fault | None:
    """Returns the first difference between the header and the 13 columns, None if there is none."""
    rule = f"the header must be {','.join(COLUMNS)}; rows under another header are not checked"
    if table.header is None:
        return Fault(table.name, 1, 1, COLUMNS[0], "", rule)
    header = table.header.fields
    for index, name in enumerate(header):
        broken = characters.violated_rule(name)
        if broken is not None:
            return _fault(table.name, table.header, index, f"{broken}; {rule}")
    for index in range(max(len(COLUMNS), len(header))):
        if header[index : index + 1] != COLUMNS[index : index + 1]:
            return _fault(table.name, table.header, index, rule)
    return None


def row_faults(file: str, record: Record) -> list[Fault]:
    """Returns the faults of one record, which is not compared with other rows."""
    if record.misquoted is not None:
        rule = 'a field that contains a quote must be quoted, and the quote doubled: "7"" rack"'
        return [_fault(file, record, record.misquoted - 1, rule)]
    if len(record.fields) != len(COLUMNS):
        return [_ragged(file, record)]
    return sorted(_field_faults(file, record), key=lambda fault: fault.column)


def invalid_fields(row: Row) -> list[Fault]:
    """Returns the faults that `check` would find in a row that is not in a table yet."""
    return row_faults("row", Record(1, row_fields(row), ""))


def _ragged(file: str, record: Record) -> Fault:
    """Returns the one fault of a row with too few or too many fields.

    It is located at the first value that cannot belong to its column (a missing or an additional
    field before it has shifted it), or else at the missing field at the end, or at the first
    field too many.
    """
    fields, expected = record.fields, len(COLUMNS)
    if not fields:
        return _fault(file, record, 0, "an empty line is not a row")
    count = f"the row has {len(fields)} {'field' if len(fields) == 1 else 'fields'}, not {expected}"
    for index, (name, value) in enumerate(zip(COLUMNS, fields, strict=False)):
        if not rules.is_plausible(name, value):
            return _fault(file, record, index, f"{count}: this value is in the wrong column")
    if len(fields) < expected:
        return _fault(
            file, record, len(fields), f"{count}: this field is missing, or one before it"
        )
    return _fault(file, record, expected, f"{count}: a field that contains a comma must be quoted")


def _field_faults(file: str, record: Record) -> Iterator[Fault]:
    values = dict(zip(COLUMNS, record.fields, strict=True))
    valid = dict(values)
    for index, (name, value) in enumerate(values.items()):
        rule = rules.violated_rule(name, value)
        if rule is not None:
            del valid[name]
            yield _fault(file, record, index, rule)
    for broken in rules.contradictions(valid):
        column = COLUMNS.index(broken.column) + 1
        yield Fault(file, record.line, column, broken.column, broken.value, broken.rule)


def _fault(file: str, record: Record, index: int, rule: str) -> Fault:
    name = COLUMNS[index] if index < len(COLUMNS) else "(no column)"
    value = record.fields[index] if index < len(record.fields) else ""
    return Fault(file, record.line, index + 1, name, value, rule)

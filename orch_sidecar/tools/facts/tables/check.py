"""What is wrong with a table of facts, and where (BATCHING/ORCH-3931, 3932).

Pure. Every fault is told once, at its place: a ragged row has one, and none of those that its
shifted values would make; nothing is compared with a field that has a fault of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from orch_sidecar.tools.facts.tables import rules
from orch_sidecar.tools.facts.tables.row import COLUMNS, Label, Row, measurement_key
from orch_sidecar.tools.facts.tables.table import Record, Table

_THROUGHPUT: Final = COLUMNS.index("throughput_tokens_per_sec")
_LABEL: Final = COLUMNS.index("measurement_type")

# Characters of a value; a quote that is never closed makes the rest of the file one.
_MOST_SHOWN: Final = 60


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong at one place: line and column from 1; `name` is the column's."""

    file: str
    line: int
    column: int
    name: str
    value: str
    rule: str

    def __str__(self) -> str:
        value = self.value
        if len(value) > _MOST_SHOWN:
            value = f"{value[: _MOST_SHOWN - 1]}…"
        return f"{self.file}:{self.line}:{self.column}: {self.name} {value!r}: {self.rule}"


@dataclass(frozen=True, slots=True)
class LocatedRow:
    """A sound row and where it stands; `record` is what is written there."""

    file: str
    record: Record
    row: Row

    @property
    def place(self) -> str:
        return f"{self.file}:{self.record.line}"


def check(table: Table, *, confirmed: bool = False) -> list[Fault]:
    """Every fault of a table, in the order of its lines.

    `confirmed`: rows that are `to_be_confirmed` are faults, too.
    """
    fault = header_fault(table)
    if fault is not None:
        return [fault]
    found: list[Fault] = []
    seen: dict[tuple[str | float, ...], int] = {}
    measured: dict[tuple[object, ...], LocatedRow] = {}
    for record in table.rows:
        faults = row_faults(table.name, record)
        if faults:
            found += faults
        elif confirmed and record.fields[_LABEL] == Label.TO_BE_CONFIRMED:
            found.append(_fault(table.name, record, _LABEL, "nobody has confirmed what it is"))
        if record.misquoted is None and len(record.fields) == len(COLUMNS):
            first = seen.setdefault(identity(record), record.line)
            if first != record.line:
                found.append(_fault(table.name, record, 0, f"the same row as in line {first}"))
            elif not faults:
                placed = LocatedRow(table.name, record, row_of(record))
                other = measured.setdefault(measurement_key(placed.row), placed)
                if other is not placed:
                    found.append(conflict(other, placed))
    return found


def conflict(first: LocatedRow, second: LocatedRow) -> Fault:
    """That two rows say different things of one measurement: neither is chosen.

    Told at the figure, or at the first other column in which they differ.
    """
    differing = [name for name in COLUMNS if getattr(first.row, name) != getattr(second.row, name)]
    name = COLUMNS[_THROUGHPUT] if COLUMNS[_THROUGHPUT] in differing else differing[0]
    index = COLUMNS.index(name)
    told = first.record.fields[index]
    rule = f"{first.place}:{index + 1} says {told!r} of the same measurement (all of its key alike)"
    return _fault(second.file, second.record, index, rule)


def valid_rows(table: Table) -> list[LocatedRow]:
    """The rows without a fault. None of a table whose header is another."""
    if header_fault(table) is not None:
        return []
    sound = [record for record in table.rows if not row_faults(table.name, record)]
    return [LocatedRow(table.name, record, row_of(record)) for record in sound]


def row_of(record: Record) -> Row:
    """The fact that a record without a fault is."""
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
    """The same for two records that say the same: `92.72` and `92.720` are one figure."""
    fields: list[str | float] = list(record.fields)
    if rules.violated_rule(COLUMNS[_THROUGHPUT], record.fields[_THROUGHPUT]) is None:
        fields[_THROUGHPUT] = float(record.fields[_THROUGHPUT])
    return tuple(fields)


def header_fault(table: Table) -> Fault | None:
    """Where the header is not the 13 columns in their order; the rows have no names then."""
    rule = f"the header must be {','.join(COLUMNS)}; no row is checked under another one"
    if table.header is None:
        return Fault(table.name, 1, 1, COLUMNS[0], "", rule)
    header = table.header.fields
    for index in range(max(len(COLUMNS), len(header))):
        if header[index : index + 1] != COLUMNS[index : index + 1]:
            return _fault(table.name, table.header, index, rule)
    return None


def row_faults(file: str, record: Record) -> list[Fault]:
    """What is wrong with one record under the right header; other rows are not looked at."""
    if record.misquoted is not None:
        rule = 'a field with a quote in it is written in quotes, and the quote twice: "7"" rack"'
        return [_fault(file, record, record.misquoted - 1, rule)]
    if len(record.fields) != len(COLUMNS):
        return [_ragged(file, record)]
    return sorted(_field_faults(file, record), key=lambda fault: fault.column)


def _ragged(file: str, record: Record) -> Fault:
    """The one fault of a row with too few or too many fields, where that shows first.

    That is the first value that cannot be its column's (a missing or an additional field before
    it has moved it there), or else the field that is missing at the end, or one too many.
    """
    fields, wanted = record.fields, len(COLUMNS)
    if not fields:
        return _fault(file, record, 0, "an empty line is no row")
    had = f"the row has {len(fields)} {'field' if len(fields) == 1 else 'fields'}, not {wanted}"
    for index, (name, value) in enumerate(zip(COLUMNS, fields, strict=False)):
        if not rules.is_plausible(name, value):
            return _fault(file, record, index, f"{had}: here a value stands in the wrong column")
    if len(fields) < wanted:
        return _fault(file, record, len(fields), f"{had}: this one is missing, or one before it")
    return _fault(
        file, record, wanted, f"{had}: a field with a comma in it must be written in quotes"
    )


def _field_faults(file: str, record: Record) -> Iterator[Fault]:
    values = dict(zip(COLUMNS, record.fields, strict=True))
    sound = dict(values)
    for index, (name, value) in enumerate(values.items()):
        rule = rules.violated_rule(name, value)
        if rule is not None:
            del sound[name]
            yield _fault(file, record, index, rule)
    for broken in rules.contradictions(sound):
        column = COLUMNS.index(broken.column) + 1
        yield Fault(file, record.line, column, broken.column, broken.value, broken.rule)


def _fault(file: str, record: Record, index: int, rule: str) -> Fault:
    name = COLUMNS[index] if index < len(COLUMNS) else "(no column)"
    value = record.fields[index] if index < len(record.fields) else ""
    return Fault(file, record.line, index + 1, name, value, rule)

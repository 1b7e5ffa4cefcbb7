"""Tables of facts as text (RFC 4180), their faults, and where these are; repairs older tables, and
merges tables without faults.

Pure. Each fault is reported once, at its location: a ragged row has one fault, and none for the
values that it shifts; nothing is compared in a row with a field that has a fault of its own.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from decimal import Decimal
from itertools import zip_longest
from typing import Final

from orch_sidecar.tools.arguments import Unavailable
from orch_sidecar.tools.facts.tables.contradictions import contradictions
from orch_sidecar.tools.facts.tables.notes import SIGNIFICANT_DIGITS
from orch_sidecar.tools.facts.tables.row import (
    BENCH,
    COLUMNS,
    MEANINGS,
    REQUIRED_NOTES,
    TYPES,
    Label,
    Row,
    format_notes,
    invisible_rule,
    run_of,
    violated_rule,
)

# The line end of an empty table; others keep that of their header. RFC 4180 asks for CRLF; facts
# live in repositories, where every other file ends its lines with LF.
_LINE_END: Final = "\n"
_QUOTES: Final = (
    "fields are separated by commas, and a field that contains a quote must be quoted, and it "
    'doubled: "7"" rack"'
)

_ADDED: Final = "the rows to be added"
_OLD_LABELS: Final = ("aggregate", "per_user_stream")
# Characters of a value that a message shows: a comma without quotes shifts whole texts.
_SHOWN_CHARACTERS: Final = 60


@dataclass(frozen=True, slots=True)
class Record:
    """A row, the header, or an empty line (no fields). `line`: where it starts, from 1."""

    file: str
    line: int
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A file's text, with a byte order mark if it has one, and its records, the header first."""

    name: str
    text: str = ""
    records: tuple[Record, ...] = ()

    @property
    def rows(self) -> tuple[Record, ...]:
        return self.records[1:]


def decoded(name: str, content: bytes, encoding: str = "utf-8") -> str:
    """Returns the text of a file; in `utf-8-sig` without a byte order mark. Raises ValueError,
    with the line."""
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        line, byte = content.count(b"\n", 0, error.start) + 1, error.object[error.start]
        rule = f"the text is not UTF-8, nor may it be compressed: {error.reason} {byte:#x}"
        raise ValueError(f"{name}:{line}: {rule}") from None


def parse(name: str, text: str) -> Table:
    """Parses a text into a table.

    Raises ValueError, with the line, for text that RFC 4180 or Python's csv does not allow.
    """
    lines = list(io.StringIO(text.removeprefix("\ufeff"), newline=""))
    reader, records, line = csv.reader(lines, strict=True), [], 1
    try:
        for fields in reader:
            raw = "".join(lines[line - 1 : reader.line_num])
            for column, field in enumerate(fields, 1):
                quoted = field.replace('"', '""')
                if '"' in field and f'"{quoted}"' not in raw:
                    raise ValueError(f"{name}:{line}:{column}: invalid CSV: {_QUOTES}")
            records.append(Record(name, line, tuple(fields)))
            line = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(f"{name}:{line}: invalid CSV: {error}") from error
    return Table(name, text, tuple(records))


def record_text(fields: Sequence[str], line_end: str) -> str:
    """Formats a record according to RFC 4180, quoting only the fields that need it."""
    out = io.StringIO()
    # The writer quotes what its own line end would break: with CRLF, each of CR and LF.
    csv.writer(out, lineterminator="\r\n").writerow(fields)
    return out.getvalue().removesuffix("\r\n") + line_end


def row_fields(row: Row) -> tuple[str, ...]:
    """Formats a row as the fields of its record, the throughput with at most six significant digits
    and without an exponent."""
    throughput = Decimal(f"{row.throughput_tokens_per_sec:.{SIGNIFICANT_DIGITS}g}")
    texts = {"throughput_tokens_per_sec": format(throughput, "f")}
    return tuple(texts.get(name) or str(getattr(row, name)) for name in COLUMNS)


def with_records(table: Table, added: Iterable[Sequence[str]]) -> Table:
    """Returns the table with further records at its end; those that it has keep their bytes."""
    found, text = re.search(r"\r\n|\n|\r", table.text), table.text
    end = _LINE_END if found is None else found[0]
    if table.records and not text.endswith(("\n", "\r")):
        text += end
    return parse(table.name, text + "".join(record_text(fields, end) for fields in added))


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a field of a record, or of the one that it lacks or has too many.

    `index`: of the field. `found`: what is wrong in it, None for all of it.
    """

    record: Record
    index: int
    rule: str
    found: str | None = None

    def __str__(self) -> str:
        """The text with its location; lines and columns count from 1."""
        return f"{self.record.file}:{self.record.line}:{self.index + 1}: {self.text}"

    @property
    def text(self) -> str:
        """The column, its value and the rule, without the location."""
        name, field = (*COLUMNS, "(no column)")[self.index], (*self.record.fields, "")[self.index]
        value = field if self.found is None else self.found
        if len(value) > _SHOWN_CHARACTERS:
            value = f"{value[: _SHOWN_CHARACTERS - 1]}…"
        return f"{name} {value!r}: {self.rule}"


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
    rows, faults = _parsed(table)
    firsts = distinct(rows)
    for located in rows:
        if (first := firsts[located.row]) is not located:
            faults.append(Fault(located.record, 0, f"the row repeats line {first.record.line}"))
    return sorted([*faults, *conflicts(firsts.values())], key=lambda fault: fault.record.line)


def merge(tables: Sequence[Table]) -> Table | list[Fault]:
    """Merges at least one table: the first, and below it the rows of others that it does not have.

    Returns the faults instead where a table has any, two rows for one measurement differ, or two
    rows of one run have different labels.
    """
    firsts = distinct(located for table in tables for located in valid_rows(table)).values()
    faults = [fault for table in tables for fault in check(table)] or [*conflicts(firsts)]
    # Of the first table each row is new.
    added = [located.record.fields for located in firsts][len(tables[0].rows) :]
    return faults or with_records(tables[0], added)


def with_rows(table: Table, rows: Sequence[Row]) -> Table:
    """Returns the table with further rows, without those that it contains already, in every field.

    Raises ValueError for a row in which `check` would find a fault, Unavailable for one that
    contradicts another of the same measurement or run.
    """
    for row in rows:
        check_row(row)
    added = with_records(Table(_ADDED), [COLUMNS, *map(row_fields, rows)])
    firsts = distinct([*valid_rows(table), *valid_rows(added)]).values()
    for fault in conflicts(firsts):
        if fault.record.file == _ADDED:
            raise Unavailable(str(fault))
    new = (located.record for located in firsts if located.record.file == _ADDED)
    return with_records(table, [record.fields for record in new])


def distinct(rows: Iterable[LocatedRow]) -> dict[Row, LocatedRow]:
    """Returns where each row is first, in their order: a row may be there several times."""
    found: dict[Row, LocatedRow] = {}
    for located in rows:
        found.setdefault(located.row, located)
    return found


def conflicts(rows: Iterable[LocatedRow]) -> Iterator[Fault]:
    """Yields the faults of distinct rows that contradict one before: another label of one run, or
    another result of one measurement, at the first column in which they differ."""
    measured: dict[tuple[object, ...], LocatedRow] = {}
    labelled: dict[str, LocatedRow] = {}
    for located in rows:
        row, record = located.row, located.record
        run, label = run_of(row.source_tag), row.stated_label
        first = located if run is None or label is None else labelled.setdefault(run, located)
        if (other := first.row.stated_label) is not label:
            index = COLUMNS.index("measurement_type" if row.is_confirmed else "scenario_notes")
            rule = f"{first.place} has {str(other)!r} for the same run, {run}: a run has one label"
            yield Fault(record, index, rule, None if row.is_confirmed else row.notes.pair("claim"))
        elif (first := measured.setdefault(row.measurement, located)) is not located:
            pairs = zip(astuple(row), astuple(first.row), strict=True)
            index = [one == two for one, two in pairs].index(False)
            kind = "one run" if row.source_tag.startswith(BENCH) else "an identical key"
            value = f"{first.place}:{index + 1} has {first.record.fields[index]!r}"
            yield Fault(record, index, f"{value} for the same measurement ({kind})")


def valid_rows(table: Table) -> list[LocatedRow]:
    """Returns the rows without a fault; none if the header has one."""
    return _parsed(table)[0]


def _parsed(table: Table) -> tuple[list[LocatedRow], list[Fault]]:
    """Returns the valid rows, and the faults of the header or of single rows."""
    rows: list[LocatedRow] = []
    if (fault := header_fault(table)) is not None:
        return rows, [fault]
    faults: list[Fault] = []
    for record in table.rows:
        found = parse_row(record)
        if isinstance(found, Row):
            rows.append(LocatedRow(record, found))
        else:
            faults += found
    return rows, faults


def header_fault(table: Table) -> Fault | None:
    """Returns the first difference between the header and the 13 columns, None if there is none."""
    rule = f"the header must be {','.join(COLUMNS)}; rows under another header are not checked"
    header = table.records[0] if table.records else Record(table.name, 1, ())
    for index, (name, column) in enumerate(zip_longest(header.fields, COLUMNS)):
        if name != column:
            unseen = invisible_rule(name or "")
            return Fault(header, index, f"{unseen}; {rule}" if unseen else rule)
    return None


def parse_row(record: Record) -> Row | list[Fault]:
    """Converts a record to a row; returns its faults instead if it has any. It is not compared with
    other rows."""
    count, expected = len(record.fields), len(COLUMNS)
    if not count:
        return [Fault(record, 0, "an empty line is not a row")]
    if count != expected:
        missing, extra = "one is missing here or before", "a comma in one must be quoted"
        rule = (
            f"the row has {count} fields, not {expected}: {missing if count < expected else extra}"
        )
        return [Fault(record, min(count, expected), rule)]
    values = dict(zip(COLUMNS, record.fields, strict=True))
    rules = [violated_rule(name, value) for name, value in values.items()]
    if faults := [Fault(record, index, rule) for index, rule in enumerate(rules) if rule]:
        return faults
    row = Row(**{name: of_type(values[name]) for name, of_type in TYPES.items()})
    found = contradictions(row)
    faults = [Fault(record, COLUMNS.index(name), rule, noted) for name, noted, rule in found]
    return sorted(faults, key=lambda fault: fault.index) or row


def check_row(row: Row) -> None:
    """Raises ValueError for a row, not in a table yet, in which `check` would find a fault."""
    found = parse_row(Record("row", 1, row_fields(row)))
    if not isinstance(found, Row):
        raise ValueError("; ".join(fault.text for fault in found))


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
        fields = record.fields
        if not isinstance(parse_row(record), Row):
            fields = _rewritten(record)
            found, place = parse_row(replace(record, fields=fields)), f"{table.name}:{record.line}"
            if isinstance(found, Row):
                steps.append(f"{place}: migrated: {', '.join(fields[-3:-1])}")
            else:
                steps.append(f"{place}: unchanged: {'; '.join(fault.text for fault in found)}")
                fields = record.fields
        rows.append(fields)
    return with_records(Table(table.name), [COLUMNS, *rows]), steps


def _rewritten(record: Record) -> tuple[str, ...]:
    """Returns the fields with a current label and notes, as they are where it is not known how."""
    if len(record.fields) != len(COLUMNS):
        return record.fields
    values = dict(zip(COLUMNS, record.fields, strict=True))
    old, text = values["measurement_type"], " ".join(values["scenario_notes"].split())
    if "=" in text or old not in {*_OLD_LABELS, *Label}:
        return record.fields
    label = Label.TO_BE_CONFIRMED if old in _OLD_LABELS else Label(old)
    batching = MEANINGS[label].batching if label in MEANINGS else "unknown"
    notes = {name: values.get(name, batching) for name in REQUIRED_NOTES}
    if old != label:
        notes["legacy_label"] = old
    if text:
        notes["legacy_notes"] = text.replace(";", ",")
    try:
        changed = {"measurement_type": label.value, "scenario_notes": format_notes(notes)}
    except ValueError:  # a length that no note can hold
        return record.fields
    return tuple({**values, **changed}.values())

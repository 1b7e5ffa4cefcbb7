"""`tps_model_gpu.csv` as text: records that keep their place and their bytes (RFC 4180).

Pure. Knows how a record is written, and nothing of what its fields should say: what is ragged or
badly quoted is read, too, so that a fault can be told at its place. A record that nobody changes
is written as it was read, byte by byte.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Final

from orch_sidecar.tools.facts.tables.row import COLUMNS, Row

# A table without a line says nothing of how its lines end. RFC 4180 would have CRLF; facts live
# in repositories, where every other file ends its lines with LF.
_LINE_END: Final = "\n"
_MARK: Final = "\ufeff"

_FIELD: Final = re.compile(r'"(?:[^"]|"")*+"|[^",\r\n]*')
_END: Final = re.compile(r"(?:\r\n|\n|\r)\Z")

_SIGNIFICANT_DIGITS: Final = 6


class UnreadableFile(ValueError):
    """A file that is no table at all; the message names the place and the rule."""


@dataclass(frozen=True, slots=True)
class Record:
    """One record: a row, the header, or an empty line (no fields).

    `line`: the physical line it starts in, from 1. `raw`: its text, line end included, where it
    has one. `misquoted`: the column, from 1, whose quotes RFC 4180 does not allow.
    """

    line: int
    fields: tuple[str, ...]
    raw: str
    misquoted: int | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """A file's records in their order, the header first. `mark`: its byte order mark, or ""."""

    name: str
    records: tuple[Record, ...] = ()
    mark: str = ""

    @property
    def header(self) -> Record | None:
        return self.records[0] if self.records else None

    @property
    def rows(self) -> tuple[Record, ...]:
        return self.records[1:]

    @property
    def text(self) -> str:
        return self.mark + "".join(record.raw for record in self.records)

    @property
    def line_end(self) -> str:
        """How its first line ends: what is added ends alike."""
        return end_of(self.records[0].raw) or _LINE_END if self.records else _LINE_END


def parse(name: str, text: str) -> Table:
    """The table that a text is. Raises Unreadable for a field that no reader of CSV would take."""
    mark = _MARK if text.startswith(_MARK) else ""
    taken: list[str] = []

    def lines() -> Iterator[str]:
        for line in io.StringIO(text.removeprefix(_MARK), newline=""):
            taken.append(line)
            yield line

    reader, records, line = csv.reader(lines()), [], 1
    while True:
        taken.clear()
        try:
            fields = next(reader)
        except StopIteration:
            break
        except csv.Error as error:
            raise UnreadableFile(f"{name}:{line}: no CSV: {error}") from error
        raw = "".join(taken)
        records.append(Record(line, tuple(fields), raw, _misquoted(raw)))
        line += len(taken)
    return Table(name, tuple(records), mark)


def end_of(raw: str) -> str:
    """The line end of a record's text, "" where it has none (the last of a file may not)."""
    found = _END.search(raw)
    return "" if found is None else found[0]


def record_text(fields: Sequence[str], line_end: str) -> str:
    """A record as RFC 4180 writes it, quoted only where it must be."""
    out = io.StringIO()
    # The writer quotes what its own line end would break: with CRLF, each of CR and LF.
    csv.writer(out, lineterminator="\r\n").writerow(fields)
    return out.getvalue().removesuffix("\r\n") + line_end


def row_fields(row: Row) -> tuple[str, ...]:
    """A fact as the fields of its record. Raises ValueError for a throughput that is no number."""
    throughput = throughput_text(row.throughput_tokens_per_sec)
    texts = {"throughput_tokens_per_sec": throughput}
    return tuple(texts.get(name) or str(getattr(row, name)) for name in COLUMNS)


def throughput_text(tokens_per_s: float) -> str:
    """At most six significant digits and never an exponent. Raises ValueError unless finite."""
    if not math.isfinite(tokens_per_s):
        raise ValueError(f"throughput_tokens_per_sec {tokens_per_s}: must be a finite number")
    return format(Decimal(f"{tokens_per_s:.{_SIGNIFICANT_DIGITS}g}"), "f")


def with_changes(table: Table, changes: Mapping[int, Sequence[str]]) -> Table:
    """The table with other fields in some records, by their index in `records`."""
    records = list(table.records)
    for index, fields in changes.items():
        raw = record_text(fields, end_of(records[index].raw))
        records[index] = replace(records[index], raw=raw)
    return _again(replace(table, records=tuple(records)))


def with_records(table: Table, added: Iterable[Sequence[str]]) -> Table:
    """The table with further records at its end."""
    return with_raw(table, (record_text(fields, table.line_end) for fields in added))


def with_raw(table: Table, added: Iterable[str]) -> Table:
    """The same with records that are text already; the line end becomes that of the table."""
    end = table.line_end
    raws = [record.raw for record in table.records]
    for raw in added:
        if raws and not end_of(raws[-1]):
            raws[-1] += end
        raws.append(raw.removesuffix(end_of(raw)) + end)
    return parse(table.name, table.mark + "".join(raws))


def _again(table: Table) -> Table:
    """Read once more: lines have moved where a record got longer or shorter by one."""
    return parse(table.name, table.text)


def _misquoted(raw: str) -> int | None:
    """The first column with a quote within it, text after its last quote, or no last quote."""
    column, at = 1, 0
    while True:
        field = _FIELD.match(raw, at)
        assert field is not None, "the second form matches the empty text"
        at = field.end()
        following = raw[at : at + 1]
        if following != ",":
            return None if following in ("", "\r", "\n") else column
        column, at = column + 1, at + 1

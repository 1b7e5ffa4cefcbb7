"""Parses and writes `tps_model_gpu.csv` as records that keep their line and their bytes (RFC 4180).

Pure. Knows how a record is written, and nothing about what its fields must contain: ragged and
badly quoted records are parsed, too, so that a fault can be reported with its location. A record
that is not changed is written back byte by byte.
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

# The line end of an empty table. RFC 4180 asks for CRLF; facts live in repositories, where every
# other file ends its lines with LF.
_LINE_END: Final = "\n"
_MARK: Final = "\ufeff"

_FIELD: Final = re.compile(r'"(?:[^"]|"")*+"|[^",\r\n]*')
_END: Final = re.compile(r"(?:\r\n|\n|\r)\Z")

_SIGNIFICANT_DIGITS: Final = 6


class UnreadableFile(ValueError):
    """A file that cannot be parsed at all; the message names the location and the rule."""


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
        """The line end of the first record, used for every record that is added."""
        return line_end_of(self.records[0].raw) or _LINE_END if self.records else _LINE_END


def parse(name: str, text: str) -> Table:
    """Parses a text into a table. Raises UnreadableFile for text that Python's csv rejects."""
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
            raise UnreadableFile(f"{name}:{line}: invalid CSV: {error}") from error
        raw = "".join(taken)
        records.append(Record(line, tuple(fields), raw, _misquoted(raw)))
        line += len(taken)
    return Table(name, tuple(records), mark)


def line_end_of(raw: str) -> str:
    """Returns the line end of a record's text, "" where the last record of a file has none."""
    found = _END.search(raw)
    return "" if found is None else found[0]


def record_text(fields: Sequence[str], line_end: str) -> str:
    """Formats a record according to RFC 4180, quoting only the fields that need it."""
    out = io.StringIO()
    # The writer quotes what its own line end would break: with CRLF, each of CR and LF.
    csv.writer(out, lineterminator="\r\n").writerow(fields)
    return out.getvalue().removesuffix("\r\n") + line_end


def row_fields(row: Row) -> tuple[str, ...]:
    """Formats a row as the fields of its record. Raises ValueError for an infinite throughput."""
    throughput = throughput_text(row.throughput_tokens_per_sec)
    texts = {"throughput_tokens_per_sec": throughput}
    return tuple(texts.get(name) or str(getattr(row, name)) for name in COLUMNS)


def throughput_text(tokens_per_s: float) -> str:
    """Formats a throughput with at most six significant digits and without an exponent.

    Raises ValueError unless it is finite.
    """
    if not math.isfinite(tokens_per_s):
        raise ValueError(f"throughput_tokens_per_sec {tokens_per_s}: must be a finite number")
    return format(Decimal(f"{tokens_per_s:.{_SIGNIFICANT_DIGITS}g}"), "f")


def with_changes(table: Table, changes: Mapping[int, Sequence[str]]) -> Table:
    """Returns the table with new fields in some records, by their index in `records`."""
    records = list(table.records)
    for index, fields in changes.items():
        raw = record_text(fields, line_end_of(records[index].raw))
        records[index] = replace(records[index], raw=raw)
    # Parsed again: line numbers move where a record gets longer or shorter by a line.
    return parse(table.name, replace(table, records=tuple(records)).text)


def with_records(table: Table, added: Iterable[Sequence[str]]) -> Table:
    """Returns the table with further records at its end."""
    return with_raw(table, (record_text(fields, table.line_end) for fields in added))


def with_raw(table: Table, added: Iterable[str]) -> Table:
    """Returns the table with records appended that are text already, with the table's line end."""
    end = table.line_end
    raws = [record.raw for record in table.records]
    for raw in added:
        if raws and not line_end_of(raws[-1]):
            raws[-1] += end
        raws.append(raw.removesuffix(line_end_of(raw)) + end)
    return parse(table.name, table.mark + "".join(raws))


def _misquoted(raw: str) -> int | None:
    """Returns the first column with a quote inside, text after its closing quote, or none."""
    column, at = 1, 0
    while True:
        field = _FIELD.match(raw, at)
        assert field is not None, "the second form matches the empty text"
        at = field.end()
        following = raw[at : at + 1]
        if following != ",":
            return None if following in ("", "\r", "\n") else column
        column, at = column + 1, at + 1

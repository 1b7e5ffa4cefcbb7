"""Parses and writes `tps_model_gpu.csv` as records that keep their line (RFC 4180).

Pure. Knows how a record is written, and nothing about what its fields must contain: ragged records
are parsed, too, so that a fault can be reported with its location.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from orch_sidecar.tools.facts.tables.forms import SIGNIFICANT_DIGITS
from orch_sidecar.tools.facts.tables.row import COLUMNS, Row

# The line end of an empty table; others keep that of their header. RFC 4180 asks for CRLF; facts
# live in repositories, where every other file ends its lines with LF.
_LINE_END: Final = "\n"
_MARK: Final = "\ufeff"
_QUOTES: Final = (
    "fields are separated by commas, and a field that contains a quote must be quoted, and it "
    'doubled: "7"" rack"'
)


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
    lines = list(io.StringIO(text.removeprefix(_MARK), newline=""))
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

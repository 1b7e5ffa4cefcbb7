"""Tables of facts on disk: read whole, written whole or not at all.

The only module here that writes files. Nobody ever sees half a table: what is written goes to a
file beside it that then takes its name. Whoever adds rows holds a lock meanwhile, so that two
measurements that end together both have their rows in.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from orch_sidecar.tools.facts.tables.check import (
    LocatedRow,
    conflict,
    header_fault,
    identity,
    row_faults,
    valid_rows,
)
from orch_sidecar.tools.facts.tables.row import COLUMNS, Row, measurement_key
from orch_sidecar.tools.facts.tables.table import (
    Record,
    Table,
    UnreadableFile,
    parse,
    record_text,
    row_fields,
    with_records,
)


class Conflict(ValueError):
    """A row that says something else of a measurement than one that is there; names both."""


def read(path: Path) -> Table:
    """The table in a file. Raises OSError, and Unreadable for what is no UTF-8 or no CSV."""
    content = path.read_bytes()
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UnreadableFile(
            f"{path}:{line}: no UTF-8: {error.reason} {content[error.start]:#x}"
        ) from None
    return parse(str(path), text)


def write(path: Path, content: str | bytes) -> None:
    """Makes this a file's content: all of it, or nothing. Text is UTF-8. Raises OSError."""
    # A link stays one, and the file that it leads to is written.
    target, beside = path.resolve(), _beside(path)
    try:
        with beside.open("wb") as file:
            file.write(content.encode("utf-8") if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
            if target.exists():
                os.fchmod(file.fileno(), target.stat().st_mode & 0o7777)
        beside.replace(target)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def append(path: Path, rows: Sequence[Row]) -> int:
    """Adds rows to the end of a file, which is made where there is none. How many were added:

    a row that stands there already, in every field, is not written again. Rows that stood there
    keep their bytes. Nothing is written, and raised is: Unreadable where the file has another
    header or an end to which nothing can be added, Conflict for a row that says something else
    of a measurement than one that is there, ValueError for one that `check` would object to,
    OSError.
    """
    with locked(path):
        table = _begun(path)
        there = {identity(each) for each in table.rows if len(each.fields) == len(COLUMNS)}
        measured = {measurement_key(each.row): each for each in valid_rows(table)}
        added = []
        for row in rows:
            record = _sound(row)
            if identity(record) in there:
                continue
            placed = LocatedRow("the row to be added", record, row)
            other = measured.setdefault(measurement_key(row), placed)
            if other is not placed:
                raise Conflict(str(conflict(other, placed)))
            there.add(identity(record))
            added.append(record.fields)
        if added or not path.exists():
            write(path, _grown(table, added).text)
    return len(added)


def check_appendable(path: Path) -> None:
    """Raises what `append` would for this file, whatever the rows. Nothing is written."""
    _grown(_begun(path), [COLUMNS])


def check_writable(path: Path) -> None:
    """Raises OSError where `write` could not; what is there stays as it is."""
    _beside(path).unlink()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Nobody else who asks for this changes files in the same folder meanwhile. Raises OSError."""
    # The folder: a lock on the file would be one on what the new file has replaced.
    folder = os.open(path.resolve().parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _beside(path: Path) -> Path:
    """A new, empty file in the folder of another one."""
    target = path.resolve()
    if target.exists() and not target.is_file():
        raise OSError(f"{path}: is there and no plain file")
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "no such folder", str(target.parent))
    beside = target.with_name(f".{target.name}.{secrets.token_hex(4)}.new")
    beside.open("xb").close()
    return beside


def _begun(path: Path) -> Table:
    """The table of a file, with a header at least. Raises Unreadable for another one."""
    table = read(path) if path.exists() else Table(str(path))
    if table.header is None:
        table = with_records(table, [COLUMNS])
    fault = header_fault(table)
    if fault is not None:
        raise UnreadableFile(str(fault))
    return table


def _grown(table: Table, added: Sequence[tuple[str, ...]]) -> Table:
    """With these records at its end, as a reader finds them there. Raises Unreadable.

    A quote that is never closed makes what follows it part of its field.
    """
    grown = with_records(table, added)
    count = len(table.records)
    if [each.fields for each in grown.records[count:]] != list(added):
        last = table.records[-1]
        place = f"{table.name}:{last.line}:{last.misquoted or len(last.fields)}"
        rule = "the last record must end, each of its quotes closed: nothing can be added to it"
        raise UnreadableFile(f"{place}: {rule}")
    return grown


def _sound(row: Row) -> Record:
    """The record of a row. Raises ValueError for one with a fault."""
    fields = row_fields(row)
    record = Record(1, fields, record_text(fields, ""))
    faults = row_faults("row", record)
    if faults:
        raise ValueError("; ".join(f"{each.name} {each.value!r}: {each.rule}" for each in faults))
    return record

"""Reads and writes tables of facts on disk.

The only module here that writes files. Readers never see half a table: new content is written to
a temporary file, which then replaces the old one. Appending locks the folder, so that two
measurements that end together both keep their rows.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from orch_sidecar.tools.facts.tables.row import COLUMNS, Row
from orch_sidecar.tools.facts.tables.table import (
    Table,
    decoded,
    header_fault,
    parse,
    with_records,
    with_rows,
)


def read(path: Path) -> Table:
    """Reads a table. Raises OSError, and ValueError for a file that is not UTF-8 or not CSV."""
    return parse(str(path), decoded(str(path), path.read_bytes()))


def write(path: Path, content: str | bytes) -> None:
    """Replaces the content of a file atomically. Text is encoded as UTF-8. Raises OSError."""
    # A symbolic link stays: its target is written.
    target, temporary = path.resolve(), _temporary_beside(path)
    try:
        with temporary.open("wb") as file:
            file.write(content.encode("utf-8") if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
            if target.exists():
                os.fchmod(file.fileno(), target.stat().st_mode & 0o7777)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def append(path: Path, rows: Sequence[Row]) -> int:
    """Appends rows to a file, creates it if necessary, and returns how many rows were added.

    Existing rows keep their bytes. Nothing is written on errors. Raises what `with_rows` does,
    ValueError for a file with another header, OSError.
    """
    with locked(path):
        table = check_appendable(path)
        found = with_rows(table, rows)
        added = len(found.rows) - len(table.rows)
        if added or not path.exists():
            write(path, found.text)
    return added


def check_appendable(path: Path) -> Table:
    """Returns the table of a file to which rows can be appended, with a header at least.

    Raises what `append` would raise for this file, whatever the rows. Writes nothing.
    """
    table = read(path) if path.exists() else Table(str(path))
    if not table.records:
        table = with_records(table, [COLUMNS])
    if (fault := header_fault(table)) is not None:
        raise ValueError(str(fault))
    return table


def check_writable(path: Path) -> None:
    """Raises OSError where `write` would. Does not change the file."""
    _temporary_beside(path).unlink()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Excludes other users of this lock from the same folder. Raises OSError."""
    # Of the folder: a lock on the file would be lost when the file is replaced.
    folder = os.open(path.resolve().parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _temporary_beside(path: Path) -> Path:
    """Creates a new, empty file in the folder of another one, and returns its path."""
    target = path.resolve()
    if target.exists() and not target.is_file():
        raise OSError(f"{path}: must be a regular file")
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "no such folder", str(target.parent))
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.new")
    try:
        temporary.open("xb").close()
    except OSError as error:  # nobody knows the name of the temporary file
        raise OSError(error.errno, error.strerror, str(target.parent)) from None
    return temporary

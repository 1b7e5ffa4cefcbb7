"""Stores files and batches: their records in a database, the content of files beside it.

The database is SQLite (in WAL mode) or PostgreSQL, by URL; its schema is brought up to date.
SQLAlchemy's work is not asynchronous, because SQLite's is not: each transaction is one function
that runs in a thread. Content is stored with `fsspec`: in a local directory, or by URL in S3 and
the like. A file is known to nobody before the database names it, so what a broken upload leaves
behind is only removed, never read.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Final, TypeVar
from zlib import crc32

import fsspec
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from fsspec.implementations.local import LocalFileSystem
from sqlalchemy import Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.orm import Session

from orch_sidecar.config.settings import SidecarSettings

logger = logging.getLogger("orch.batches")

_T = TypeVar("_T")

_DATABASE: Final = "batches.sqlite"
_PRIVATE: Final = 0o700
_FILES: Final = "files"
_UNFINISHED: Final = ".part"
# No upload takes as long: what is older is of a process that was killed.
_ABANDONED_AFTER_S: Final = 86_400
_NAMES_AT_ONCE: Final = 500  # whose records are looked up in one transaction
# Other sidecars of a database that is shared hold its locks for milliseconds.
_LOCK_TIMEOUT_S: Final = 30
# A sidecar that was paused, or whose host is gone, in a transaction: it holds its locks no longer.
_MAX_IDLE_S: Final = 5
_MIGRATING: Final = "migrate"
# A server that is gone without a word: no transaction waits for it longer than for a lock.
_POSTGRESQL: Final = {
    "connect_timeout": _LOCK_TIMEOUT_S,
    "tcp_user_timeout": 1000 * _LOCK_TIMEOUT_S,
    "keepalives_idle": _LOCK_TIMEOUT_S,
    "keepalives_interval": 5,
}


class Database:
    """Runs transactions on the tables of files and batches. `close` it."""

    def __init__(self, url: str) -> None:
        """`url`: as SQLAlchemy has it. Brings the schema up to date. Raises ValueError if the URL
        cannot be used, SQLAlchemyError if the database cannot."""
        try:
            parsed = make_url(url)
        except ArgumentError:
            raise ValueError("batches_database is no URL of a database") from None
        if parsed.drivername in ("postgresql", "postgres"):
            parsed = parsed.set(drivername="postgresql+psycopg")
        self.shared = parsed.drivername == "postgresql+psycopg"
        if not self.shared and parsed.drivername != "sqlite":
            raise ValueError(
                f"batches_database is of {parsed.drivername!r}: it must begin with postgresql:// "
                "or sqlite:///"
            )
        # Errors are logged: they must not have the parameters, among which are answers.
        create = partial(create_engine, parsed, hide_parameters=True)
        if self.shared:
            self._engine = create(
                pool_pre_ping=True, pool_size=2, max_overflow=2, connect_args=_POSTGRESQL
            )
            event.listen(self._engine, "connect", _end_idle_transactions)
        else:
            self._engine = create(connect_args={"timeout": _LOCK_TIMEOUT_S})
            _use_write_ahead_log(self._engine)
        # SQLite has one writer; more threads would wait for each other in it.
        self._threads = ThreadPoolExecutor(2 if self.shared else 1, "batches")
        with self._engine.begin() as connection:
            if self.shared:
                lock(connection, _MIGRATING)
            _migrate(connection)

    async def run(self, work: Callable[[Session], _T]) -> _T:
        """Runs `work` in a transaction: committed when it returns, rolled back if it raises."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, partial(self.transact, work))

    def close(self) -> None:
        """Waits for what runs, and closes the connections."""
        self._threads.shutdown()
        self._engine.dispose()

    def transact(self, work: Callable[[Session], _T]) -> _T:
        """Does the same in this thread."""
        with Session(self._engine, expire_on_commit=False) as session, session.begin():
            return work(session)


def lock(connection: Connection, name: str) -> None:
    """Has transactions that lock one name follow each other. In SQLite all do."""
    if connection.dialect.name == "postgresql":
        number = crc32(name.encode())
        connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": number})


def _end_idle_transactions(connection: Any, _: object) -> None:
    # No option of the connection: pgbouncer takes none.
    try:
        connection.execute(f"SET idle_in_transaction_session_timeout = '{_MAX_IDLE_S}s'")
        connection.commit()
    except Exception:  # the server was stopped in between
        connection.close()  # nobody else has it
        raise


def _migrate(connection: Connection) -> None:
    config = Config()
    config.set_main_option("script_location", "orch_sidecar.batches:migrations")
    config.attributes["connection"] = connection
    known = {each.revision for each in ScriptDirectory.from_config(config).walk_revisions()}
    now = MigrationContext.configure(connection).get_current_revision()
    if now is None or now in known:
        command.upgrade(config, "head")
    else:
        logger.warning("the database of batches has tables of a later version (%s)", now)


def _use_write_ahead_log(engine: Engine) -> None:
    """Sets SQLite up: what is committed survives this process, and writers wait for each other
    where a transaction begins, not in its middle, where they could only fail."""

    def connected(connection: Any, _: object) -> None:
        connection.isolation_level = None  # this module begins transactions, not sqlite3
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")

    def begun(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    event.listen(engine, "connect", connected)
    event.listen(engine, "begin", begun)


class StoreFault(OSError):
    """The file system of the store has failed."""


@contextmanager
def _faults() -> Iterator[None]:
    """Raises what fails as a StoreFault: the libraries of S3 and the like have errors of their own.
    That there is no such file is none."""
    try:
        yield
    except FileNotFoundError:
        raise
    except Exception as error:
        raise StoreFault(str(error) or type(error).__name__) from error


class Opened:
    """A file that is read."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.close = file.close

    @_faults()
    def read(self, size: int) -> bytes:
        """Returns its next bytes, none at its end. Raises StoreFault."""
        return self._file.read(size)


class FileStore:
    """The content of files by their ids, below one directory or URL. All methods block: they are
    for threads."""

    def __init__(self, url: str) -> None:
        """Raises OSError or ValueError if it cannot be used, ImportError without its library."""
        self._system, root = fsspec.core.url_to_fs(url)
        self.local = isinstance(self._system, LocalFileSystem)
        self._folder = PurePosixPath(root) / _FILES
        if self.local:
            self._system.makedirs(str(self._folder), exist_ok=True)

    @contextmanager
    def writer(self, name: str) -> Iterator[Callable[[bytes], object]]:
        """Opens a new file, to be written by what this yields: whole, or not at all. Raises
        StoreFault."""
        path = self._path(name)
        # S3 shows a file once all of it is there.
        unfinished = f"{path}.{os.urandom(4).hex()}{_UNFINISHED}" if self.local else path
        with _faults():
            file = self._system.open(unfinished, "wb")
        try:
            yield _faults()(file.write)
            with _faults():
                if self.local:
                    file.flush()
                    os.fsync(file.fileno())
                file.close()
                if self.local:
                    self._system.mv(unfinished, path)
        except BaseException:
            # The error that is raised is the first one; where a disk is full, closing fails, too.
            with contextlib.suppress(OSError), _faults():
                file.close()
            with contextlib.suppress(OSError), _faults():
                self._system.rm_file(unfinished)
            raise

    @_faults()
    def open(self, name: str) -> Opened:
        """Opens a file to be read. Raises FileNotFoundError or StoreFault."""
        return Opened(self._system.open(self._path(name), "rb"))

    @_faults()
    def read(self, name: str, begin: int, end: int) -> bytes:
        """Returns a part of a file. Raises FileNotFoundError or StoreFault."""
        part: bytes = self._system.cat_file(self._path(name), start=begin, end=end)
        return part

    @_faults()
    def delete(self, name: str) -> None:
        """Deletes a file, if there is one. Raises StoreFault."""
        with contextlib.suppress(FileNotFoundError):
            self._system.rm_file(self._path(name))

    @_faults()
    def remove_abandoned(self, unknown: Callable[[Sequence[str]], list[str]]) -> None:
        """Removes what killed processes have left: unfinished files, and those that `unknown`
        returns. Files that are not old may be of one that is about to make them known. Raises
        StoreFault."""
        self._system.invalidate_cache()
        try:
            paths = self._system.ls(str(self._folder), detail=False)
        except FileNotFoundError:  # S3 has no empty folders
            return
        names = [PurePosixPath(each).name for each in paths]
        whole = [each for each in names if not each.endswith(_UNFINISHED)]
        left = [each for each in names if each.endswith(_UNFINISHED)]
        for first in range(0, len(whole), _NAMES_AT_ONCE):
            left += unknown(whole[first : first + _NAMES_AT_ONCE])
        for path in map(self._path, left):
            with contextlib.suppress(FileNotFoundError):  # another sidecar was first
                if time.time() - self._system.modified(path).timestamp() > _ABANDONED_AFTER_S:
                    self._system.rm_file(path)

    def _path(self, name: str) -> str:
        return str(self._folder / name)


Storage = tuple[Database, FileStore]


def open_storage(settings: SidecarSettings) -> Storage:
    """Opens what the settings name. Raises ValueError if it cannot be used."""
    place, database = settings.batches or "", settings.batches_database
    text = f"batches (ORCH_BATCHES) is {place!r}"
    try:
        if "://" not in place:
            # For this user alone: it has prompts and answers.
            Path(place).mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
        store = FileStore(place)
        if database is None and not store.local:
            raise ValueError(f"{text}: set batches_database, too, for SQLite needs a directory")
        if database is None:
            return Database(f"sqlite:///{Path(place).resolve() / _DATABASE}"), store
        return Database(database.get_secret_value()), store
    except SQLAlchemyError as error:
        reason = str(getattr(error, "orig", error)).partition("\n")[0]
        raise ValueError(f"{text}, and its database cannot be used: {reason}") from None
    except OSError as error:
        raise ValueError(f"{text}, which cannot be used: {error}") from error
    except ImportError as error:
        raise ValueError(f"{text}, for which a library is missing: {error}") from error

"""Opens the database, brings its schema up to date, and runs transactions in threads.

SQLite (in WAL mode) or PostgreSQL, by URL. SQLAlchemy's work is not asynchronous, because SQLite's
is not: each transaction is one function that runs in a thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar
from zlib import crc32

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError
from sqlalchemy.orm import Session

logger = logging.getLogger("orch.batches")

_T = TypeVar("_T")

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
    """Runs transactions. `close` it."""

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
    connection.execute(f"SET idle_in_transaction_session_timeout = '{_MAX_IDLE_S}s'")
    connection.commit()


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

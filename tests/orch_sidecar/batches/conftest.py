"""Databases with the tables of batches: SQLite, and PostgreSQL where Debian's package is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.orm import Session

from orch_sidecar.batches.storage import Database
from orch_sidecar.batches.tables import Base
from tests import postgres


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    with postgres.server() as running:
        yield running.url


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """An empty one."""
    url = f"sqlite:///{tmp_path}/batches.sqlite"
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres_url")
    database = Database(url)
    yield database
    database.transact(empty)
    database.close()


def empty(session: Session) -> None:
    """Forgets all that is in the tables."""
    for table in Base.metadata.sorted_tables:
        session.execute(table.delete())

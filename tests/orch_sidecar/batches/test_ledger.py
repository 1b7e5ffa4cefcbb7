"""Who works on what, in SQLite and in PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any
from unittest.mock import Mock

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, select, text
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session

from orch_sidecar.batches import ledger
from orch_sidecar.batches.ledger import EndedRow, Lane, TakenRow
from orch_sidecar.batches.rows import InputRow
from orch_sidecar.batches.storage import Database, _end_idle_transactions
from orch_sidecar.batches.tables import Base, Batch, Row, RowState, Status
from tests.orch_sidecar.batches.conftest import empty

BATCH, MODEL = "batch_1", "tiny"
LANE = Lane(BATCH, MODEL)


@pytest.fixture
def batch(database: Database) -> Database:
    """With a batch of ten rows that runs."""
    database.transact(add_batch)
    return database


def add_batch(session: Session, rows: int = 10) -> None:
    session.add(
        Batch(
            id=BATCH, owner="", endpoint="/v1/embeddings", input_file_id="file-1",
            completion_window="24h", status=Status.IN_PROGRESS, errors=[], labels={}, total=rows,
            completed=0, failed=0, created_at=1, expires_at=2**40,
        )
    )  # fmt: skip
    found = [InputRow(f"row-{number}", "/v1/embeddings", MODEL, 0, 1) for number in range(rows)]
    ledger.add_rows(session, BATCH, 0, found)


def exchange(
    database: Database,
    worker: str,
    *ended: EndedRow,
    most: int = 0,
    after: int = -1,
    lane: Lane = LANE,
) -> list[TakenRow]:
    return database.transact(
        partial(
            ledger.exchange,
            worker=worker,
            ended=ended,
            wanted={lane: most},
            after={lane: after},
        )
    )


def ended(row: TakenRow, answer: bytes | None = b"{}", **more: Any) -> EndedRow:
    return EndedRow(row.batch_id, row.number, answer, **more)


def read(database: Database, what: Callable[[Session], Any]) -> Any:
    return database.transact(what)


def numbers(rows: list[TakenRow]) -> list[int]:
    return [row.number for row in rows]


def state(database: Database) -> tuple[str, int, int]:
    query = select(Batch.status, Batch.completed, Batch.failed)
    return tuple(read(database, lambda session: session.execute(query).one()))


def test_migrations_make_the_tables_of_this_code(database: Database) -> None:
    def compare(session: Session) -> list[Any]:
        context = MigrationContext.configure(session.connection(), opts={"compare_type": True})
        found: list[Any] = compare_metadata(context, Base.metadata)
        return [each for each in found if each[0] not in ("remove_table", "remove_index")]

    assert read(database, compare) == []


def test_no_row_is_taken_twice(batch: Database) -> None:
    first = exchange(batch, "a", most=4)
    assert numbers(first) == [0, 1, 2, 3]
    assert numbers(exchange(batch, "b", most=20)) == [4, 5, 6, 7, 8, 9]
    assert exchange(batch, "a", most=1) == []


def test_rows_are_taken_by_their_model(batch: Database) -> None:
    others = [InputRow(f"other-{number}", "/score", "other", 0, 1) for number in range(3)]
    batch.transact(partial(ledger.add_rows, batch_id=BATCH, first=10, rows=others))
    other = Lane(BATCH, "other")
    taken = exchange(batch, "a", most=2, lane=other)
    assert [(row.number, row.lane) for row in taken] == [(10, other), (11, other)]
    assert numbers(exchange(batch, "b", most=20)) == list(range(10))
    assert numbers(exchange(batch, "b", most=20, lane=other)) == [12]


def test_rows_of_the_tables_before_run_as_those_of_one_model(tmp_path: Path) -> None:
    """What a sidecar before this one has stored, and stores while an update rolls."""
    url = f"sqlite:///{tmp_path}/batches.sqlite"
    engine = create_engine(url)
    with engine.begin() as connection:
        config = Config()
        config.set_main_option("script_location", "orch_sidecar.batches:migrations")
        config.attributes["connection"] = connection
        command.upgrade(config, "first_tables")
        connection.execute(
            text(
                "INSERT INTO batches (id, owner, endpoint, input_file_id, completion_window,"
                " status, errors, labels, total, completed, failed, created_at, expires_at)"
                " VALUES ('batch_1', '', '', '', '', 'in_progress', '[]', '{}', 1, 0, 0, 1, 2)"
            )
        )
        connection.execute(
            text(
                "INSERT INTO rows (batch_id, number, custom_id, url, begin, length, lost, state)"
                " VALUES ('batch_1', 0, 'a', '/score', 0, 1, 0, 0)"
            )
        )
    engine.dispose()
    database = Database(url)
    [batch] = database.transact(partial(ledger.open_batches, statuses=[Status.IN_PROGRESS]))
    [row] = exchange(database, "a", most=2, lane=Lane(BATCH, batch.models[0]))
    assert row.custom_id == "a"
    database.close()


def test_tables_of_a_later_version_are_used_as_they_are(tmp_path: Path) -> None:
    """By a sidecar of before that starts again while an update rolls."""
    url = f"sqlite:///{tmp_path}/batches.sqlite"
    database = Database(url)
    later = text("UPDATE alembic_version SET version_num = 'later'")
    database.transact(lambda session: session.execute(later))
    database.close()
    database = Database(url)
    database.transact(add_batch)
    assert len(exchange(database, "a", most=20)) == 10
    database.close()


def test_error_has_nothing_of_what_is_stored(database: Database) -> None:
    """It is logged."""
    row = InputRow("a secret", "/score", MODEL, 0, 1)
    add = partial(ledger.add_rows, batch_id=BATCH, first=0, rows=[row])
    database.transact(add)
    with pytest.raises(IntegrityError) as error:
        database.transact(add)
    assert "a secret" not in str(error.value)


def test_two_at_once_take_different_rows(batch: Database) -> None:
    """In PostgreSQL the second one takes others while the first has not committed; in SQLite it
    waits for it."""
    taken, go = Event(), Event()
    found: dict[str, list[TakenRow]] = {}

    def take(session: Session, worker: str) -> None:
        found[worker] = ledger.exchange(session, worker, (), {LANE: 5}, {})
        if worker == "a":
            taken.set()
            if batch.shared:
                go.wait()

    threads = [Thread(target=batch.transact, args=(partial(take, worker=each),)) for each in "ab"]
    threads[0].start()
    taken.wait()
    threads[1].start()
    if batch.shared:
        threads[1].join()
    go.set()
    for thread in threads:
        thread.join()
    assert sorted(numbers(found["a"]) + numbers(found["b"])) == list(range(10))


def test_sidecar_that_is_paused_in_a_transaction_holds_nobody_up(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In SQLite there is no other one."""
    monkeypatch.setattr("orch_sidecar.batches.storage._MAX_IDLE_S", 1)
    database = Database(postgres_url)
    database.transact(add_batch)
    locked, go = Event(), Event()
    ended_by: list[str] = []

    def hold(session: Session) -> None:
        ledger.take_batch(session, "paused", BATCH)
        locked.set()
        go.wait()

    def pause() -> None:
        try:
            database.transact(hold)
        except DBAPIError as error:
            ended_by.append(str(error.orig))

    paused = Thread(target=pause)
    paused.start()
    locked.wait()
    taken = database.transact(partial(ledger.take_batch, worker="other", batch_id=BATCH))
    go.set()
    paused.join()
    assert taken is not None
    assert "idle-in-transaction" in ended_by[0]
    database.transact(empty)
    database.close()


def test_batch_whose_rows_have_ended_is_to_be_ended(batch: Database) -> None:
    rows = exchange(batch, "a", most=10)
    exchange(batch, "a", *(ended(row, ok=True) for row in rows[:7]))
    assert state(batch) == ("in_progress", 7, 0)
    exchange(batch, "a", *(ended(row) for row in rows[7:]))
    assert state(batch) == ("finalizing", 7, 3)


def test_row_ends_once(batch: Database) -> None:
    """Its answer is sent again where the commit of the first time was not confirmed."""
    [row] = exchange(batch, "a", most=1)
    exchange(batch, "a", ended(row, b"first", ok=True))
    exchange(batch, "a", ended(row, b"second", ok=True))
    assert state(batch) == ("in_progress", 1, 0)
    query = select(Row.answer).where(Row.state == RowState.COMPLETED)
    assert read(batch, lambda session: session.scalars(query).all()) == [b"first"]


def test_answer_of_a_worker_that_was_declared_dead_is_dropped(batch: Database) -> None:
    [row] = exchange(batch, "slow", most=1)
    batch.transact(partial(ledger.leave, worker="slow"))
    [again] = exchange(batch, "b", most=1)
    assert again == row
    exchange(batch, "slow", ended(row, b"late", ok=True))
    assert state(batch) == ("in_progress", 0, 0)
    exchange(batch, "b", ended(again, ok=True))
    assert state(batch) == ("in_progress", 1, 0)


def test_row_with_which_an_engine_was_lost_comes_after_the_others(batch: Database) -> None:
    [row] = exchange(batch, "a", most=1)
    exchange(batch, "a", ended(row, None, lost=True))
    taken = exchange(batch, "a", most=10)
    assert numbers(taken) == [*range(1, 10), 0]
    assert taken[-1].lost == 1


def test_rows_behind_a_refused_one_come_first_and_then_those_before_it(batch: Database) -> None:
    assert numbers(exchange(batch, "a", most=3, after=6)) == [7, 8, 9]
    assert numbers(exchange(batch, "a", most=3, after=6)) == [0, 1, 2]
    assert numbers(exchange(batch, "a", most=3, after=4)) == [5, 6, 3]


def test_rows_that_a_worker_does_not_know_of_are_given_back(batch: Database) -> None:
    first = exchange(batch, "a", most=2)
    exchange(batch, "a", most=2)  # the answer to this one is lost
    held = {(row.batch_id, row.number) for row in first}
    batch.transact(partial(ledger.give_back_others, worker="a", held=held))
    assert numbers(exchange(batch, "b", most=10)) == list(range(2, 10))


def test_open_rows_are_aborted_once_and_their_answers_dropped(batch: Database) -> None:
    rows = exchange(batch, "a", most=3)
    exchange(batch, "a", ended(rows[0], ok=True))
    abort = partial(ledger.abort_rows, batch_id=BATCH)
    assert (batch.transact(abort), batch.transact(abort)) == (9, 0)
    exchange(batch, "a", ended(rows[1], ok=True))
    assert state(batch)[1:] == (1, 0)


def test_beats_of_all_workers_are_told(database: Database) -> None:
    for worker in ("a", "b", "a"):
        beats = database.transact(partial(ledger.beat, worker=worker))
    assert beats == {"a": 1, "b": 0}


def test_connection_to_a_server_that_stops_as_it_is_made_is_closed() -> None:
    connection = Mock(execute=Mock(side_effect=ConnectionError("the server stops")))
    with pytest.raises(ConnectionError, match="stops"):
        _end_idle_transactions(connection, None)
    connection.close.assert_called_once_with()

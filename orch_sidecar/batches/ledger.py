"""Records the work of each worker: the rows that it takes and ends, batches to check or to end.

Functions of a transaction's session. What a worker has taken is free again once others see that
its beat does not change: no clock is compared with that of another machine. A worker that was only
slow finds that its rows are no longer its own, and its answers to them are dropped: so each row
has one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple, cast

from sqlalchemy import ColumnElement, CursorResult, delete, insert, or_, select, update
from sqlalchemy.orm import Session

from orch_sidecar.batches.catalog import now_s
from orch_sidecar.batches.rows import InputRow
from orch_sidecar.batches.tables import Batch, Row, RowState, Status, Worker

# An engine that is lost with a row so many times may be lost because of it.
MAX_LOSSES: Final = 10


class Lane(NamedTuple):
    """The rows of one model in one batch: what one of them waits for, the others wait for, too."""

    batch_id: str
    model: str


class TakenRow(NamedTuple):
    """A row that this worker is to run."""

    batch_id: str
    number: int
    custom_id: str
    url: str
    model: str
    begin: int
    length: int
    lost: int

    @property
    def lane(self) -> Lane:
        return Lane(self.batch_id, self.model)


class EndedRow(NamedTuple):
    """A row with its answer. `answer` None: it has none, and is to be run again; `lost`: because
    the engine that had it is lost."""

    batch_id: str
    number: int
    answer: bytes | None
    ok: bool = False
    lost: bool = False


class OpenBatch(NamedTuple):
    """A batch that has not ended, as workers see it."""

    id: str
    owner: str
    status: str
    input_file_id: str
    models: list[str]
    total: int
    completed: int
    failed: int
    expires_at: int
    in_progress_at: int | None
    taken_by: str | None


_OPEN_BATCH: Final = tuple(getattr(Batch, name) for name in OpenBatch._fields)
_TAKEN_ROW: Final = tuple(getattr(Row, name) for name in TakenRow._fields)


def beat(session: Session, worker: str) -> dict[str, int]:
    """Shows that a worker lives. Returns the beats of all workers."""
    if not _changed(
        session, update(Worker).where(Worker.id == worker).values(beat=Worker.beat + 1)
    ):
        session.add(Worker(id=worker, beat=0))
        session.flush()
    return dict(session.execute(select(Worker.id, Worker.beat)).all())


def give_back_others(session: Session, worker: str, held: Collection[tuple[str, int]]) -> None:
    """Gives back what a worker has without its knowledge: the connection was lost while rows were
    being taken. `held`: batch and number of the rows that it knows of."""
    query = select(Row.batch_id, Row.number).where(
        Row.taken_by == worker, Row.state == RowState.OPEN
    )
    for batch_id, number in session.execute(query).all():
        if (batch_id, number) not in held:
            _end(session, worker, EndedRow(batch_id, number, None))


def leave(session: Session, worker: str) -> None:
    """Gives back all that a worker has, and forgets it."""
    session.execute(
        update(Row).where(Row.state == RowState.OPEN, Row.taken_by == worker).values(taken_by=None)
    )
    session.execute(update(Batch).where(Batch.taken_by == worker).values(taken_by=None))
    session.execute(delete(Worker).where(Worker.id == worker))


def open_batches(session: Session, statuses: Iterable[Status]) -> list[OpenBatch]:
    """Returns the batches of these statuses, the oldest first."""
    query = select(*_OPEN_BATCH).where(Batch.status.in_(tuple(statuses))).order_by(Batch.id)
    return [OpenBatch(*each) for each in session.execute(query)]


def exchange(
    session: Session,
    worker: str,
    ended: Iterable[EndedRow],
    wanted: Mapping[Lane, int],
    after: Mapping[Lane, int],
) -> list[TakenRow]:
    """Ends rows, and takes others: of each lane so many, those that follow the number `after`
    first. A batch without open rows is to be ended.

    Of rows that are no longer this worker's nothing is kept.
    """
    counts: dict[str, list[int]] = {}
    for row in ended:
        if _end(session, worker, row) and row.answer is not None:
            counts.setdefault(row.batch_id, [0, 0])[not row.ok] += 1
    for batch_id in sorted(counts):  # in one order, so that no two transactions wait in a circle
        completed, failed = counts[batch_id]
        session.execute(
            update(Batch)
            .where(Batch.id == batch_id)
            .values(completed=Batch.completed + completed, failed=Batch.failed + failed)
        )
        session.execute(
            update(Batch)
            .where(
                Batch.id == batch_id,
                Batch.status == Status.IN_PROGRESS,
                Batch.completed + Batch.failed == Batch.total,
            )
            .values(status=Status.FINALIZING, finalizing_at=now_s())
        )
    return [
        row
        for lane, most in wanted.items()
        for row in _take(session, worker, lane, most, after.get(lane, -1))
    ]


def take_batch(session: Session, worker: str, batch_id: str) -> Batch | None:
    """Takes a batch, to check or to end it. None: another worker has it, or it has ended."""
    free = or_(Batch.taken_by.is_(None), Batch.taken_by == worker)
    taking = update(Batch).where(Batch.id == batch_id, free).values(taken_by=worker)
    return session.get(Batch, batch_id) if _changed(session, taking) else None


def add_rows(session: Session, batch_id: str, first: int, rows: Iterable[InputRow]) -> None:
    """Adds rows of a batch that is being checked, numbered from `first` on."""
    values = [
        {
            **each._asdict(), "batch_id": batch_id, "number": number, "lost": 0,
            "state": RowState.OPEN,
        }
        for number, each in enumerate(rows, first)
    ]  # fmt: skip
    if values:
        session.execute(insert(Row), values)


def remove_rows(session: Session, batch_id: str) -> None:
    """Forgets the rows of a batch."""
    session.execute(delete(Row).where(Row.batch_id == batch_id))


def abort_rows(session: Session, batch_id: str) -> int:
    """Ends all open rows of a batch without an answer. Returns how many."""
    return _changed(
        session,
        update(Row)
        .where(Row.batch_id == batch_id, Row.state == RowState.OPEN)
        .values(state=RowState.FAILED),
    )


def answers_of(
    session: Session, batch_id: str, state: RowState, after: int, most: int
) -> list[tuple[int, str, bytes | None]]:
    """Returns number, custom_id and answer of rows in this state, in their order, that follow the
    number `after`."""
    query = (
        select(Row.number, Row.custom_id, Row.answer)
        .where(Row.batch_id == batch_id, Row.state == state, Row.number > after)
        .order_by(Row.number)
        .limit(most)
    )
    return [(number, custom, answer) for number, custom, answer in session.execute(query)]


def _end(session: Session, worker: str, row: EndedRow) -> bool:
    values: dict[str, Any] = {"taken_by": None}
    if row.answer is not None:
        state = RowState.COMPLETED if row.ok else RowState.FAILED
        values |= {"state": state, "answer": row.answer}
    elif row.lost:
        values["lost"] = Row.lost + 1
    mine: list[ColumnElement[bool]] = [
        Row.batch_id == row.batch_id,
        Row.number == row.number,
        Row.state == RowState.OPEN,
        Row.taken_by == worker,
    ]
    return bool(_changed(session, update(Row).where(*mine).values(values)))


def _take(session: Session, worker: str, lane: Lane, most: int, after: int) -> list[TakenRow]:
    batch_id, model = lane
    free = (Row.batch_id == batch_id, Row.model == model, Row.taken_by.is_(None))
    # Others before those that were lost: of two that an engine was lost with, one may be to blame.
    query = select(*_TAKEN_ROW).where(Row.state == RowState.OPEN, *free)
    query = query.order_by(Row.lost, Row.number).with_for_update(skip_locked=True)
    rows: list[TakenRow] = []
    for part in (Row.number > after, Row.number <= after):
        found = session.execute(query.where(part).limit(most - len(rows)))
        rows += [TakenRow(*each) for each in found]
        if after < 0 or len(rows) == most:
            break
    numbers = [row.number for row in rows]
    if numbers:
        session.execute(
            update(Row)
            .where(Row.batch_id == batch_id, Row.number.in_(numbers))
            .values(taken_by=worker)
        )
    return rows


def _changed(session: Session, statement: Any) -> int:
    """Runs a statement without a look at objects of the session. Returns how many rows it has
    changed."""
    result = session.execute(statement, execution_options={"synchronize_session": False})
    return int(cast(CursorResult[Any], result).rowcount)

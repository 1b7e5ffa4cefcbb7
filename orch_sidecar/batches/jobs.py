"""Checks the input of new batches, and writes the files of those that end.

A job that is broken off is done again from its beginning, by any worker: rows of an input are
numbered by their lines. A worker that others took for dead changes nothing of a batch that another
one has: each try has output files of its own, which are deleted if they are not needed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from orch_sidecar.api.refusal import Refusal
from orch_sidecar.batches import ledger
from orch_sidecar.batches.catalog import (
    OUTPUT_PURPOSE,
    Quotas,
    delete_batch,
    delete_file,
    ended_batches,
    new_name,
    now_s,
    unknown_files,
    used_rows,
)
from orch_sidecar.batches.rows import InputCheck, InputRow, Problem, aborted
from orch_sidecar.batches.storage import Database, FileStore, Opened, lock
from orch_sidecar.batches.tables import Batch, RowState, Status, StoredFile

logger = logging.getLogger("orch.batches")

CHUNK_BYTES: Final = 262_144
_ROWS_AT_ONCE: Final = 500  # in one transaction: others wait for it for milliseconds
_MAX_PROBLEMS: Final = 100

_EXPIRED: Final = (
    "batch_expired",
    "This request could not be executed before the completion window expired.",
)
_CANCELLED: Final = ("batch_cancelled", "This request was not executed: its batch was cancelled.")


class Jobs:
    """What a worker does to whole batches."""

    def __init__(
        self, database: Database, store: FileStore, quotas: Quotas, keep_days: int, worker: str
    ) -> None:
        """`keep_days`: for which batches that have ended are kept."""
        self._database = database
        self._store = store
        self._quotas = quotas
        self._keep_s = keep_days * 86_400
        self._worker = worker

    async def check(self, batch_id: str) -> None:
        """Checks the input of a batch, and adds its rows: then they can run, or it has failed."""
        taken = await self._database.run(
            partial(ledger.take_batch, worker=self._worker, batch_id=batch_id)
        )
        if taken is not None and taken.status == Status.VALIDATING:
            await asyncio.to_thread(self._check, taken)

    async def end(self, batch_id: str) -> None:
        """Ends a batch: writes its output and error files, and forgets its rows."""
        taken = await self._database.run(partial(self._take_to_end, batch_id=batch_id))
        if taken is not None:
            await asyncio.to_thread(self._write_files, taken)

    async def delete_expired(self) -> None:
        """Deletes the files whose time is over."""
        query = select(StoredFile.owner, StoredFile.id).where(StoredFile.expires_at <= now_s())
        for owner, name in await self._database.run(lambda session: session.execute(query).all()):
            await self.delete(owner, name)

    async def sweep(self) -> None:
        """Deletes the batches that ended long ago, with their files, and stored files that no
        record names: of an upload whose sidecar was killed before it was known."""
        old = partial(ended_batches, before=now_s() - self._keep_s)
        for name in await self._database.run(old):
            await self._database.run(partial(self._delete_batch, name=name))
        await asyncio.to_thread(self._store.remove_abandoned, self._unknown)

    def _delete_batch(self, session: Session, name: str) -> None:
        for file_id in delete_batch(session, name):
            self._store.delete(file_id)

    def _unknown(self, names: Sequence[str]) -> list[str]:
        return self._database.transact(partial(unknown_files, names=names))

    async def delete(self, owner: str, name: str) -> StoredFile | Refusal:
        """Deletes a file: its content first, so that nothing is left that nobody knows."""

        def delete(session: Session) -> StoredFile | Refusal:
            file = delete_file(session, owner, name)
            if isinstance(file, StoredFile):
                self._store.delete(name)
            return file

        return await self._database.run(delete)

    def _check(self, batch: Batch) -> None:
        transact = self._database.transact
        room = self._quotas.rows - transact(partial(used_rows, owner=batch.owner))
        check = InputCheck(room, self._quotas.line_bytes)
        problems: list[Problem] = []
        rows: list[InputRow] = []
        total = 0
        self._if_mine(batch.id, partial(ledger.remove_rows, batch_id=batch.id))
        try:
            with closing(self._store.open(batch.input_file_id)) as file:
                for line in _lines(file, self._quotas.line_bytes):
                    found = check.take(line)
                    if isinstance(found, Problem):
                        problems.append(found)
                        if len(problems) >= _MAX_PROBLEMS:
                            break
                    elif found is not None:
                        rows.append(found)
                    if len(rows) >= _ROWS_AT_ONCE:
                        self._add(batch.id, total, rows)
                        total += len(rows)
                        rows = []
        except FileNotFoundError:
            problems.append(Problem("file_not_found", "the input file has been deleted"))
        self._add(batch.id, total, rows)
        total += len(rows)
        if not problems and (problem := check.end()) is not None:
            problems.append(problem)
        checked = partial(self._checked, batch_id=batch.id, total=total, models=[*check.models])
        transact(partial(checked, problems=problems))

    def _add(self, batch_id: str, first: int, rows: list[InputRow]) -> None:
        adding = partial(ledger.add_rows, batch_id=batch_id, first=first, rows=rows)
        self._if_mine(batch_id, adding)

    def _if_mine(self, batch_id: str, work: Callable[[Session], None]) -> None:
        def guarded(session: Session) -> None:
            if self._still_mine(session, batch_id) is not None:
                work(session)

        self._database.transact(guarded)

    def _checked(
        self,
        session: Session,
        batch_id: str,
        total: int,
        models: list[str],
        problems: list[Problem],
    ) -> None:
        owner = session.scalar(select(Batch.owner).where(Batch.id == batch_id)) or ""
        lock(session.connection(), owner)
        batch = self._still_mine(session, batch_id)
        if batch is None:
            return
        batch.taken_by = None
        if batch.status != Status.VALIDATING:  # it was cancelled meanwhile
            return
        used = used_rows(session, owner)
        if not problems and used + total > self._quotas.rows:
            text = (
                f"the batches of this API key have {used} rows, and this one has {total}: "
                f"{self._quotas.rows} are the most"
            )
            problems = [Problem("too_many_rows", text)]
        if problems:
            ledger.remove_rows(session, batch_id)
            batch.status, batch.failed_at = Status.FAILED, now_s()
            batch.errors = [each._asdict() for each in problems]
        else:
            batch.status, batch.in_progress_at = Status.IN_PROGRESS, now_s()
            batch.total, batch.models = total, models

    def _take_to_end(self, session: Session, batch_id: str) -> Batch | None:
        """Takes a batch, and ends the rows that have not ended: none of them is running now."""
        aborted_rows = 0
        now = now_s()
        seen = session.execute(
            select(Batch.status, Batch.expires_at).where(Batch.id == batch_id)
        ).one()
        # Rows before their batch, as where rows end: no two transactions wait in a circle.
        if seen.status == Status.CANCELLING or seen.expires_at <= now:
            aborted_rows = ledger.abort_rows(session, batch_id)
        batch = ledger.take_batch(session, self._worker, batch_id)
        if batch is None:
            session.rollback()
            return None
        if batch.in_progress_at is None:
            ledger.remove_rows(session, batch_id)  # of a check that did not end
        else:
            batch.failed += aborted_rows
        if batch.status in (Status.VALIDATING, Status.IN_PROGRESS) and batch.expires_at <= now:
            batch.status, batch.finalizing_at, batch.expired_at = Status.FINALIZING, now, now
        return batch if batch.status in (Status.FINALIZING, Status.CANCELLING) else None

    def _write_files(self, batch: Batch) -> None:
        expires_at = batch.output_lifetime_s and now_s() + batch.output_lifetime_s
        files: dict[str, StoredFile] = {}
        with ExitStack() as stack:
            for name, state in (("output", RowState.COMPLETED), ("error", RowState.FAILED)):
                file_id = f"file-{new_name()}"
                stack.callback(self._store.delete, file_id)
                size = self._write(file_id, batch, state)
                if size:
                    files[f"{name}_file_id"] = StoredFile(
                        id=file_id, owner=batch.owner, purpose=OUTPUT_PURPOSE, bytes=size,
                        filename=f"{batch.id}_{name}.jsonl", created_at=now_s(),
                        expires_at=expires_at,
                    )  # fmt: skip
            written = stack.pop_all()  # where a commit fails, it may have been made
        if not self._database.transact(partial(self._ended, batch_id=batch.id, files=files)):
            written.close()

    def _write(self, file_id: str, batch: Batch, state: RowState) -> int:
        """Writes the lines of the rows in this state. Returns the bytes."""
        why = _CANCELLED if batch.status == Status.CANCELLING else _EXPIRED
        size, last = 0, -1
        with self._store.writer(file_id) as write:
            while True:
                reading = partial(ledger.answers_of, batch_id=batch.id, state=state, after=last)
                rows = self._database.transact(partial(reading, most=_ROWS_AT_ONCE))
                if not rows:
                    break
                for last, custom_id, answer in rows:
                    row_id = f"{batch.id.removeprefix('batch_')}_{last}"
                    line = answer or aborted(row_id, custom_id, *why)
                    write(line)
                    size += len(line)
        if not size:
            self._store.delete(file_id)
        return size

    def _ended(self, session: Session, batch_id: str, files: dict[str, StoredFile]) -> bool:
        batch = self._still_mine(session, batch_id)
        if batch is None:
            return False
        for name, file in files.items():
            session.add(file)
            setattr(batch, name, file.id)
        ledger.remove_rows(session, batch_id)
        now = now_s()
        if batch.status == Status.CANCELLING:
            batch.status, batch.cancelled_at = Status.CANCELLED, now
        elif batch.expired_at is not None:
            batch.status = Status.EXPIRED
        else:
            batch.status, batch.completed_at = Status.COMPLETED, now
        batch.taken_by = None
        logger.info("batch %s: %s", batch_id, batch.status)
        return True

    def _still_mine(self, session: Session, batch_id: str) -> Batch | None:
        batch = session.get(Batch, batch_id, with_for_update=True)
        return batch if batch is not None and batch.taken_by == self._worker else None


def _lines(file: Opened, most_bytes: int) -> Iterator[bytes]:
    """Yields the lines of a file with their ends; one that is too long is cut, and is the last."""
    rest = b""
    while chunk := file.read(CHUNK_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line + b"\n"
        if len(rest) > most_bytes:
            break
    if rest:
        yield rest

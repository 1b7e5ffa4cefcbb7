"""A worker that others took for dead, and that goes on, harms no batch that another one has."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from orch_sidecar.batches import ledger
from orch_sidecar.batches.catalog import Quotas, now_s
from orch_sidecar.batches.jobs import Jobs
from orch_sidecar.batches.ledger import EndedRow, Lane
from orch_sidecar.batches.storage import Database, FileStore
from orch_sidecar.batches.tables import Batch, Row, Status

ROWS = 7
BATCH, INPUT, URL = "batch_1", "file-1", "/v1/embeddings"


class Interrupted:
    """Does `meanwhile` before that transaction, counted from 1."""

    def __init__(self, database: Database, before: int, meanwhile: Callable[[], None]) -> None:
        self._database = database
        self._left = before
        self._meanwhile = meanwhile

    def transact(self, work: Callable[[Session], Any]) -> Any:
        self._left -= 1
        if not self._left:
            self._meanwhile()
        return self._database.transact(work)

    async def run(self, work: Callable[[Session], Any]) -> Any:
        return await asyncio.to_thread(self.transact, work)


def add_batch(session: Session) -> None:
    session.add(
        Batch(
            id=BATCH, owner="", endpoint=URL, input_file_id=INPUT, completion_window="24h",
            status=Status.VALIDATING, errors=[], labels={}, total=0, completed=0, failed=0,
            created_at=1, expires_at=now_s() + 86_400,
        )
    )  # fmt: skip


def answer_all(session: Session) -> None:
    taken = ledger.exchange(session, "other", (), {Lane(BATCH, "m"): ROWS}, {})
    answered = [
        EndedRow(BATCH, row.number, f"{row.custom_id}\n".encode(), ok=True) for row in taken
    ]
    ledger.exchange(session, "other", answered, {}, {})


@pytest.mark.parametrize("before", range(2, 9))
@pytest.mark.parametrize("slow_at", ["check", "end"])
def test_slow_worker_leaves_the_batch_of_another_one_as_it_is(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow_at: str, before: int
) -> None:
    monkeypatch.setattr("orch_sidecar.batches.jobs._ROWS_AT_ONCE", 2)
    store = FileStore(str(tmp_path))
    rows = [{"custom_id": f"{each}", "url": URL, "body": {"model": "m"}} for each in range(ROWS)]
    with store.writer(INPUT) as write:
        write("\n".join(map(json.dumps, rows)).encode())
    database.transact(add_batch)
    quotas = Quotas(10**6, 10**9, 1000, 10**6)
    other = Jobs(database, store, quotas, 30, "other")
    done: list[str] = []

    def take_over() -> None:
        database.transact(partial(ledger.leave, worker="slow"))
        for job in ("check", "answer", "end"):
            if job == "answer":
                database.transact(answer_all)
            else:
                asyncio.run(getattr(other, job)(BATCH))
            done.append(job)

    if slow_at == "end":
        asyncio.run(other.check(BATCH))
        database.transact(answer_all)
    interrupted = cast(Database, Interrupted(database, before, take_over))
    slow = Jobs(interrupted, store, quotas, 30, "slow")
    asyncio.run(getattr(slow, slow_at)(BATCH))
    assert done == ["check", "answer", "end"]
    batch = database.transact(lambda session: session.get_one(Batch, BATCH))
    assert (batch.status, batch.total, batch.completed) == (Status.COMPLETED, ROWS, ROWS)
    assert not database.transact(lambda session: session.scalars(select(Row)).all())
    output = str(batch.output_file_id)
    assert {each.name for each in (tmp_path / "files").iterdir()} == {INPUT, output}
    assert store.read(output, 0, 1000).split() == [b"%d" % each for each in range(ROWS)]

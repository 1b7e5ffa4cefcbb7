"""Whose batch is checked or ended next."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from orch_sidecar.batches.ledger import OpenBatch
from orch_sidecar.batches.rows import MAX_MODELS
from orch_sidecar.batches.runner import MIN_WAITING_ROWS, Runner
from orch_sidecar.batches.tables import Status
from tests.patience import HANG_S


class Jobs:
    """Keeps which batches were checked. `added` appear while the second one is."""

    def __init__(self) -> None:
        self.checked: list[str] = []
        self.runner: Runner | None = None
        self.added: list[OpenBatch] = []
        self.done = asyncio.Event()

    async def check(self, batch_id: str) -> None:
        self.checked.append(batch_id)
        assert self.runner is not None
        left = {key: each for key, each in self.runner.batches.items() if key != batch_id}
        if len(self.checked) == 2:
            left |= {each.id: each for each in self.added}
        self.runner.batches = left
        if not left:
            self.done.set()

    async def delete_expired(self) -> None:
        await asyncio.sleep(0)


def opened(name: str) -> OpenBatch:
    """A batch to check; its owner is the letter that its name begins with."""
    return OpenBatch(name, name[0], Status.VALIDATING, "file", [], 0, 0, 0, 2**40, None, None)


async def test_owners_take_turns_and_the_oldest_of_their_batches() -> None:
    jobs = Jobs()
    runner = Runner(*cast(Any, (None, None, lambda _: jobs, None, None)))
    jobs.runner = runner
    runner.batches = {name: opened(name) for name in ("a1", "a2", "a3", "a4", "b1")}
    jobs.added = [opened("c1"), opened("b2")]
    working = asyncio.create_task(runner.run_jobs())
    async with asyncio.timeout(HANG_S):
        await jobs.done.wait()
    working.cancel()
    assert jobs.checked == ["a1", "b1", "c1", "a2", "b2", "a3", "a4"]


def test_made_up_models_of_an_owner_take_no_more_rows_than_one_file_may() -> None:
    """And those of another owner get theirs."""
    runner = Runner(*cast(Any, (None, None, lambda _: Jobs(), None, None)))
    for number in range(20):
        models = [f"m-{number}-{each}" for each in range(MAX_MODELS)]
        found = opened(f"a{number}")._replace(
            status=Status.IN_PROGRESS, models=models, total=len(models)
        )
        runner.batches[found.id] = found
    other = opened("b")._replace(status=Status.IN_PROGRESS, models=["tiny"], total=100)
    runner.batches[other.id] = other
    wanted = runner._wanted()
    assert sum(each.batch_id == other.id for each in wanted) == 1
    assert sum(wanted.values()) == (MAX_MODELS + 1) * MIN_WAITING_ROWS


async def test_sidecar_stops_although_the_database_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("orch_sidecar.batches.runner.LOOK_EVERY_S", 0.001)

    class Silent:
        async def run(self, _: object) -> None:
            await asyncio.Event().wait()

    runner = Runner(*cast(Any, (Silent(), None, lambda _: Jobs(), None, None)))
    async with asyncio.timeout(HANG_S):
        await runner.stop()
    assert "cannot give the rows of batches back" in caplog.text


async def test_expired_files_are_looked_for_once_the_batches_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A database that is away is logged once a look, not by each task and at each of its turns."""
    monkeypatch.setattr("orch_sidecar.batches.runner.LOOK_EVERY_S", 0.01)

    looked_for = asyncio.Event()

    class Counting(Jobs):
        deleted = 0

        async def delete_expired(self) -> None:
            self.deleted += 1
            looked_for.set()

        async def sweep(self) -> None:
            self.done.set()

    jobs = Counting()
    runner = Runner(*cast(Any, (None, None, lambda _: jobs, None, None)))
    working = asyncio.create_task(runner.run_jobs())
    async with asyncio.timeout(HANG_S):
        await jobs.done.wait()
        await asyncio.sleep(0.1)
        assert not jobs.deleted
        runner.batches = {}
        await looked_for.wait()
    working.cancel()

"""Runs the rows of all batches: as many as admission takes, and some that wait for it.

How many run at once is not set: of each model as many rows wait for slots as have some, so that
there is one for each slot that becomes free before the next look, and hardly more. Each look is one
transaction, which ends rows and takes others. Where a row was refused, those of its model in its
batch pause, and go on behind it: what it waits for, some of them may not need. Rows of other models
go on: their engines are others. What admission refuses, or an engine was lost with, runs again.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from math import inf
from typing import Final, NamedTuple

import aiohttp
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from orch_sidecar.batches import ledger
from orch_sidecar.batches.connections import Answer, RowConnections
from orch_sidecar.batches.jobs import Jobs
from orch_sidecar.batches.ledger import EndedRow, Lane, OpenBatch, TakenRow
from orch_sidecar.batches.progress import Progress
from orch_sidecar.batches.rows import MAX_MODELS, aborted, answered, body_of
from orch_sidecar.batches.storage import Database, FileStore
from orch_sidecar.batches.tables import OPEN, Status

logger = logging.getLogger("orch.batches")

LOOK_EVERY_S: Final = 1.0  # for new batches; a worker's beat
DEAD_AFTER_LOOKS: Final = 5  # at which a worker's beat was the same
FILL_EVERY_S: Final = 0.05  # where no row has ended: some may have got their slots
SWEEP_EVERY_S: Final = 3600.0  # for old batches, and files that nobody knows
MIN_WAITING_ROWS: Final = 8  # so that an engine that nobody uses has work within a moment
_RETRY_S: Final = 1.0  # after a fault of database or store
_PAUSE_S: Final = 1.0  # of a lane, after a refusal that says nothing, or where no row was free
_MAX_PAUSE_S: Final = 2.0  # rows behind those that were refused may find an engine
_MAX_WAIT_S: Final = 10.0  # of a row for slots: another one may need fewer, or no adapter
_RETRIED: Final = frozenset({429, 503})

# What can go wrong with a database or with files, and is over when it is repaired.
FAULTS: Final = (SQLAlchemyError, OSError)


class _Sent(NamedTuple):
    """A row that was sent, `at` so many seconds."""

    request_id: str
    owner: str
    lane: Lane
    at: float


class Runner:
    """The worker of this sidecar."""

    def __init__(
        self,
        database: Database,
        store: FileStore,
        jobs: Callable[[str], Jobs],
        connections: RowConnections,
        is_admitted: Callable[[str, str], bool],
    ) -> None:
        """`jobs`: of a worker. `is_admitted`: whether the request with this
        id, of this owner, has slots."""
        self.id = os.urandom(16).hex()
        self._database = database
        self._store = store
        self.jobs = jobs(self.id)
        self._connections = connections
        self._is_admitted = is_admitted
        self.batches: dict[str, OpenBatch] = {}
        self.progress = Progress()
        self._rows: dict[tuple[str, int], asyncio.Task[EndedRow]] = {}
        self._sent: dict[tuple[str, int], _Sent] = {}
        self._ended: list[EndedRow] = []
        self._paused: dict[Lane, float] = {}  # until when
        self._refused: dict[Lane, int] = {}  # the number of the row that was refused last
        self._wake = asyncio.Event()
        self._look_now = asyncio.Event()
        self._unsure = False
        self._peers = Peers(self.id)

    def look(self) -> None:
        """Has the runner look for new and cancelled batches now."""
        self._look_now.set()

    async def keep_alive(self) -> None:
        """Shows that this worker is alive, and updates the list of batches, until cancelled."""
        while True:
            self._look_now.clear()
            with self._faults("look at the batches"):
                await self._look()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY_S):
                    await self._look_now.wait()

    async def run_jobs(self) -> None:
        """Checks and ends batches one by one, until cancelled. Owners take turns: checking a large
        file takes seconds, and a key may have many of them."""
        swept_at = -inf
        seen, tried = self.batches, set[str]()
        turns: dict[str, int] = {}  # of owners: which job was the last of each
        for turn in itertools.count():
            if self.batches is not seen:
                seen, tried = self.batches, set()
                with self._faults("delete expired files"):
                    await self.jobs.delete_expired()
            due = [
                (each, job)
                for each in seen.values()
                if each.id not in tried and (job := self._job_of(each)) is not None
            ]
            if due:
                batch, job = min(due, key=lambda each: turns.get(each[0].owner, -1))
                turns[batch.owner] = turn
                tried.add(batch.id)
                with self._faults(f"check or end the batch {batch.id}"):
                    await job(batch.id)
                    self.look()
            if time.monotonic() - swept_at >= SWEEP_EVERY_S:
                swept_at = time.monotonic()
                with self._faults("delete what is left of batches"):
                    await self.jobs.sweep()
            if not due:
                await asyncio.sleep(LOOK_EVERY_S / 4)

    async def run_rows(self) -> None:
        """Runs rows, until cancelled."""
        while True:
            self._wake.clear()
            with self._faults("store the answers of batches"):
                await self._fill()
            if self._unsure:
                await asyncio.sleep(_RETRY_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FILL_EVERY_S if self._rows else LOOK_EVERY_S):
                    await self._wake.wait()

    async def stop(self) -> None:
        """Ends the rows that run, keeps the answers that there are, and gives the rest back."""
        for task in self._rows.values():
            task.cancel()
        await asyncio.gather(*self._rows.values(), return_exceptions=True)
        with self._faults("give the rows of batches back"):
            async with asyncio.timeout(DEAD_AFTER_LOOKS * LOOK_EVERY_S):  # then others take them
                await self._database.run(partial(self._leave, ended=self._ended))

    @contextlib.contextmanager
    def _faults(self, what: str) -> Iterator[None]:
        """Logs a fault: none of batches may end the sidecar."""
        try:
            yield
        except Exception as error:
            unknown = None if isinstance(error, FAULTS) else error
            text = str(error) or type(error).__name__
            logger.error("cannot %s, trying again: %s", what, text, exc_info=unknown)

    def _leave(self, session: Session, ended: list[EndedRow]) -> None:
        ledger.exchange(session, self.id, ended, {}, {})
        ledger.leave(session, self.id)

    # Batches

    async def _look(self) -> None:
        beats, found = await self._database.run(self._beat_and_list)
        for worker in self._peers.dead(beats, time.monotonic()):
            logger.warning("a sidecar has stopped without a word: its rows run again")
            await self._database.run(partial(ledger.leave, worker=worker))
        self.batches = {each.id: each for each in found}
        self.progress.look(self.batches, time.monotonic())
        for lane in (*self._paused, *self._refused):
            if lane.batch_id not in self.batches:
                self._paused.pop(lane, None)
                self._refused.pop(lane, None)
        waits_since = time.monotonic() - _MAX_WAIT_S
        for (batch_id, number), task in self._rows.items():
            batch = self.batches.get(batch_id)
            if batch is None or batch.status != Status.IN_PROGRESS:
                task.cancel()
            elif (sent := self._sent[batch_id, number]).at < waits_since and not self._has_slots(
                sent
            ):
                task.cancel()
                self._refused[sent.lane] = number
        self._wake.set()

    def _beat_and_list(self, session: Session) -> tuple[dict[str, int], list[OpenBatch]]:
        return ledger.beat(session, self.id), ledger.open_batches(session, OPEN)

    def _job_of(self, batch: OpenBatch) -> Callable[[str], Awaitable[None]] | None:
        """Returns what is to be done to a batch. None: nothing, or another worker does it."""
        if batch.taken_by not in (None, self.id):
            return None
        if batch.status in (Status.FINALIZING, Status.CANCELLING) or _is_expired(batch):
            return self.jobs.end
        return self.jobs.check if batch.status == Status.VALIDATING else None

    # Rows

    async def _fill(self) -> None:
        """Ends the rows that have ended, and takes as many others as are wanted."""
        wanted, ended = self._wanted(), self._ended
        if not wanted and not ended:
            return
        self._ended = []
        try:
            taken = await self._database.run(
                partial(self._exchange, ended=ended, wanted=wanted, held=set(self._rows))
            )
        except BaseException:
            self._ended, self._unsure = ended + self._ended, True
            raise
        self._unsure = False
        self.progress.count(ended)
        came = Counter(row.lane for row in taken)
        for lane, most in wanted.items():
            if came[lane] < most:  # other sidecars may have the rest
                self._pause(lane, _PAUSE_S)
        for row in taken:
            if (row.batch_id, row.number) in self._rows:  # others took this worker for dead
                continue
            if (batch := self.batches.get(row.batch_id)) is not None:
                self._start(row, batch)
            else:  # it has ended meanwhile
                self._ended.append(EndedRow(row.batch_id, row.number, None))

    def _exchange(
        self,
        session: Session,
        ended: list[EndedRow],
        wanted: dict[Lane, int],
        held: set[tuple[str, int]],
    ) -> list[TakenRow]:
        if self._unsure:
            wanted = {}
        taken = ledger.exchange(session, self.id, ended, wanted, self._refused)
        if self._unsure:
            ledger.give_back_others(session, self.id, held)
        return taken

    def _wanted(self) -> dict[Lane, int]:
        """Returns how many rows to take, by lane: of each model owners take turns, and the oldest
        of their batches. Of each owner so many models as one file may have: the names in files are
        free, and each would have rows in memory."""
        now = time.monotonic()
        here = Counter(batch_id for batch_id, _ in self._rows)
        first = defaultdict[str, dict[str, Lane]](dict)  # by model and owner
        models = Counter[str]()  # of owners
        for batch in self.batches.values():
            runs = batch.status == Status.IN_PROGRESS and not _is_expired(batch)
            left = batch.total - batch.completed - batch.failed - here[batch.id]
            if not runs or left <= 0 or models[batch.owner] >= MAX_MODELS:
                continue
            for lane in (Lane(batch.id, each) for each in batch.models):
                if self._paused.get(lane, 0.0) <= now and batch.owner not in first[lane.model]:
                    first[lane.model][batch.owner] = lane
                    models[batch.owner] += 1
        sent_of = defaultdict[str, list[_Sent]](list)
        for each in self._sent.values():
            sent_of[each.lane.model].append(each)
        wanted = Counter[Lane]()
        for model, lanes in first.items():
            sent = sent_of[model]
            has_slots = sum(map(self._has_slots, sent))
            mine = Counter(each.owner for each in sent)
            for _ in range(max(MIN_WAITING_ROWS, has_slots) - (len(sent) - has_slots)):
                owner = min(lanes, key=lambda each: mine[each])
                mine[owner] += 1
                wanted[lanes[owner]] += 1
        return wanted

    def _has_slots(self, sent: _Sent) -> bool:
        return self._is_admitted(sent.request_id, sent.owner)

    def _start(self, row: TakenRow, batch: OpenBatch) -> None:
        key, request_id = (row.batch_id, row.number), os.urandom(16).hex()
        self._sent[key] = _Sent(request_id, batch.owner, row.lane, time.monotonic())
        running = self._outcome(row, batch, request_id)
        task = self._rows[key] = asyncio.create_task(running, name="row of a batch")
        task.add_done_callback(partial(self._row_ended, row))

    def _row_ended(self, row: TakenRow, task: asyncio.Task[EndedRow]) -> None:
        """Keeps the outcome of a row; without one the row is given back."""
        key = row.batch_id, row.number
        ended = EndedRow(*key, None)
        if not task.cancelled():
            error = task.exception()
            if error is None:
                ended = task.result()
            else:
                unknown = None if isinstance(error, FAULTS) else error
                text = "cannot run a row of the batch %s, trying again: %s"
                logger.error(text, row.batch_id, error, exc_info=unknown)
                self._refuse(row, _PAUSE_S)
        self._ended.append(ended)
        del self._rows[key], self._sent[key]
        self._wake.set()

    async def _outcome(self, row: TakenRow, batch: OpenBatch, request_id: str) -> EndedRow:
        end = row.begin + row.length
        line = await asyncio.to_thread(self._store.read, batch.input_file_id, row.begin, end)
        try:
            answer = await self._connections.send(
                request_id, batch.owner, batch.id, row.custom_id, row.url, body_of(line)
            )
        except aiohttp.ClientError as error:
            return self._lost(row, request_id, None, str(error))
        if answer.status in _RETRIED:
            self._refuse(row, answer.retry_after_s or _PAUSE_S)
            return EndedRow(row.batch_id, row.number, None)
        if answer.status >= 500:
            return self._lost(row, request_id, answer, "")
        written = answered(request_id, row.custom_id, answer.status, answer.body)
        return EndedRow(row.batch_id, row.number, written, answer.status < 400)

    def _lost(self, row: TakenRow, request_id: str, answer: Answer | None, error: str) -> EndedRow:
        """Has a row run again, unless it was lost too often."""
        if row.lost + 1 < ledger.MAX_LOSSES:
            self._refuse(row, 0.1 * 2**row.lost)
            return EndedRow(row.batch_id, row.number, None, lost=True)
        if answer is None:
            written = aborted(request_id, row.custom_id, "engine_failed", error)
        else:
            written = answered(request_id, row.custom_id, answer.status, answer.body)
        return EndedRow(row.batch_id, row.number, written)

    def _refuse(self, row: TakenRow, seconds: float) -> None:
        self._refused[row.lane] = row.number
        self._pause(row.lane, seconds)

    def _pause(self, lane: Lane, seconds: float) -> None:
        until = time.monotonic() + min(seconds, _MAX_PAUSE_S)
        self._paused[lane] = max(until, self._paused.get(lane, 0.0))


class Peers:
    """Tells which workers have died: those whose beat stays the same."""

    def __init__(self, own: str) -> None:
        self._own = own
        self._seen: dict[str, tuple[int, int]] = {}  # the last beat, and at which look it was new
        self._looks = 0
        self._looked_at = 0.0

    def dead(self, beats: Mapping[str, int], now: float) -> list[str]:
        """Takes the beats of all workers at `now`, in seconds. Returns the dead ones.

        Counts looks, not seconds: while the database cannot be reached, nobody dies.
        """
        if now - self._looked_at >= LOOK_EVERY_S:
            self._looks, self._looked_at = self._looks + 1, now
        before, self._seen = self._seen, {}
        for worker, beat in beats.items():
            last, look = before.get(worker, (-1, 0))
            self._seen[worker] = (beat, self._looks if beat != last else look)
        return [
            worker
            for worker, (_, look) in self._seen.items()
            if self._looks - look >= DEAD_AFTER_LOOKS and worker != self._own
        ]


def _is_expired(batch: OpenBatch) -> bool:
    return batch.expires_at <= time.time()

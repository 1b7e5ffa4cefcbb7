"""The request log: a JSON line for each request that has ended, if an operator wants one.

Nothing of it is on the path of a request: records are taken where metrics count them, many at once,
and a thread writes their lines. The mean batch of a request is known from the engine's reports,
which come once a second: a line is written one to three seconds after the end of its request.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from orch_sidecar.api.refusal import well_formed
from orch_sidecar.observability.metrics import Metrics
from orch_sidecar.observability.recent import Ended, MeanBatches
from orch_sidecar.observability.record import Outcome, RequestRecord
from orch_sidecar.pools.registry import PoolRegistry

logger = logging.getLogger("orch.sidecar")

# A client may send any text as the name of a model.
_MAX_MODEL_CHARACTERS: Final = 128
WRITE_EVERY_S: Final = 0.5
_MAX_WRITE_S: Final = 5.0
# Lines that wait to be written: some seconds of the most that a sidecar serves.
MAX_LINES: Final = 32_768

STDOUT: Final = "-"

# Returns a line, without its end; called in the thread.
Line = Callable[[], bytes]


def line_of(record: RequestRecord, ended: int, batch_mean: float | None) -> bytes:
    """Returns the line of a request that `ended` at that time of the monotonic clock, in
    nanoseconds. `batch_mean`: of the engine's decode steps while it ran."""
    labels = record.labels or {}
    streams = record.stream and record.status < 400 and record.endpoint.first_byte_is_token
    arrived = datetime.fromtimestamp(record.arrived_ns / 1e9, UTC)
    return msgspec.json.encode(
        {
            "time": arrived.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "id": record.id,
            "request_id": record.request_id,
            "correlation_id": record.correlation_id,
            "key": record.key,
            "method": record.method[:20],
            "route": record.endpoint.path,
            "model": well_formed(record.model[:_MAX_MODEL_CHARACTERS]) or None,
            "pool": record.pool,
            "measurement_type": labels.get("measurement_type"),
            "class": record.service_class,
            "outcome": record.outcome,
            "status": record.status or None,
            "stream": record.stream,
            "sequences": record.cost,
            "position": record.queue_position if record.queued is not None else None,
            "wait_ms": record.ms_to(record.admitted),
            "ttft_ms": record.ms_to(record.first_byte) if streams else None,
            "total_ms": record.ms_to(ended),
            "prompt_tokens": record.input_tokens,
            "tokens": record.tokens,
            "tokens_estimated": record.tokens != record.output_tokens,
            "batch_mean": batch_mean if record.outcome is Outcome.OK else None,
            "coalesced": record.coalesced,
            "scenario": record.scenario,
            "trace_id": record.trace_text,
        }
    )


class RequestLog:
    """Logs the requests that these metrics count."""

    def __init__(self, writer: LineWriter, pools: PoolRegistry, metrics: Metrics) -> None:
        self._writer = writer
        self._pools = pools
        self._metrics = metrics
        self._batches = MeanBatches()
        self._ended: list[Ended] = []
        self._lost = 0  # records that exceeded the queue, or met a fault
        metrics.log_to(self._take, lambda: self._lost + writer.dropped)

    async def run(self) -> None:
        """Writes lines at intervals, until cancelled."""
        while True:
            await asyncio.sleep(WRITE_EVERY_S)
            self._look_safely(all_lines=False)

    async def close(self) -> None:
        """Writes what there is."""
        self._look_safely(all_lines=True)
        await asyncio.to_thread(self._writer.close, _MAX_WRITE_S)

    def _look_safely(self, *, all_lines: bool) -> None:
        try:
            self._look(all_lines=all_lines)
        # A fault of the log must not end the sidecar, nor be met again by the next lines.
        except Exception:
            logger.exception("%d lines of the request log were dropped", len(self._ended))
            self._lost += len(self._ended)
            self._ended = []

    def _take(self, ended: list[Ended]) -> None:
        """Takes records that have ended."""
        room = max(0, MAX_LINES - len(self._ended))
        self._ended += ended[:room]
        self._lost += max(0, len(ended) - room)

    def _look(self, *, all_lines: bool) -> None:
        """Writes the lines of the requests whose mean batch is no longer pending, or of all."""
        self._batches.read(self._pools.all)
        self._metrics.catch_up()
        lines: list[Line] = []
        pending: list[Ended] = []
        now = time.monotonic_ns()
        for each in self._ended:
            if not all_lines and self._batches.is_pending(each, now):
                pending.append(each)
            else:
                lines.append(partial(line_of, *each, self._batches.of(each)))
        if lines:
            self._writer.write(lines)
        self._ended = pending


class LineWriter:
    """Writes lines in the order in which it gets them, in a thread of its own: to a file, or to
    standard output. `dropped`: how many were not written.

    The file may be moved away at any time, as logrotate does: the next lines go to a new one. What
    cannot be written, or not fast enough, is dropped and counted; it holds up nothing.
    """

    def __init__(self, path: str, most: int = MAX_LINES) -> None:
        """Opens the file. Raises OSError, with the remedy, if that is not possible."""
        self._path = None if path == STDOUT else Path(path)
        self._most = most
        try:
            self._fd = self._open()
        except OSError as error:
            text = (
                f"request_log (--request-log, ORCH_REQUEST_LOG): {path!r}: {error.strerror}: give "
                f"a file that can be written, or {STDOUT} for standard output"
            )
            raise OSError(error.errno, text) from error
        self._batches: deque[Sequence[Line]] = deque()
        self._waiting = 0  # lines; under the lock, as is `dropped`
        self.dropped = 0
        self._lock = threading.Lock()
        self._wakes = threading.Event()
        self._closing = False
        self._failed = False
        self._torn = False  # the file ends in a part of a line
        self._writing = threading.Thread(target=self._run, name="request log", daemon=True)
        self._writing.start()

    def write(self, lines: Sequence[Line]) -> None:
        """Queues lines to be written; drops those that exceed the queue."""
        with self._lock:
            taken = lines[: max(0, self._most - self._waiting)]
            self._waiting += len(taken)
            self.dropped += len(lines) - len(taken)
        if taken:
            self._batches.append(taken)
            self._wakes.set()

    def close(self, within_s: float) -> None:
        """Writes what it has, within this time, and ends. Blocks."""
        self._closing = True
        self._wakes.set()
        self._writing.join(within_s)

    def _run(self) -> None:
        while True:
            self._wakes.wait()
            self._wakes.clear()
            while self._batches:
                self._write(self._batches.popleft())
            if self._closing and not self._batches:
                if self._path is not None:
                    os.close(self._fd)
                return

    def _write(self, batch: Sequence[Line]) -> None:
        written = 0
        try:
            data = b"".join(map(_made, batch))
            if self._was_moved():
                moved, self._fd = self._fd, self._open()
                os.close(moved)
                self._torn = False
            if self._torn:
                self._append(b"\n")
            end = 0
            while end < len(data):
                begin, end = end, end + self._append(memoryview(data)[end:])
                written += data.count(b"\n", begin, end)
            self._failed = False
        except OSError as error:
            if not self._failed:
                logger.warning("the request log cannot be written: %s", error)
            self._failed = True
        with self._lock:
            self._waiting -= len(batch)
            self.dropped += len(batch) - written

    def _append(self, data: bytes | memoryview) -> int:
        """Writes as much as the file takes, which it returns."""
        length = os.write(self._fd, data)
        self._torn = data[length - 1] != ord("\n")
        return length

    def _open(self) -> int:
        if self._path is None:
            return sys.stdout.fileno()
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def _was_moved(self) -> bool:
        """Whether the path names no longer the file that is open."""
        if self._path is None:
            return False
        with suppress(FileNotFoundError):
            return not os.path.samestat(self._path.stat(), os.fstat(self._fd))
        return True


def _made(line: Line) -> bytes:
    """Returns a line with its end; empty if it cannot be made, which costs no other line."""
    try:
        return line() + b"\n"
    except Exception as error:  # noqa: BLE001 (it must not end the thread)
        logger.warning("a line of the request log could not be made: %r", error)
        return b""

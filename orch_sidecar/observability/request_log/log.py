"""Takes the records of ended requests, and gives their lines to the writer.

The mean batch of a request is known from the engine's reports, which come once a second: a line is
written one to three seconds after the end of its request.
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from typing import Final

from orch_sidecar.engine_state.step_history import StepHistory
from orch_sidecar.observability.metrics import Metrics
from orch_sidecar.observability.recent import Ended
from orch_sidecar.observability.request_log.lines import line_of
from orch_sidecar.observability.request_log.writer import MAX_LINES, Line, LineWriter
from orch_sidecar.pools.registry import PoolRegistry

logger = logging.getLogger("orch.sidecar")

WRITE_EVERY_S: Final = 0.5
# Later an engine is away, and the mean batch stays unknown.
_PENDING_S: Final = 3.0
_MAX_WRITE_S: Final = 5.0


class RequestLog:
    """Logs the requests that these metrics count."""

    def __init__(self, writer: LineWriter, pools: PoolRegistry, metrics: Metrics) -> None:
        self._writer = writer
        self._pools = pools
        self._metrics = metrics
        self._histories: dict[str, StepHistory] = {}
        self._ended: list[Ended] = []
        self._lost = 0  # records that exceeded the queue, or met a fault
        metrics.log_to(self._take, lambda: self._lost + writer.dropped)

    async def run(self) -> None:
        """Writes lines at intervals, until cancelled."""
        while True:
            await asyncio.sleep(WRITE_EVERY_S)
            self._look_safely(_PENDING_S)

    async def close(self) -> None:
        """Writes what there is."""
        self._look_safely(0.0)
        await asyncio.to_thread(self._writer.close, _MAX_WRITE_S)

    def _look_safely(self, pending_s: float) -> None:
        try:
            self._look(pending_s)
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

    def _look(self, pending_s: float) -> None:
        """Writes the lines of requests whose mean batch is known, or that ended so long ago."""
        before = self._histories  # those of addresses that are gone are forgotten
        self._histories = {p.name: before.get(p.name) or StepHistory() for p in self._pools}
        for pool in self._pools:
            history = self._histories[pool.name]
            document, beat_at = pool.watcher.document, pool.watcher.beat_at
            if document is not None and beat_at is not None and beat_at > history.known_until:
                history.add(document, beat_at)
        self._metrics.catch_up()
        lines: list[Line] = []
        pending: list[Ended] = []
        now = time.monotonic_ns()
        for each in self._ended:
            record, at = each
            history_of = None if record.admitted is None else self._histories.get(record.pool or "")
            mean = None
            if history_of is not None and record.admitted is not None:
                if history_of.known_until * 1e9 < at and now - at < pending_s * 1e9:
                    pending.append(each)
                    continue
                mean = history_of.mean_batch(record.admitted / 1e9, at / 1e9)
            lines.append(partial(line_of, record, at, mean))
        if lines:
            self._writer.write(lines)
        self._ended = pending

"""Takes the records of ended requests, and gives their lines to the writer.

The mean batch of a request is known from the engine's reports, which come once a second: a line is
written one to three seconds after the end of its request.
"""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import UTC, datetime
from functools import partial
from typing import Final

import msgspec

from orch_sidecar.api.json_body import well_formed
from orch_sidecar.observability.mean_batches import MeanBatches
from orch_sidecar.observability.metrics import Metrics
from orch_sidecar.observability.recent import Ended
from orch_sidecar.observability.record import Outcome, RequestRecord
from orch_sidecar.observability.request_log.writer import MAX_LINES, Line, LineWriter
from orch_sidecar.pools.registry import PoolRegistry

logger = logging.getLogger("orch.sidecar")

# A client may send any text as the name of a model.
_MAX_MODEL_CHARACTERS: Final = 128
WRITE_EVERY_S: Final = 0.5
_MAX_WRITE_S: Final = 5.0


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

"""Keeps the rows of the requests that ended last, and finds those that are new or have changed.

Times are nanoseconds of the monotonic clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from orch_sidecar.control.live.words import end_of
from orch_sidecar.observability.mean_batches import MeanBatches
from orch_sidecar.observability.recent import Ended, RecentRequests
from orch_sidecar.observability.record import RequestRecord

MAX_REQUESTS: Final = 100

Row = dict[str, Any]


class EndedRequests:
    """The rows of the last requests."""

    def __init__(self, batches: MeanBatches, serves: Callable[[str, str], bool]) -> None:
        """`serves`: whether a pool serves a model; a client may name any other text as a model."""
        self._batches = batches
        self._serves = serves
        self._rows: deque[Row] = deque(maxlen=MAX_REQUESTS)
        self._seen = 0
        self._pending: list[tuple[Row, Ended]] = []

    @property
    def rows(self) -> list[Row]:
        """The last rows, the newest at the end."""
        return list(self._rows)

    def update(self, recent: RecentRequests, now: int) -> list[Row]:
        """Takes the records that ended since the last call. Returns the rows that are new, and
        those whose mean batch is known now."""
        new = recent.total - self._seen
        self._seen = recent.total
        ended = recent.all()[-new:] if new else []
        changed = self._complete(now)
        first = recent.total - len(ended) + 1
        for number, each in enumerate(ended, first):
            if not each[0].endpoint.admitted:
                continue
            row = self._row(number, *each)
            self._rows.append(row)
            changed.append(row)
            if self._batches.is_pending(each, now):
                self._pending.append((row, each))
            else:
                row["batch"] = self._batches.of(each)
        return changed[-MAX_REQUESTS:]

    def _complete(self, now: int) -> list[Row]:
        """Sets the mean batches that have become known."""
        pending = self._pending[-MAX_REQUESTS:]
        self._pending = [each for each in pending if self._batches.is_pending(each[1], now)]
        changed = []
        for row, ended in pending:
            if (batch := self._batches.of(ended)) is not None:
                row["batch"] = batch
                changed.append(row)
        return changed

    def _row(self, number: int, record: RequestRecord, at: int) -> Row:
        service_class = record.service_class
        known = record.pool is not None and self._serves(record.pool, record.model)
        return {
            "number": number,
            "id": record.id,
            "pool": record.pool,
            "class": None if service_class is None else service_class.value,
            "key": record.key,
            "model": record.model if known else None,
            "route": record.endpoint.path,
            "ended_at": record.at_ns(at) // 10**6,
            "outcome": record.outcome.value,
            "status": record.status,
            "text": end_of(record.outcome),
            "wait_ms": record.ms_to(record.admitted),
            "first_byte_ms": record.ms_to(record.first_byte),
            "total_ms": record.ms_to(at),
            "prompt_tokens": record.input_tokens,
            "tokens": record.tokens,
            "estimated": record.output_tokens is None,
            "batch": None,
            "coalesced": record.coalesced,
            "trace_id": record.trace_text,
        }

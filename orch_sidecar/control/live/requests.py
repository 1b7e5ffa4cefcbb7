"""The rows of the requests that ended last, and those that are new or have changed since a look.

Pure: times are nanoseconds of the monotonic clock in records, seconds of the same clock elsewhere.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

from orch_sidecar.control.live.words import end_of
from orch_sidecar.engine_state.step_history import StepHistory
from orch_sidecar.observability.recent import RecentRequests
from orch_sidecar.observability.record import RequestRecord

MAX_REQUESTS: Final = 100
# The engine reports its steps once a second: then the mean batch of a row is known, or never.
_PENDING_S: Final = 3.0

Row = dict[str, Any]


class RequestTable:
    """The rows of the last requests."""

    def __init__(
        self, histories: Mapping[str, StepHistory], serves: Callable[[str, str], bool]
    ) -> None:
        """`histories`: by name of the pool. `serves`: whether a pool serves a model; a client may
        name any other text as a model."""
        self._histories = histories
        self._serves = serves
        self._rows: deque[Row] = deque(maxlen=MAX_REQUESTS)
        self._seen = 0
        self._pending: list[tuple[Row, RequestRecord, int]] = []

    @property
    def rows(self) -> list[Row]:
        """The last rows, the newest at the end."""
        return list(self._rows)

    def update(self, recent: RecentRequests, now_s: float) -> list[Row]:
        """Takes the records that ended since the last call. Returns the rows that are new, and
        those whose mean batch is known now."""
        new = recent.total - self._seen
        self._seen = recent.total
        ended = recent.all()[-new:] if new else []
        changed = self._complete(now_s)
        first = recent.total - len(ended) + 1
        for number, (record, at) in enumerate(ended, first):
            if not record.identity.endpoint.admitted:
                continue
            row = self._row(number, record, at)
            self._rows.append(row)
            changed.append(row)
            if record.admitted is not None and record.pool in self._histories:
                self._pending.append((row, record, at))
        return changed[-MAX_REQUESTS:]

    def _complete(self, now_s: float) -> list[Row]:
        """Sets the mean batches that have become known."""
        changed, left = [], []
        for pending in self._pending[-MAX_REQUESTS:]:
            row, record, at = pending
            history = self._histories.get(record.pool or "")
            assert record.admitted is not None
            if history is None or now_s - at / 1e9 > _PENDING_S:
                continue
            if history.known_until * 1e9 < at:
                left.append(pending)
                continue
            # The first byte of an answer that is not streamed comes when it is complete.
            start = record.first_byte if record.stream else None
            row["batch"] = history.mean_batch((start or record.admitted) / 1e9, at / 1e9)
            changed.append(row)
        self._pending = left
        return changed

    def _row(self, number: int, record: RequestRecord, at: int) -> Row:
        identity, service_class = record.identity, record.service_class
        known = record.pool is not None and self._serves(record.pool, record.model)
        estimated = record.output_tokens is None
        return {
            "number": number,
            "id": identity.id,
            "pool": record.pool,
            "class": None if service_class is None else service_class.value,
            "key": record.key,
            "model": record.model if known else None,
            "route": identity.endpoint.path,
            "ended_at": record.at_ns(at) // 10**6,
            "outcome": record.outcome.value,
            "status": record.status,
            "text": end_of(record.outcome),
            "wait_ms": _ms(record, record.admitted),
            "first_byte_ms": _ms(record, record.first_byte),
            "total_ms": _ms(record, at),
            "prompt_tokens": record.input_tokens,
            "tokens": record.generated_tokens if estimated else record.output_tokens,
            "estimated": estimated,
            "batch": None,
            "coalesced": record.coalesced,
            "trace_id": f"{record.trace_id:032x}" if record.trace_id else None,
        }


def _ms(record: RequestRecord, at: int | None) -> float | None:
    """Milliseconds from the arrival of a request to a moment; None if there was none."""
    return None if at is None else round((at - record.identity.arrived) / 1e6, 1)

"""Keeps the requests that ended last, and computes the mean batch of decode steps while each ran:
for the live document and the log of requests. Pure.

Engines report their steps once a second, so the mean batch is known, if at all, a moment after the
request has ended: until then it is pending.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final

from orch_sidecar.engine_state.report import StepHistory
from orch_sidecar.observability.record import RequestRecord

if TYPE_CHECKING:
    from orch_sidecar.pools.pool import Pool

# Enough for quantiles, and for a table; less than a megabyte.
MAX_REQUESTS: Final = 512
# Later an engine is away, and the mean batch stays unknown.
_PENDING_S: Final = 3.0

# A record, and when it ended: nanoseconds of the monotonic clock.
Ended = tuple[RequestRecord, int]


class RecentRequests:
    """The requests that ended last, numbered from 1 in the order of their ends.

    A ring of fixed size: a record costs its place in it, and is forgotten by those that follow.
    """

    def __init__(self, most: int = MAX_REQUESTS) -> None:
        self._ended: deque[Ended] = deque(maxlen=most)
        self.total = 0

    def add(self, ended: Sequence[Ended]) -> None:
        """Adds the records that ended since the last call."""
        self._ended.extend(ended)
        self.total += len(ended)

    def all(self) -> list[Ended]:
        """Returns those that are kept, the newest at the end: its number is `total`."""
        return list(self._ended)


class MeanBatches:
    """The decode steps that engines have reported since they are read here."""

    def __init__(self) -> None:
        # By name of the pool.
        self.histories: dict[str, StepHistory] = {}

    def read(self, pools: Collection[Pool]) -> None:
        """Takes the last reports of these pools' engines. Forgets other pools: they are gone."""
        before = self.histories
        self.histories = {each.name: before.get(each.name) or StepHistory() for each in pools}
        for pool in pools:
            history, document = self.histories[pool.name], pool.watcher.document
            beat_at = pool.watcher.beat_at
            if document is not None and beat_at is not None and beat_at > history.known_until:
                history.add(document, beat_at)

    def is_pending(self, ended: Ended, now: int) -> bool:
        """Whether a request's mean batch may become known with the next report. `now`: nanoseconds
        of the monotonic clock."""
        record, at = ended
        history = self.histories.get(record.pool or "")
        if history is None or record.admitted is None:
            return False
        return history.known_until * 1e9 < at and now - at < _PENDING_S * 1e9

    def of(self, ended: Ended) -> float | None:
        """Returns the mean batch, in sequences, from the first token of a stream, else from the
        slot, to the end; None: unknown."""
        record, at = ended
        history = self.histories.get(record.pool or "")
        if history is None or record.admitted is None:
            return None
        start = record.first_byte if record.stream else None
        return history.mean_batch((start or record.admitted) / 1e9, at / 1e9)

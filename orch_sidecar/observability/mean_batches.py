"""Computes the mean batch of decode steps while a request ran, for the log and the live page.

Engines report their steps once a second, so it is known, if at all, a moment after the request has
ended: until then it is pending.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from orch_sidecar.engine_state.step_history import StepHistory
from orch_sidecar.observability.recent import Ended
from orch_sidecar.pools.pool import Pool

# Later an engine is away, and the mean batch stays unknown.
_PENDING_S: Final = 3.0


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

"""Reports how far the batches are: for the page, `orch top`, and Prometheus.

Counts what the database has of all sidecars; `orch_batch_rows_total` is of this one.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import Any, Final

from prometheus_client import Metric
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

from orch_sidecar.batches.ledger import EndedRow, OpenBatch
from orch_sidecar.batches.tables import OPEN

# Of which the rows per second are the mean.
_WINDOW_S: Final = 60.0


class Progress:
    """What is known of the batches that have not ended, as of the last look at them."""

    def __init__(self) -> None:
        self._batches: dict[str, OpenBatch] = {}
        self._done: dict[str, deque[tuple[float, int]]] = {}  # at so many seconds, so many rows
        self._ended: Counter[str] = Counter(completed=0, failed=0, again=0)

    def look(self, batches: Mapping[str, OpenBatch], now: float) -> None:
        """Takes the batches as they are at `now`."""
        self._batches = dict(batches)
        self._done = {each: self._done.get(each, deque()) for each in batches}
        for name, batch in batches.items():
            done = self._done[name]
            done.append((now, batch.completed + batch.failed))
            while len(done) > 2 and done[1][0] < now - _WINDOW_S:
                done.popleft()

    def count(self, rows: Iterable[EndedRow]) -> None:
        """Counts rows that have ended here."""
        for row in rows:
            ended = "again" if row.answer is None else "completed" if row.ok else "failed"
            self._ended[ended] += 1

    def rows(self, names: Mapping[bytes, str]) -> list[dict[str, Any]]:
        """Returns the part `batches` of the live document. `names`: of API keys, by digest."""
        return [
            {
                "batch": batch.id,
                "key": names.get(bytes.fromhex(batch.owner)),
                "status": batch.status,
                "total": batch.total,
                "completed": batch.completed,
                "failed": batch.failed,
                **self._pace(batch),
            }
            for batch in self._batches.values()
        ]

    def _pace(self, batch: OpenBatch) -> dict[str, float | None]:
        """Returns the rows per second, and when the last one is expected to end, in Unix
        milliseconds."""
        (began, before), (at, done) = self._done[batch.id][0], self._done[batch.id][-1]
        rate = (done - before) / (at - began) if at > began else 0.0
        if not rate:
            return {"rows_per_s": None, "ends_at": None}
        ends = min(time.time() + (batch.total - done) / rate, batch.expires_at)
        return {"rows_per_s": round(rate, 2), "ends_at": round(1000 * ends)}

    def collect(self) -> Iterable[Metric]:
        """Returns the metrics, for a Prometheus registry."""
        batches = GaugeMetricFamily(
            "orch_batches", "Batches that have not ended, of all sidecars.", labels=("status",)
        )
        found = Counter(batch.status for batch in self._batches.values())
        for status in OPEN:
            batches.add_metric((status.value,), found[status])
        left = GaugeMetricFamily(
            "orch_batch_rows_left", "Rows of these batches that have yet to end."
        )
        each = self._batches.values()
        left.add_metric((), sum(one.total - one.completed - one.failed for one in each))
        ended = CounterMetricFamily(
            "orch_batch_rows",
            "Rows that ended at this sidecar: completed, failed, or given back to run again.",
            labels=("outcome",),
        )
        for outcome, count in self._ended.items():
            ended.add_metric((outcome,), count)
        return batches, left, ended

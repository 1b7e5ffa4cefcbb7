"""Queues ended traces, and encodes them when they are exported.

Traces are kept or dropped as a whole. Knows numbers of spans, not what is in them. It waits for
nothing, so that it can be compiled.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Final

from orch_sidecar.observability.tracing import Trace

logger = logging.getLogger("orch.sidecar")

# Below the 4 MiB that gRPC's servers accept by default.
MAX_BATCH_BYTES: Final = 3 * 1024 * 1024

# Traces that are encoded before the event loop runs again, half a millisecond; of a queue that
# fills half of it, for turns of the event loop may be so long that it would overflow.
BURST_TRACES: Final = 64
_MOST_AT_ONCE: Final = 256


class Batch:
    """Encoded traces of one export. `spans`: their sum; `size`: in bytes."""

    __slots__ = ("size", "spans", "traces")

    def __init__(self) -> None:
        self.traces: list[bytes] = []
        self.spans = self.size = 0


class EncodedTrace(Trace):
    """A trace that is encoded already, and waits for the next batch."""

    __slots__ = ("_encoded",)

    def __init__(self, encoded: bytes) -> None:
        self._encoded = encoded

    def encode(self) -> bytes:
        return self._encoded


class TraceQueue:
    """Traces that wait to be exported. `spans`: the sum of theirs. `_tells_at`: `filled` is called
    when there are so many."""

    def __init__(
        self,
        max_spans: int,
        batch_spans: int,
        filled: Callable[[], None],
        refused: Callable[[int], None],
        invalid: Callable[[int, Exception], None],
    ) -> None:
        """`batch_spans`: the most of one batch, but of a trace that makes one by itself. Called:
        `filled` when the first trace is queued, and when they are enough for a batch; `refused` for
        spans that are not queued, `invalid` for spans that cannot be encoded."""
        self.spans = self._tells_at = 0
        self._max_spans = max_spans
        self._batch_spans = batch_spans
        self._filled = filled
        self._refused = refused
        self._invalid = invalid
        self._waiting: list[tuple[Trace, int]] = []

    def offer(self, trace: Trace, spans: int) -> None:
        """Queues a trace, or drops it if its spans do not fit. Never waits, never raises."""
        queued = self.spans + spans
        if queued > self._max_spans:
            self._refused(spans)
            return
        self._waiting.append((trace, spans))
        self.spans = queued
        if queued >= self._tells_at:
            self._tells_at = self._next_of(queued)
            self._filled()

    def take(self, batch: Batch) -> bool:
        """Encodes the next traces, and moves them to a batch. Returns whether it takes more.

        A trace that is too large for a batch makes one by itself.
        """
        waiting, traces, limit = self._waiting, batch.traces, self._batch_spans
        size, taken = batch.size, batch.spans
        most = min(max(BURST_TRACES, len(waiting) // 2), _MOST_AT_ONCE)
        done, more = 0, len(waiting) > most
        for trace, spans in waiting[:most]:
            if taken + spans > limit and traces:
                more = False
                break
            try:
                encoded = trace.encode()
            except Exception as error:  # it costs this trace alone
                logger.debug("a trace cannot be encoded", exc_info=True)
                self._invalid(spans, error)
                self.spans -= spans
                done += 1
                continue
            size += len(encoded)
            if size > MAX_BATCH_BYTES and traces:
                waiting[done] = EncodedTrace(encoded), spans
                size -= len(encoded)
                more = False
                break
            traces.append(encoded)
            taken += spans
            done += 1
        del waiting[:done]
        self.spans -= taken - batch.spans
        self._tells_at = self._next_of(self.spans)
        batch.size, batch.spans = size, taken
        return more

    def _next_of(self, spans: int) -> int:
        """Returns at how many spans `filled` is called next, if there are so many now."""
        if not spans:
            return 0
        return self._batch_spans if spans < self._batch_spans else sys.maxsize

    def close(self) -> None:
        """Refuses traces from now on."""
        self._max_spans = -1

    def clear(self) -> None:
        """Forgets all that wait."""
        self._waiting.clear()
        self.spans = self._tells_at = 0

"""Queues ended traces, and encodes them when they are exported.

Traces are kept or dropped as a whole. Knows numbers of spans, not what is in them. It waits for
nothing, so that it can be compiled.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from orch_sidecar.observability.tracing import Trace

logger = logging.getLogger("orch.sidecar")

# Below the 4 MiB that gRPC's servers accept by default.
MAX_BATCH_BYTES: Final = 3 * 1024 * 1024

# Traces that are encoded before the event loop runs again: a few tenths of a millisecond.
BURST_TRACES: Final = 16


class Batch:
    """Encoded traces of one export. `spans`: their sum; `size`: in bytes."""

    __slots__ = ("size", "spans", "traces")

    def __init__(self) -> None:
        self.traces: list[bytes] = []
        self.spans = self.size = 0


class TraceQueue:
    """Traces that wait to be exported. `spans`: the sum of theirs."""

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
        self.spans = 0
        self._max_spans = max_spans
        self._batch_spans = batch_spans
        self._filled = filled
        self._refused = refused
        self._invalid = invalid
        self._closed = False
        self._waiting: deque[tuple[Trace | bytes, int]] = deque()

    def offer(self, trace: Trace | bytes, spans: int) -> None:
        """Queues a trace, which may be encoded already, or drops it if its spans do not fit. Never
        waits, never raises."""
        before = self.spans
        queued = before + spans
        if queued > self._max_spans or self._closed:
            self._refused(spans)
            return
        self._waiting.append((trace, spans))
        self.spans = queued
        if not before or before < self._batch_spans <= queued:
            self._filled()

    def take(self, batch: Batch) -> bool:
        """Encodes the next traces, and moves them to a batch. Returns whether it takes more.

        A trace that is too large for a batch makes one by itself.
        """
        waiting, traces = self._waiting, batch.traces
        for _ in range(BURST_TRACES):
            if not waiting:
                return False
            trace, spans = waiting[0]
            if traces and batch.spans + spans > self._batch_spans:
                return False
            try:
                encoded = trace if isinstance(trace, bytes) else trace.encode()
            except Exception as error:  # it costs this trace alone
                logger.debug("a trace cannot be encoded", exc_info=True)
                self._invalid(spans, error)
            else:
                size = batch.size + len(encoded)
                if size > MAX_BATCH_BYTES and traces:
                    waiting[0] = encoded, spans
                    return False
                traces.append(encoded)
                batch.size = size
                batch.spans += spans
            waiting.popleft()
            self.spans -= spans
        return True

    def close(self) -> None:
        """Refuses traces from now on."""
        self._closed = True

    def clear(self) -> None:
        """Forgets all that wait."""
        self._waiting.clear()
        self.spans = 0

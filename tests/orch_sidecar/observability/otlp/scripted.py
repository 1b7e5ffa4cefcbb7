"""A transport that answers as a script has it, and small batches for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager

from orch_sidecar.observability.otlp.delivery import Reply, SpanBatcher, Verdict
from orch_sidecar.observability.otlp.settings import ExportSettings
from orch_sidecar.observability.otlp.trace_queue import EncodedTrace
from orch_sidecar.observability.tracing import LossReason, Trace

DELIVERED = Reply(Verdict.DELIVERED)
REJECTED = Reply(Verdict.REJECTED, "HTTP 400 Bad Request")
RETRY = Reply(Verdict.RETRY, "HTTP 503 Service Unavailable")

EXPORT = ExportSettings(
    "http/protobuf", "http://collector", max_queue_size=12, max_batch_size=6, schedule_delay_s=5.0
)
NONE = dict.fromkeys(LossReason, 0)


def throttled(delay_s: float) -> Reply:
    return Reply(Verdict.RETRY, "HTTP 429 Too Many Requests", retry_after_s=delay_s)


def joined(traces: Sequence[bytes]) -> bytes:
    """Makes a request in which each trace can be recognized."""
    return b",".join(traces)


class Invalid(Trace):
    """A trace that cannot be encoded."""

    def encode(self) -> bytes:
        raise OverflowError("an integer has 65 bits")


class ScriptedTransport:
    """Gives these replies, and the last one for ever. A number: it takes so many seconds."""

    def __init__(self, *replies: Reply | float) -> None:
        self.address = "http://collector:4318/v1/traces"
        self._replies = list(replies)
        # When, what, and the time limit.
        self.sent: list[tuple[float, bytes, float | None]] = []
        self.prepared = 0
        self.closed = False
        self.sending = 0

    async def prepare(self, request: bytes) -> bytes:
        self.prepared += 1
        return request

    async def send(self, prepared: bytes, timeout_s: float | None) -> Reply:
        loop = asyncio.get_running_loop()
        self.sent.append((loop.time(), prepared, timeout_s))
        self.sending += 1
        assert self.sending == 1, "one export at a time"
        try:
            while True:
                reply = self._replies[0] if len(self._replies) == 1 else self._replies.pop(0)
                if isinstance(reply, Reply):
                    return reply
                await asyncio.sleep(reply)
        finally:
            self.sending -= 1

    async def close(self) -> None:
        assert not self.closed
        self.closed = True

    @property
    def times(self) -> list[float]:
        return [time for time, _, _ in self.sent]

    @property
    def requests(self) -> list[bytes]:
        return [request for _, request, _ in self.sent]


def numbered(count: int) -> Iterable[Trace]:
    """Returns so many traces: their numbers."""
    return (EncodedTrace(str(number).encode()) for number in range(count))


def now() -> float:
    return asyncio.get_running_loop().time()


@asynccontextmanager
async def batching(
    *replies: Reply | float, close_s: float = 5.0
) -> AsyncIterator[tuple[ScriptedTransport, SpanBatcher]]:
    """Yields a transport with these replies and its batcher, of 12 spans, 6 in a batch.

    It is closed at the end, within `close_s` seconds.
    """
    transport = ScriptedTransport(*replies)
    batcher = SpanBatcher(EXPORT, transport, joined)
    yield transport, batcher
    await batcher.close(close_s)


def offer(batcher: SpanBatcher, count: int, spans: int) -> None:
    """Queues so many traces of so many spans each."""
    for trace in numbered(count):
        batcher.queue.offer(trace, spans)

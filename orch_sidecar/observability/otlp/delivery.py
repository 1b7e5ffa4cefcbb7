"""Delivers the spans of queued traces to a collector: in batches, with retries, on the event loop.

Knows numbers of spans, not what is in them. The rules of retries, back-off, throttling and time-out
are those of the OTLP specification, the same for both transports. Knows neither HTTP nor gRPC: a
transport turns what came of one attempt into a Reply, and knows no batches.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from orch_sidecar.observability.otlp.settings import ExportSettings
from orch_sidecar.observability.otlp.trace_queue import Batch, TraceQueue
from orch_sidecar.observability.tracing import LossReason, SpanCounts

logger = logging.getLogger("orch.sidecar")

# A collector that fails is in the log once within this time.
LOG_EVERY_S: Final = 20.0

# Of the first retry; doubled for each further one, as the SDK does. With jitter, so that many
# sidecars do not return to a collector at one instant.
FIRST_BACKOFF_S: Final = 1.0
MAX_BACKOFF_S: Final = 30.0
JITTER: Final = 0.2

# A collector that asks for more quiet than this is asked again nevertheless.
MAX_THROTTLE_S: Final = 300.0

# Texts of collectors are for a log line.
MAX_TEXT_CHARS: Final = 200


class SpanBatcher:
    """Exports spans to one collector, one batch at a time.

    Lives on the event loop on which the first trace is queued. Its counts are of spans.
    """

    def __init__(
        self,
        settings: ExportSettings,
        transport: Transport,
        request: Callable[[Sequence[bytes]], bytes],
    ) -> None:
        """`request`: makes the whole request of these traces."""
        self.counts = SpanCounts()
        self._settings = settings
        self._transport = transport
        self._request = request
        self._delivery = Delivery(transport, settings.timeout_s)
        self._log = _LossLog(transport.address)
        self._full_text = (
            f"the queue is full (OTEL_BSP_MAX_QUEUE_SIZE: {settings.max_queue_size} spans)"
        )
        self.queue = TraceQueue(
            settings.max_queue_size,
            settings.max_batch_size,
            self._filled,
            self._refused,
            self._invalid,
        )
        self._batch = Batch()  # in export
        # Something is queued; so much that nothing is to be waited for. Both once it closes.
        self._some = asyncio.Event()
        self._enough = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    async def close(self, timeout_s: float) -> None:
        """Exports what is queued, within this time, and closes the transport.

        What is not delivered by then is lost.
        """
        self._closed = True
        self.queue.close()
        self._delivery.close_soon()
        self._some.set()
        self._enough.set()
        try:
            if self._task is not None:
                await asyncio.wait([self._task], timeout=timeout_s)
                self._task.cancel()
                await asyncio.wait([self._task])
        finally:
            left = self.queue.spans + self._batch.spans
            self.queue.clear()
            self._batch = Batch()
            if left:
                self.counts.dropped[LossReason.UNDELIVERED] += left
                text = f"not delivered within the {timeout_s:g} s of the shutdown"
                self._log.lost(left, LossReason.UNDELIVERED, text)
            self._log.close()
            await self._transport.close()

    async def _run(self) -> None:
        """Exports batch by batch until it is closed and the queue is empty."""
        settings = self._settings
        while True:
            await self._some.wait()
            if self.queue.spans < settings.max_batch_size and not self._closed:
                await self._wait_for_more()
            if not self.queue.spans or not await self._delivery.ready():
                return
            await self._take()
            if not self._batch.traces:
                continue  # none could be encoded
            reply = await self._export(self._batch.traces, self._batch.spans)
            self._batch = Batch()
            if self._closed and reply is not None and reply.verdict is Verdict.RETRY:
                return  # the collector is away: the rest would not arrive, either

    async def _wait_for_more(self) -> None:
        try:
            async with asyncio.timeout(self._settings.schedule_delay_s):
                await self._enough.wait()
        except TimeoutError:
            pass

    async def _take(self) -> None:
        """Takes the traces of one batch from the queue."""
        more = self.queue.take(self._batch)
        while more:
            await asyncio.sleep(0)
            more = self.queue.take(self._batch)
        if not self._closed:
            if not self.queue.spans:
                self._some.clear()
            if self.queue.spans < self._settings.max_batch_size:
                self._enough.clear()

    def _filled(self) -> None:
        self._some.set()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="traces")
        if self.queue.spans >= self._settings.max_batch_size:
            self._enough.set()

    def _refused(self, spans: int) -> None:
        if self._closed:
            self.counts.dropped[LossReason.UNDELIVERED] += spans
            return
        self.counts.dropped[LossReason.QUEUE_FULL] += spans
        self._log.lost(spans, LossReason.QUEUE_FULL, self._full_text)

    def _invalid(self, spans: int, error: Exception) -> None:
        self.counts.dropped[LossReason.INVALID] += spans
        self._log.lost(spans, LossReason.INVALID, f"they cannot be encoded: {error}")

    async def _export(self, traces: list[bytes], spans: int) -> Reply | None:
        """Returns None if they are no request that could be sent. A fault costs its batch only."""
        lost = LossReason.INVALID
        try:
            request = self._request(traces)
            lost = LossReason.UNDELIVERED
            reply = await self._delivery.deliver(request)
        except Exception as error:
            logger.debug("an export of traces failed", exc_info=True)
            self.counts.dropped[lost] += spans
            self._log.lost(spans, lost, f"{type(error).__name__}: {error}")
            return None
        self._count(reply, spans)
        return reply

    def _count(self, reply: Reply, spans: int) -> None:
        counts = self.counts
        if reply.verdict is Verdict.DELIVERED:
            self._log.catch_up()
            rejected = min(reply.rejected, spans)
            counts.exported += spans - rejected
            counts.dropped[LossReason.REJECTED] += rejected
            if rejected:
                text = reply.text or "rejected without a reason"
                self._log.lost(rejected, LossReason.REJECTED, text)
            elif reply.text:
                self._log.warned(reply.text)
            return
        lost = LossReason.UNDELIVERED if reply.verdict is Verdict.RETRY else LossReason.REJECTED
        counts.dropped[lost] += spans
        self._log.lost(spans, lost, reply.text)


class _LossLog:
    """Logs what a collector loses, and its warnings, in few lines."""

    def __init__(self, address: str) -> None:
        self._address = address
        # Spans that have no line yet, and why they were lost: the last text of each reason. A
        # collector that fails also fills the queue, which must not hide why it fails.
        self._spans = 0
        self._texts: dict[LossReason, str] = {}
        self._warning = ""
        self._next = 0.0  # the loop's clock

    def lost(self, spans: int, reason: LossReason, text: str) -> None:
        """Logs it, or keeps it for the next line."""
        self._spans += spans
        self._texts[reason] = text
        if self._is_due():
            self.close()

    def warned(self, text: str) -> None:
        """Logs a warning of a collector that lost nothing, unless it has just given the same."""
        if text != self._warning and self._is_due():
            self._warning = text
            logger.warning("traces to %s: %s", self._address, text)

    def catch_up(self) -> None:
        """Logs earlier losses that have no line yet, if it is time for one."""
        if self._spans and self._is_due():
            self.close()

    def close(self) -> None:
        """Logs what has no line yet."""
        if self._spans:
            why = "; ".join(self._texts.values())
            logger.warning("traces to %s: %d spans were lost: %s", self._address, self._spans, why)
            self._spans = 0
            self._texts.clear()

    def _is_due(self) -> bool:
        now = asyncio.get_running_loop().time()
        if now < self._next:
            return False
        self._next = now + LOG_EVERY_S
        return True


class Verdict(StrEnum):
    """The result of one attempt."""

    DELIVERED = "delivered"
    RETRY = "retry"
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True)
class Reply:
    """What came of one attempt."""

    verdict: Verdict
    # The error, or a warning of a collector that accepted the request; empty if there is none.
    text: str = ""
    # Spans that the collector rejected of a request that it accepted otherwise.
    rejected: int = 0
    # How long the collector wants to be left alone.
    retry_after_s: float | None = None


class Transport(Protocol):
    """Sends requests to one collector, one at a time."""

    # Where to, as a log names it.
    address: str

    async def prepare(self, request: bytes) -> bytes:
        """Compresses a request, once for all its attempts."""

    async def send(self, prepared: bytes, timeout_s: float | None) -> Reply:
        """Sends it once. Raises nothing: failures are replies, too."""

    async def close(self) -> None:
        """Closes its connections."""


class Delivery:
    """Delivers requests by one transport, one at a time."""

    def __init__(self, transport: Transport, timeout_s: float | None) -> None:
        """`timeout_s`: of a request with all its retries; None: unlimited."""
        self._transport = transport
        self._timeout_s = timeout_s
        # Once set, nothing waits: a request has one retry left, which follows immediately.
        self._closing = asyncio.Event()
        # The collector wants no request before: the loop's clock.
        self._not_before = 0.0

    def close_soon(self) -> None:
        """Ends the waiting between attempts: the sidecar stops."""
        self._closing.set()

    async def ready(self) -> bool:
        """Waits until the collector wants requests again. False: not before the sidecar stops."""
        loop = asyncio.get_running_loop()
        return await self._wait(self._not_before - loop.time())

    async def deliver(self, request: bytes) -> Reply:
        """Returns the last reply: DELIVERED or REJECTED, or RETRY if time or patience is over."""
        loop = asyncio.get_running_loop()
        end = None if self._timeout_s is None else loop.time() + self._timeout_s
        prepared = await self._transport.prepare(request)
        backoff = FIRST_BACKOFF_S
        retrying = False
        while True:
            left = None if end is None else max(0.0, end - loop.time())
            last_chance = retrying and self._closing.is_set()
            reply = await self._transport.send(prepared, left)
            if reply.verdict is not Verdict.RETRY:
                return reply
            delay = backoff * random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311 - no secret
            if reply.retry_after_s is not None:
                throttle = min(reply.retry_after_s, MAX_THROTTLE_S)
                self._not_before = loop.time() + throttle
                delay = max(delay, throttle)
            backoff = min(2 * backoff, MAX_BACKOFF_S)
            if last_chance or (end is not None and loop.time() + delay >= end):
                return reply
            if not await self._wait(delay) and reply.retry_after_s is not None:
                return reply
            retrying = True

    async def _wait(self, delay_s: float) -> bool:
        """Waits. False: the sidecar stops, and it waited less."""
        if delay_s <= 0:
            return True
        try:
            async with asyncio.timeout(delay_s):
                await self._closing.wait()
        except TimeoutError:
            return True
        return False


def accepted(body: bytes) -> Reply:
    """Reads the answer of a collector that accepted a request: all of it, or not all.

    An answer that is no ExportTraceServiceResponse changes nothing but the text: what was
    accepted must not be sent again.
    """
    try:
        partial = ExportTraceServiceResponse.FromString(body).partial_success
    except DecodeError:
        text = "the answer is no ExportTraceServiceResponse: is the endpoint that of a collector?"
        return Reply(Verdict.DELIVERED, text)
    return Reply(Verdict.DELIVERED, readable(partial.error_message), max(0, partial.rejected_spans))


def readable(text: str) -> str:
    """Returns a text of a collector as a log line may have it: one line, and short."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= MAX_TEXT_CHARS else f"{line[:MAX_TEXT_CHARS]}..."

"""Delivers one request to the collector: retries, back-off, throttling, time-out.

The rules are those of the OTLP specification, the same for both transports. Knows neither HTTP
nor gRPC: a transport turns what came of one attempt into a Reply. Neither knows batches.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

# Of the first retry; doubled for each further one, as the SDK does. With jitter, so that many
# sidecars do not return to a collector at one instant.
FIRST_BACKOFF_S: Final = 1.0
MAX_BACKOFF_S: Final = 30.0
JITTER: Final = 0.2

# A collector that asks for more quiet than this is asked again nevertheless.
MAX_THROTTLE_S: Final = 300.0

# Texts of collectors are for a log line.
MAX_TEXT_CHARS: Final = 200


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

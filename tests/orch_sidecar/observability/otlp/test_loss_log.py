"""What of an export is in the log: losses and warnings, in few lines, on a clock that jumps."""

from __future__ import annotations

import asyncio
import logging

import pytest

from orch_sidecar.observability.otlp.delivery import LOG_EVERY_S, Reply, Verdict
from orch_sidecar.observability.otlp.trace_queue import EncodedTrace
from tests.orch_sidecar.observability.otlp.scripted import (
    DELIVERED,
    REJECTED,
    RETRY,
    batching,
    now,
)

VIRTUAL_TIME = True


def lost(caplog: pytest.LogCaptureFixture) -> list[int]:
    """How many spans each line has."""
    return [int(line.split(" spans")[0].split()[-1]) for line in lines(caplog)]


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


async def test_failing_collector_has_one_line_in_a_while(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with batching(REJECTED) as (_, batcher):
        began = now()
        while now() - began < LOG_EVERY_S:
            batcher.queue.offer(EncodedTrace(b"a"), 6)
            await asyncio.sleep(1)
        assert lines(caplog) == [
            "traces to http://collector:4318/v1/traces: 6 spans were lost: HTTP 400 Bad Request"
        ]
        for _ in range(4):
            batcher.queue.offer(EncodedTrace(b"b"), 6)
    assert len(lines(caplog)) == 3  # the time is over; and what is left has a line at the end
    assert sum(lost(caplog)) == sum(batcher.counts.dropped.values())


async def test_full_queue_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with batching(DELIVERED) as (_, batcher):
        batcher.queue.offer(EncodedTrace(b"a"), 13)
        (line,) = lines(caplog)
        assert "13 spans were lost: the queue is full (OTEL_BSP_MAX_QUEUE_SIZE: 12 spans)" in line


async def test_full_queue_does_not_hide_why_the_collector_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with batching(RETRY) as (_, batcher):
        while len(lines(caplog)) < 3:
            batcher.queue.offer(EncodedTrace(b"a"), 3)
            await asyncio.sleep(0.5)
        for line in lines(caplog)[1:]:
            assert "the queue is full" in line
            assert "HTTP 503 Service Unavailable" in line


async def test_all_that_was_lost_is_in_the_log_once_the_collector_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with batching(DELIVERED) as (_, batcher):
        for _ in range(100):
            batcher.queue.offer(EncodedTrace(b"a"), 3)
        await asyncio.sleep(2 * LOG_EVERY_S)
        batcher.queue.offer(EncodedTrace(b"b"), 3)
        await asyncio.sleep(2 * LOG_EVERY_S)
        assert lost(caplog) == [3, 285]
    assert len(lines(caplog)) == 2


async def test_warning_of_a_collector_is_in_the_log_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    warning = Reply(Verdict.DELIVERED, "this API will go")
    async with batching(*[warning] * 3, Reply(Verdict.DELIVERED, "it is gone")) as (_, batcher):
        for _ in range(4):
            batcher.queue.offer(EncodedTrace(b"a"), 6)
            await asyncio.sleep(2 * LOG_EVERY_S)
    assert lines(caplog) == [
        "traces to http://collector:4318/v1/traces: this API will go",
        "traces to http://collector:4318/v1/traces: it is gone",
    ]
    assert batcher.counts.exported == 24


async def test_export_without_a_failure_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with batching(RETRY, DELIVERED) as (_, batcher):
        batcher.queue.offer(EncodedTrace(b"a"), 6)
        await asyncio.sleep(10)
    assert (batcher.counts.exported, caplog.records) == (6, [])

"""The queue and the batches of an export, on a clock that jumps."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from orch_sidecar.observability.otlp import trace_queue
from orch_sidecar.observability.otlp.batcher import SpanBatcher
from orch_sidecar.observability.otlp.delivery import Reply, Verdict
from orch_sidecar.observability.otlp.trace_queue import BURST_TRACES, EncodedTrace
from orch_sidecar.observability.tracing import Trace
from tests.orch_sidecar.observability.otlp.scripted import (
    DELIVERED,
    EXPORT,
    NONE,
    REJECTED,
    RETRY,
    Invalid,
    ScriptedTransport,
    batcher_of,
    joined,
    numbered,
    throttled,
)

VIRTUAL_TIME = True


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_batch_is_exported_as_soon_as_it_is_complete() -> None:
    transport = ScriptedTransport(DELIVERED)
    batcher = batcher_of(transport)
    for trace in numbered(3):
        batcher.queue.offer(trace, 3)
    await asyncio.sleep(1)
    assert (transport.times, transport.requests) == ([0.0], [b"0,1"])
    await asyncio.sleep(10)
    assert (transport.times, transport.requests) == ([0.0, 5.0], [b"0,1", b"2"])
    assert (batcher.counts.exported, batcher.counts.dropped) == (9, NONE)
    await batcher.close(5)


async def test_incomplete_batch_is_exported_after_the_delay() -> None:
    transport = ScriptedTransport(DELIVERED)
    batcher = batcher_of(transport)
    batcher.queue.offer(EncodedTrace(b"a"), 1)
    await asyncio.sleep(3)
    batcher.queue.offer(EncodedTrace(b"b"), 1)
    await asyncio.sleep(10)
    batcher.queue.offer(EncodedTrace(b"c"), 1)
    await asyncio.sleep(10)
    assert transport.times == [5.0, 18.0]
    assert transport.requests == [b"a,b", b"c"]
    await batcher.close(5)


async def test_batch_that_becomes_complete_does_not_wait_any_longer() -> None:
    transport = ScriptedTransport(DELIVERED)
    batcher = batcher_of(transport)
    batcher.queue.offer(EncodedTrace(b"a"), 3)
    await asyncio.sleep(3)
    batcher.queue.offer(EncodedTrace(b"b"), 3)
    await asyncio.sleep(0.5)
    assert transport.times == [3.0]
    await batcher.close(5)


async def test_traces_are_not_split() -> None:
    transport = ScriptedTransport(DELIVERED)
    batcher = batcher_of(transport)
    for trace, spans in ((b"a", 4), (b"b", 3), (b"c", 4)):
        batcher.queue.offer(EncodedTrace(trace), spans)
    await batcher.close(5)
    assert transport.requests == [b"a", b"b", b"c"]


async def test_batch_has_a_size_that_collectors_accept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_queue, "MAX_BATCH_BYTES", 100)
    transport = ScriptedTransport(DELIVERED)
    batcher = batcher_of(transport)
    for size in (60, 40, 1, 500):
        batcher.queue.offer(EncodedTrace(b"x" * size), 1)
    await batcher.close(5)
    assert [len(request) for request in transport.requests] == [101, 1, 500]  # with commas


async def test_full_queue_drops_whole_traces_and_takes_smaller_ones() -> None:
    transport = ScriptedTransport(100.0)
    batcher = batcher_of(transport)
    batcher.queue.offer(EncodedTrace(b"in export"), 6)
    await asyncio.sleep(0)
    batcher.queue.offer(EncodedTrace(b"a"), 10)
    batcher.queue.offer(EncodedTrace(b"b"), 3)
    batcher.queue.offer(EncodedTrace(b"c"), 2)
    batcher.queue.offer(Invalid(), 1)  # dropped, and not encoded
    assert batcher.counts.dropped == NONE | {"queue_full": 4}
    await batcher.close(0)


async def test_counts_are_those_of_the_collectors_answers() -> None:
    partial = Reply(Verdict.DELIVERED, "2 spans are too old", rejected=2)
    impossible = Reply(Verdict.DELIVERED, "", rejected=99)
    transport = ScriptedTransport(DELIVERED, partial, impossible, REJECTED)
    batcher = batcher_of(transport)
    for trace in numbered(4):
        batcher.queue.offer(trace, 6)
        await asyncio.sleep(1)
    assert batcher.counts.exported == 6 + 4 + 0 + 0
    assert batcher.counts.dropped == NONE | {"rejected": 2 + 6 + 6}
    await batcher.close(5)


async def test_export_that_times_out_is_undelivered_and_the_next_one_is_tried() -> None:
    transport = ScriptedTransport(10.0, RETRY, DELIVERED)
    batcher = batcher_of(transport)
    for trace in numbered(2):
        batcher.queue.offer(trace, 6)
    await asyncio.sleep(60)
    assert transport.times == [0.0, 10.0]
    assert (batcher.counts.exported, batcher.counts.dropped) == (6, NONE | {"undelivered": 6})
    await batcher.close(5)


async def test_throttled_traces_wait_in_the_queue() -> None:
    transport = ScriptedTransport(throttled(60.0), DELIVERED)
    batcher = batcher_of(transport)
    for trace in numbered(4):
        batcher.queue.offer(trace, 6)
        await asyncio.sleep(0)
    await asyncio.sleep(59)
    assert batcher.counts.dropped == NONE | {"undelivered": 6, "queue_full": 6}
    await asyncio.sleep(59)
    assert transport.times[:2] == [0.0, pytest.approx(60.0)]
    assert batcher.counts.exported == 12
    await batcher.close(5)


async def test_fault_of_the_encoder_costs_its_batch() -> None:
    def request(traces: Sequence[bytes]) -> bytes:
        if b"0" in traces:
            raise OverflowError("too large")
        return joined(traces)

    transport = ScriptedTransport(DELIVERED)
    batcher = SpanBatcher(EXPORT, transport, request)
    for trace in numbered(2):
        batcher.queue.offer(trace, 6)
    await batcher.close(5)
    assert transport.requests == [b"1"]
    assert (batcher.counts.exported, batcher.counts.dropped) == (6, NONE | {"invalid": 6})


async def test_trace_that_cannot_be_encoded_costs_itself_alone() -> None:
    transport = ScriptedTransport(DELIVERED)
    batcher = batcher_of(transport)
    for trace in (Invalid(), EncodedTrace(b"a"), Invalid(), EncodedTrace(b"b")):
        batcher.queue.offer(trace, 3)
    await asyncio.sleep(1)
    assert transport.requests == [b"a,b"]
    batcher.queue.offer(Invalid(), 6)  # a batch of which nothing is left
    await batcher.close(5)
    assert len(transport.requests) == 1
    assert (batcher.counts.exported, batcher.counts.dropped) == (6, NONE | {"invalid": 12})


async def test_event_loop_runs_while_a_batch_is_encoded() -> None:
    most = 2 * BURST_TRACES + 1
    transport = ScriptedTransport(DELIVERED)
    settings = replace(EXPORT, max_queue_size=most, max_batch_size=most)
    batcher = SpanBatcher(settings, transport, joined)
    encoded = []

    class Noted(Trace):
        def encode(self) -> bytes:
            encoded.append(turns)
            return b"a"

    turns = 0
    for _ in range(most):
        batcher.queue.offer(Noted(), 1)
    while batcher.counts.exported < most:
        await asyncio.sleep(0)
        turns += 1
    assert max(encoded.count(turn) for turn in encoded) <= BURST_TRACES
    await batcher.close(5)


async def test_fault_of_the_transport_costs_its_batch() -> None:
    class Faulty(ScriptedTransport):
        async def prepare(self, request: bytes) -> bytes:
            if request == b"0":
                raise RuntimeError("a fault")
            return request

    transport = Faulty(DELIVERED)
    batcher = batcher_of(transport)
    for trace in numbered(2):
        batcher.queue.offer(trace, 6)
    await batcher.close(5)
    assert (batcher.counts.exported, batcher.counts.dropped) == (6, NONE | {"undelivered": 6})


async def test_close_exports_what_is_queued_at_once() -> None:
    transport = ScriptedTransport(DELIVERED)
    batcher = batcher_of(transport)
    for trace in numbered(4):
        batcher.queue.offer(trace, 3)
    await batcher.close(5)
    assert transport.requests == [b"0,1", b"2,3"]
    assert (now(), batcher.counts.exported, transport.closed) == (0.0, 12, True)
    batcher.queue.offer(EncodedTrace(b"late"), 3)
    assert batcher.counts.dropped == NONE | {"undelivered": 3}


async def test_close_without_traces_closes_the_transport() -> None:
    transport = ScriptedTransport(DELIVERED)
    await batcher_of(transport).close(5)
    assert (transport.sent, transport.closed) == ([], True)


async def test_close_ends_with_its_time_and_counts_what_was_not_delivered() -> None:
    transport = ScriptedTransport(100.0)
    batcher = batcher_of(transport)
    for trace in numbered(4):
        batcher.queue.offer(trace, 3)
    await batcher.close(4)
    assert (now(), transport.closed, transport.sending) == (4.0, True, 0)
    assert batcher.counts.dropped == NONE | {"undelivered": 12}
    assert len(asyncio.all_tasks()) == 1


async def test_close_does_not_wait_for_a_retry() -> None:
    transport = ScriptedTransport(RETRY)
    batcher = batcher_of(transport)
    for trace in numbered(4):
        batcher.queue.offer(trace, 3)
    await asyncio.sleep(0.1)
    assert len(transport.sent) == 1
    await batcher.close(5)
    assert transport.times == [0.0, 0.1]  # once more at once, and the rest not at all
    assert batcher.counts.dropped == NONE | {"undelivered": 12}

"""The queue and the batches of an export, its retries, back-off, throttling and time-out.

On a clock that jumps.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest

from orch_sidecar.observability.otlp import trace_queue
from orch_sidecar.observability.otlp.delivery import (
    FIRST_BACKOFF_S,
    JITTER,
    MAX_BACKOFF_S,
    MAX_THROTTLE_S,
    Delivery,
    Reply,
    SpanBatcher,
    Verdict,
    accepted,
    readable,
)
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
    batching,
    joined,
    now,
    numbered,
    offer,
    throttled,
)

VIRTUAL_TIME = True


async def test_batch_is_exported_as_soon_as_it_is_complete() -> None:
    async with batching(DELIVERED) as (transport, batcher):
        offer(batcher, 3, 3)
        await asyncio.sleep(1)
        assert (transport.times, transport.requests) == ([0.0], [b"0,1"])
        await asyncio.sleep(10)
        assert (transport.times, transport.requests) == ([0.0, 5.0], [b"0,1", b"2"])
        assert (batcher.counts.exported, batcher.counts.dropped) == (9, NONE)


async def test_incomplete_batch_is_exported_after_the_delay() -> None:
    async with batching(DELIVERED) as (transport, batcher):
        batcher.queue.offer(EncodedTrace(b"a"), 1)
        await asyncio.sleep(3)
        batcher.queue.offer(EncodedTrace(b"b"), 1)
        await asyncio.sleep(10)
        batcher.queue.offer(EncodedTrace(b"c"), 1)
        await asyncio.sleep(10)
        assert transport.times == [5.0, 18.0]
        assert transport.requests == [b"a,b", b"c"]


async def test_batch_that_becomes_complete_does_not_wait_any_longer() -> None:
    async with batching(DELIVERED) as (transport, batcher):
        batcher.queue.offer(EncodedTrace(b"a"), 3)
        await asyncio.sleep(3)
        batcher.queue.offer(EncodedTrace(b"b"), 3)
        await asyncio.sleep(0.5)
        assert transport.times == [3.0]


async def test_traces_are_not_split() -> None:
    async with batching(DELIVERED) as (transport, batcher):
        for trace, spans in ((b"a", 4), (b"b", 3), (b"c", 4)):
            batcher.queue.offer(EncodedTrace(trace), spans)
    assert transport.requests == [b"a", b"b", b"c"]


async def test_batch_has_a_size_that_collectors_accept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_queue, "MAX_BATCH_BYTES", 100)
    async with batching(DELIVERED) as (transport, batcher):
        for size in (60, 40, 1, 500):
            batcher.queue.offer(EncodedTrace(b"x" * size), 1)
    assert [len(request) for request in transport.requests] == [101, 1, 500]  # with commas


async def test_full_queue_drops_whole_traces_and_takes_smaller_ones() -> None:
    async with batching(100.0, close_s=0) as (_, batcher):
        batcher.queue.offer(EncodedTrace(b"in export"), 6)
        await asyncio.sleep(0)
        batcher.queue.offer(EncodedTrace(b"a"), 10)
        batcher.queue.offer(EncodedTrace(b"b"), 3)
        batcher.queue.offer(EncodedTrace(b"c"), 2)
        batcher.queue.offer(Invalid(), 1)  # dropped, and not encoded
        assert batcher.counts.dropped == NONE | {"queue_full": 4}


async def test_counts_are_those_of_the_collectors_answers() -> None:
    partial = Reply(Verdict.DELIVERED, "2 spans are too old", rejected=2)
    impossible = Reply(Verdict.DELIVERED, "", rejected=99)
    async with batching(DELIVERED, partial, impossible, REJECTED) as (_, batcher):
        for trace in numbered(4):
            batcher.queue.offer(trace, 6)
            await asyncio.sleep(1)
        assert batcher.counts.exported == 6 + 4 + 0 + 0
        assert batcher.counts.dropped == NONE | {"rejected": 2 + 6 + 6}


async def test_export_that_times_out_is_undelivered_and_the_next_one_is_tried() -> None:
    async with batching(10.0, RETRY, DELIVERED) as (transport, batcher):
        offer(batcher, 2, 6)
        await asyncio.sleep(60)
        assert transport.times == [0.0, 10.0]
        assert (batcher.counts.exported, batcher.counts.dropped) == (6, NONE | {"undelivered": 6})


async def test_throttled_traces_wait_in_the_queue() -> None:
    async with batching(throttled(60.0), DELIVERED) as (transport, batcher):
        for trace in numbered(4):
            batcher.queue.offer(trace, 6)
            await asyncio.sleep(0)
        await asyncio.sleep(59)
        assert batcher.counts.dropped == NONE | {"undelivered": 6, "queue_full": 6}
        await asyncio.sleep(59)
        assert transport.times[:2] == [0.0, pytest.approx(60.0)]
        assert batcher.counts.exported == 12


async def test_fault_of_the_encoder_costs_its_batch() -> None:
    def request(traces: Sequence[bytes]) -> bytes:
        if b"0" in traces:
            raise OverflowError("too large")
        return joined(traces)

    transport = ScriptedTransport(DELIVERED)
    batcher = SpanBatcher(EXPORT, transport, request)
    offer(batcher, 2, 6)
    await batcher.close(5)
    assert transport.requests == [b"1"]
    assert (batcher.counts.exported, batcher.counts.dropped) == (6, NONE | {"invalid": 6})


async def test_trace_that_cannot_be_encoded_costs_itself_alone() -> None:
    async with batching(DELIVERED) as (transport, batcher):
        for trace in (Invalid(), EncodedTrace(b"a"), Invalid(), EncodedTrace(b"b")):
            batcher.queue.offer(trace, 3)
        await asyncio.sleep(1)
        assert transport.requests == [b"a,b"]
        batcher.queue.offer(Invalid(), 6)  # a batch of which nothing is left
    assert len(transport.requests) == 1
    assert (batcher.counts.exported, batcher.counts.dropped) == (6, NONE | {"invalid": 12})


@pytest.mark.parametrize(("most", "at_once"), [(2 * BURST_TRACES + 1, BURST_TRACES), (5000, 256)])
async def test_event_loop_runs_while_a_batch_is_encoded(most: int, at_once: int) -> None:
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
    assert max(encoded.count(turn) for turn in encoded) == at_once
    await batcher.close(5)


async def test_fault_of_the_transport_costs_its_batch() -> None:
    class Faulty(ScriptedTransport):
        async def prepare(self, request: bytes) -> bytes:
            if request == b"0":
                raise RuntimeError("a fault")
            return request

    transport = Faulty(DELIVERED)
    batcher = SpanBatcher(EXPORT, transport, joined)
    offer(batcher, 2, 6)
    await batcher.close(5)
    assert (batcher.counts.exported, batcher.counts.dropped) == (6, NONE | {"undelivered": 6})


async def test_close_exports_what_is_queued_at_once() -> None:
    async with batching(DELIVERED) as (transport, batcher):
        offer(batcher, 4, 3)
    assert transport.requests == [b"0,1", b"2,3"]
    assert (now(), batcher.counts.exported, transport.closed) == (0.0, 12, True)
    batcher.queue.offer(EncodedTrace(b"late"), 3)
    assert batcher.counts.dropped == NONE | {"undelivered": 3}


async def test_close_without_traces_closes_the_transport() -> None:
    async with batching(DELIVERED) as (transport, _):
        pass
    assert (transport.sent, transport.closed) == ([], True)


async def test_close_ends_with_its_time_and_counts_what_was_not_delivered() -> None:
    async with batching(100.0, close_s=4) as (transport, batcher):
        offer(batcher, 4, 3)
    assert (now(), transport.closed, transport.sending) == (4.0, True, 0)
    assert batcher.counts.dropped == NONE | {"undelivered": 12}
    assert len(asyncio.all_tasks()) == 1


async def test_close_does_not_wait_for_a_retry() -> None:
    async with batching(RETRY) as (transport, batcher):
        offer(batcher, 4, 3)
        await asyncio.sleep(0.1)
        assert len(transport.sent) == 1
    assert transport.times == [0.0, 0.1]  # once more at once, and the rest not at all
    assert batcher.counts.dropped == NONE | {"undelivered": 12}


def pauses(transport: ScriptedTransport) -> list[float]:
    return [later - sooner for sooner, later in itertools.pairwise(transport.times)]


@pytest.mark.parametrize("reply", [DELIVERED, REJECTED])
async def test_final_replies_end_it(reply: Reply) -> None:
    transport = ScriptedTransport(reply)
    assert await Delivery(transport, 10.0).deliver(b"request") is reply
    assert transport.sent == [(0.0, b"request", 10.0)]


async def test_pauses_double_with_jitter_until_a_retry_succeeds() -> None:
    transport = ScriptedTransport(*[RETRY] * 7, DELIVERED)
    assert await Delivery(transport, None).deliver(b"request") is DELIVERED
    expected = FIRST_BACKOFF_S
    for pause in pauses(transport):
        assert expected * (1 - JITTER) <= pause <= expected * (1 + JITTER)
        expected = min(2 * expected, MAX_BACKOFF_S)
    assert len({pause % 1 for pause in pauses(transport)}) > 1
    assert transport.prepared == 1
    assert {limit for _, _, limit in transport.sent} == {None}


async def test_retries_share_one_time_limit() -> None:
    transport = ScriptedTransport(RETRY)
    reply = await Delivery(transport, 10.0).deliver(b"request")
    assert reply is RETRY
    assert 3 <= len(transport.sent) <= 4  # at 0, 1, 3 and 7 s, with jitter
    for at, _, limit in transport.sent:
        assert limit == pytest.approx(10.0 - at)
    assert now() < 10.0  # not waited for a retry beyond it


async def test_attempt_that_took_the_whole_time_is_the_last() -> None:
    transport = ScriptedTransport(10.0, RETRY)
    assert await Delivery(transport, 10.0).deliver(b"request") is RETRY
    assert len(transport.sent) == 1


async def test_collector_is_left_alone_as_long_as_it_asks() -> None:
    transport = ScriptedTransport(throttled(4.0), throttled(0.0), DELIVERED)
    assert await Delivery(transport, 10.0).deliver(b"request") is DELIVERED
    first, second = pauses(transport)
    assert first == pytest.approx(4.0)
    assert 1.6 <= second <= 2.4  # never sooner than the back-off


async def test_request_is_given_up_at_once_if_the_collector_asks_for_too_long() -> None:
    transport = ScriptedTransport(throttled(60.0), DELIVERED)
    delivery = Delivery(transport, 10.0)
    assert (await delivery.deliver(b"first")).verdict is Verdict.RETRY
    assert now() == 0.0
    assert await delivery.ready()  # the next one waits for it
    assert now() == pytest.approx(60.0)
    assert await delivery.deliver(b"second") is DELIVERED


async def test_quiet_that_a_collector_may_ask_for_is_bounded() -> None:
    delivery = Delivery(ScriptedTransport(throttled(1e9)), 10.0)
    await delivery.deliver(b"request")
    assert await delivery.ready()
    assert now() == pytest.approx(MAX_THROTTLE_S)


@pytest.mark.parametrize("last", [DELIVERED, RETRY])
async def test_waiting_retry_is_made_at_once_when_the_sidecar_stops(last: Reply) -> None:
    transport = ScriptedTransport(RETRY, last)
    delivery = Delivery(transport, 10.0)
    asyncio.get_running_loop().call_later(0.25, delivery.close_soon)
    assert await delivery.deliver(b"request") is last
    assert transport.times == [0.0, 0.25]


async def test_throttled_retry_is_not_made_when_the_sidecar_stops() -> None:
    transport = ScriptedTransport(throttled(5.0), DELIVERED)
    delivery = Delivery(transport, 10.0)
    asyncio.get_running_loop().call_later(0.25, delivery.close_soon)
    assert (await delivery.deliver(b"request")).verdict is Verdict.RETRY
    assert len(transport.sent) == 1
    assert not await delivery.ready()
    assert now() == 0.25


@pytest.mark.parametrize("second", [DELIVERED, RETRY])
async def test_request_has_two_attempts_without_a_pause_while_the_sidecar_stops(
    second: Reply,
) -> None:
    """The first may meet a connection that the collector has just closed."""
    transport = ScriptedTransport(RETRY, second)
    delivery = Delivery(transport, 10.0)
    delivery.close_soon()
    assert await delivery.ready()
    assert await delivery.deliver(b"request") is second
    assert transport.times == [0.0, 0.0]


def test_number_of_rejected_spans_cannot_be_negative() -> None:
    minus_one = b"\x0a\x0b\x08" + b"\xff" * 9 + b"\x01"
    assert accepted(minus_one) == Reply(Verdict.DELIVERED)


def test_texts_of_collectors_are_one_short_line() -> None:
    assert readable("a\r\nforged\x1b[31m  line\u2028") == "a forged [31m line"
    assert readable("x" * 1000) == "x" * 200 + "..."

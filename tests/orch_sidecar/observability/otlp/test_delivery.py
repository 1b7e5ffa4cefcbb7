"""Retries, back-off, throttling and time-out of one request, on a clock that jumps."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from orch_sidecar.observability.otlp.delivery import (
    FIRST_BACKOFF_S,
    JITTER,
    MAX_BACKOFF_S,
    MAX_THROTTLE_S,
    Delivery,
    Reply,
    Verdict,
    accepted,
    readable,
)
from tests.orch_sidecar.observability.otlp.scripted import (
    DELIVERED,
    REJECTED,
    RETRY,
    ScriptedTransport,
    throttled,
)

VIRTUAL_TIME = True


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
    assert asyncio.get_running_loop().time() < 10.0  # not waited for a retry beyond it


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
    loop = asyncio.get_running_loop()
    assert loop.time() == 0.0
    assert await delivery.ready()  # the next one waits for it
    assert loop.time() == pytest.approx(60.0)
    assert await delivery.deliver(b"second") is DELIVERED


async def test_quiet_that_a_collector_may_ask_for_is_bounded() -> None:
    delivery = Delivery(ScriptedTransport(throttled(1e9)), 10.0)
    await delivery.deliver(b"request")
    assert await delivery.ready()
    assert asyncio.get_running_loop().time() == pytest.approx(MAX_THROTTLE_S)


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
    assert asyncio.get_running_loop().time() == 0.25


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


def test_answer_that_is_none_is_a_success_with_a_warning() -> None:
    reply = accepted(b"<html>It works!</html>")
    assert (reply.verdict, reply.rejected) == (Verdict.DELIVERED, 0)
    assert "no ExportTraceServiceResponse" in reply.text


def test_texts_of_collectors_are_one_short_line() -> None:
    assert readable("a\r\nforged\x1b[31m  line\u2028") == "a forged [31m line"
    assert readable("x" * 1000) == "x" * 200 + "..."

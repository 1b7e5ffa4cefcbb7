"""The stage that forwards a request: what it returns, and that its connection always ends."""

from __future__ import annotations

import asyncio
import gc
from typing import Any
from unittest.mock import MagicMock

import pytest

from orch_sidecar.admission.gate import Ticket
from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.coalescing.broadcast import Broadcast
from orch_sidecar.observability.record import Outcome
from orch_sidecar.proxy.client_writer import ClientWriter
from orch_sidecar.proxy.engine_response import EngineResponse
from orch_sidecar.proxy.forward import Forward
from orch_sidecar.proxy.request import NotSent, Request, Result, Retry, Sent
from orch_sidecar.wire import backpressure
from tests.orch_sidecar.broadcasting import STREAM, STREAM_HEAD, chunk, json_answer
from tests.orch_sidecar.proxy.stages import Client, asked, pool_of, request_of
from tests.orch_sidecar.records import record_of
from tests.patience import HANG_S

EVENT = chunk(b"data: {}\n\n")


def leased(pool: Any, request: Request) -> Ticket:
    """A ticket of this pool's gate for the request, with its lease."""
    ticket: Ticket = pool.gate.open(request, asked())
    request.attempt.ticket = ticket
    assert ticket.queued is None
    return ticket


async def forwarded(request: Request, pool: Any, *reads: bytes, lost: bool = False) -> Result:
    """Returns the result if the engine sends these reads; `lost`: and closes its connection."""
    task = asyncio.create_task(Forward().handle(request, pool))
    await asyncio.sleep(0)
    [connection] = pool.connections.opened
    for data in reads:
        connection.data_received(data)
    if lost:
        connection.connection_lost(None)
    result = await asyncio.wait_for(task, HANG_S)
    protocol: Any = request.http.protocol
    assert protocol.response is None
    return result


async def test_response_goes_to_the_client_and_the_connection_is_kept() -> None:
    client, pool = Client(), pool_of()
    request = request_of(client)
    result = await forwarded(request, pool, json_answer(b'{"a":1}'))
    assert result == Sent(keep_alive=True, outcome=Outcome.OK)
    assert client.data.endswith(b'\r\n\r\n{"a":1}')
    assert b"x-measurement-type: batched_online" in client.data
    assert pool.connections.kept == pool.connections.opened
    assert request.attempt.response is not None
    assert request.attempt.response.complete


async def test_engine_that_cannot_be_connected_leaves_the_request_to_another_pool() -> None:
    pool = pool_of()
    pool.connections.refuses = ConnectionRefusedError("refused")
    request = request_of()
    result = await Forward().handle(request, pool)
    assert isinstance(result, NotSent)
    assert (result.refusal.reason, result.retry) == (Reason.ENGINE_DOWN, Retry.OTHER_POOL)
    assert not result.reached_engine
    assert request.attempt.response is None


async def test_nothing_is_sent_once_the_engine_is_unavailable_or_another_one() -> None:
    for reason in ("stale", "restarted"):
        pool, request = pool_of(), request_of()
        ticket = leased(pool, request)
        if reason == "stale":
            pool.gate.engine_unavailable(Refusal(Reason.ENGINE_STALE, "stale"))
        else:
            pool.gate.leases_ended([ticket.id])
        result = await Forward().handle(request, pool)
        assert isinstance(result, NotSent)
        assert result.retry is Retry.OTHER_POOL
        [connection] = pool.connections.opened
        assert not connection.open
        assert request.attempt.response is None


async def test_cancelled_request_is_not_sent() -> None:
    pool, request = pool_of(), request_of()
    request.cancelled = Refusal(Reason.CANCELLED, "cancelled")
    result = await Forward().handle(request, pool)
    assert result == NotSent(request.cancelled)
    assert request.attempt.response is None


async def test_client_that_disconnects_while_connecting_closes_the_connection_unused() -> None:
    pool, request = pool_of(), request_of()
    protocol: Any = request.http.protocol
    protocol.transport = None
    with pytest.raises(asyncio.CancelledError):
        await Forward().handle(request, pool)
    [connection] = pool.connections.opened
    assert not connection.open


@pytest.mark.parametrize(
    ("reads", "retry"),
    [((), Retry.OTHER_POOL), ((STREAM_HEAD[:20],), Retry.NO), ((STREAM_HEAD,), Retry.NO)],
)
async def test_lost_engine_may_be_replaced_only_before_its_first_byte(
    reads: tuple[bytes, ...], retry: Retry
) -> None:
    client = Client()
    result = await forwarded(request_of(client), pool_of(), *reads, lost=True)
    assert isinstance(result, NotSent)
    assert (result.refusal.reason, result.retry) == (Reason.ENGINE_FAILED, retry)
    assert result.reached_engine
    assert client.data == b""


async def test_failure_after_the_start_is_the_outcome_of_what_was_sent() -> None:
    client = Client()
    request = request_of(client)
    result = await forwarded(request, pool_of(), STREAM_HEAD, EVENT, lost=True)
    assert result == Sent(keep_alive=True, outcome=Reason.ENGINE_FAILED)
    assert b"engine_failed" in client.data
    assert client.data.endswith(b"0\r\n\r\n")
    assert request.attempt.failure is not None


async def test_temporary_rejection_by_the_upstream_asks_for_a_requeue() -> None:
    client, pool = Client(), pool_of(rejection=backpressure.sidecar_rejection, tier=True)
    request = request_of(client)
    leased(pool, request)
    body = b'{"error":{"retriable":true,"retry_after_ms":70}}'
    result = await forwarded(request, pool, json_answer(body, b"429 No"))
    assert isinstance(result, NotSent)
    assert (result.refusal.reason, result.retry) == (Reason.QUEUE_FULL, Retry.REQUEUE)
    assert request.attempt.response is not None
    assert request.attempt.response.rejected == 70
    assert client.data == b""


@pytest.mark.parametrize("body", [b'{"error":{"retriable":false}}', b"x" * 100_000])
async def test_other_error_responses_reach_the_client_complete(body: bytes) -> None:
    client, pool = Client(), pool_of(rejection=backpressure.sidecar_rejection, tier=True)
    request = request_of(client)
    leased(pool, request)
    answer = json_answer(body, b"429 No")
    result = await forwarded(request, pool, answer[:60_000], answer[60_000:])
    assert result == Sent(keep_alive=True, outcome=Outcome.ENGINE_ERROR)
    assert client.data.endswith(body)


async def test_cancellation_ends_the_connection_and_the_writer() -> None:
    pool, request = pool_of(), request_of()
    task = asyncio.create_task(Forward().handle(request, pool))
    await asyncio.sleep(0)
    [connection] = pool.connections.opened
    connection.data_received(STREAM[: len(STREAM) // 2])
    protocol: Any = request.http.protocol
    writer = protocol.response
    assert writer.silence_limit_s is not None
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not connection.open
    assert protocol.response is None
    assert writer.silence_limit_s is None
    assert request.attempt.response is not None
    assert not request.attempt.response.complete


async def test_shared_generation_that_reaches_no_engine_waits_again_with_all_its_clients() -> None:
    """Also with one that joined while the connection was opened: nothing of it can stall."""
    broadcast = Broadcast(record_of(), buffer_bytes=1 << 20)
    request, pool = request_of(sink=broadcast), pool_of()
    broadcast.record.admitted = 17
    pool.connections.refuses = ConnectionRefusedError("refused")
    late = request_of()
    writer = ClientWriter(late.http, late.record)
    broadcast.join(writer)
    assert writer.silence_limit_s is not None
    await Forward().handle(request, pool)
    assert writer.silence_limit_s is None
    assert late.record.admitted is None


async def test_attempt_to_connect_is_part_of_the_trace() -> None:
    pool, request = pool_of(), request_of()
    pool.connections.refuses = ConnectionRefusedError("refused")
    request.trace = MagicMock(dispatched=MagicMock(return_value=""))
    await Forward().handle(request, pool)
    request.trace.dispatched.assert_called_once()


def live_responses() -> int:
    return sum(type(each) is EngineResponse for each in gc.get_objects())


async def test_response_is_freed_with_its_request() -> None:
    """Without the garbage collector, which runs seldom here: requests make no cycles."""
    gc.collect()
    before = live_responses()
    gc.disable()
    try:
        await forwarded(request_of(), pool_of(), json_answer(b'{"a":1}'))
        assert live_responses() == before
    finally:
        gc.enable()

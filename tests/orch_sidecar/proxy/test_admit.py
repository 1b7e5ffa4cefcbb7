"""The stages that own the lease and that forward: lease and connection end, whatever happens."""

from __future__ import annotations

import asyncio
import gc
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from orch_sidecar.admission.gate import Ticket
from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.coalescing.broadcast import Broadcast
from orch_sidecar.observability.record import Outcome
from orch_sidecar.pools.parent_leases import ParentLeases
from orch_sidecar.proxy.admit import Admit
from orch_sidecar.proxy.client_writer import ClientWriter
from orch_sidecar.proxy.engine_response import EngineResponse
from orch_sidecar.proxy.forward import Forward
from orch_sidecar.proxy.queue_events import Watchers
from orch_sidecar.proxy.request import NotSent, Request, Result, Retry, Sent
from orch_sidecar.wire import backpressure
from tests.orch_sidecar.broadcasting import STREAM, STREAM_HEAD, chunk, json_answer
from tests.orch_sidecar.proxy.stages import NextStage, asked, pool_of, request_of
from tests.orch_sidecar.records import record_of
from tests.orch_sidecar.relayed import Client
from tests.patience import HANG_S

SENT = Sent(keep_alive=True, outcome=Outcome.OK)


def admit(stage: NextStage) -> Admit:
    return Admit(cast(Forward, stage), cast(ParentLeases, None), cast(Watchers, None))


def response(**more: Any) -> EngineResponse:
    """An engine's response, complete by default."""
    values: dict[str, Any] = {
        "complete": True, "rejected": None, "status": 200, "outcome": Outcome.OK,
        "client_limited": False, "reads": 3, "answer": SimpleNamespace(counts=(5, 7, 4, 1)),
    }  # fmt: skip
    found = EngineResponse(MagicMock(), MagicMock(), events=True)
    for name, value in (values | more).items():
        setattr(found, name, value)
    return found


def answers(result: Result, **more: Any) -> Any:
    """A step of the next stage in which the engine gives this response."""

    def step(request: Request, *_: Any) -> Result:
        request.attempt.response = response(**more)
        return result

    return step


async def test_lease_is_released_after_a_complete_response() -> None:
    stage, pool, request = NextStage(answers(SENT)), pool_of(), request_of()
    assert await admit(stage).handle(request, pool, asked()) is SENT
    [(_, at)] = stage.calls
    assert at is pool
    assert request.attempt.ticket is not None
    assert request.record.lease == request.attempt.ticket.id
    assert request.record.admitted is not None
    assert (request.record.input_tokens, request.record.output_tokens) == (5, 7)
    assert pool.gate.ledger.lease_count == 0
    assert pool.gate.tickets == {}


@pytest.mark.parametrize(
    ("status", "outcome", "tokens"),
    [(200, Outcome.OK, 2), (200, Outcome.ENGINE_ERROR, 2), (400, Outcome.CLIENT_ERROR, None)],
)
async def test_stream_without_usage_has_a_token_per_read_and_an_error_has_none(
    status: int, outcome: Outcome, tokens: int | None
) -> None:
    request, uncounted = request_of(), SimpleNamespace(counts=(None,) * 4)
    request.record.stream, request.record.cost, request.sink = True, 1, MagicMock()
    stage = NextStage(answers(SENT, status=status, outcome=outcome, answer=uncounted))
    await admit(stage).handle(request, pool_of(), asked())
    assert request.record.tokens == tokens


async def test_lease_of_a_response_that_was_cut_short_waits_for_the_engine() -> None:
    stage = NextStage(answers(SENT, complete=False))
    pool, request = pool_of(), request_of()
    await admit(stage).handle(request, pool, asked())
    assert pool.gate.ledger.closing() == [request.record.lease]


@pytest.mark.parametrize(
    ("ask", "reason", "retry"),
    [
        (asked(may_queue=False), Reason.DO_NOT_QUEUE, Retry.OTHER_POOL),
        (asked(5), Reason.COST_EXCEEDS_SLOTS, Retry.NO),
    ],
)
async def test_busy_pool_leaves_the_request_to_another_one(
    ask: Any, reason: Reason, retry: Retry
) -> None:
    pool = pool_of(1)
    pool.gate.open(request_of(), asked())
    result = await admit(NextStage()).handle(request_of(), pool, ask)
    assert isinstance(result, NotSent)
    assert (result.refusal.reason, result.retry) == (reason, retry)
    assert pool.gate.refused[ask.service_class, reason] == 1


@pytest.mark.parametrize(
    ("reasons", "retry"),
    [
        # Both go before the request hears of either.
        ((Reason.ENGINE_STALE, Reason.ENGINE_DOWN), Retry.ANY_POOL),
        ((Reason.QUEUE_TIMEOUT,), Retry.NO),  # it has waited: other pools were no better
    ],
)
async def test_waiting_request_is_placed_again_if_its_engine_goes(
    reasons: tuple[Reason, ...], retry: Retry
) -> None:
    pool = pool_of(1)
    pool.gate.open(request_of(), asked())
    task = asyncio.create_task(admit(NextStage()).handle(request_of(), pool, asked()))
    await asyncio.sleep(0)
    for reason in reasons:
        refusal = Refusal(reason, "away")
        pool.gate.engine_unavailable(refusal)
        pool.gate.refuse_queued(refusal)
    result = await task
    assert isinstance(result, NotSent)
    assert (result.refusal.reason, result.retry) == (reasons[0], retry)


async def test_rejected_request_is_queued_again_and_gets_another_lease() -> None:
    rejected = NotSent(Refusal(Reason.QUEUE_FULL, "full"), Retry.REQUEUE)
    leases: list[str | None] = []

    def seen(step: Any) -> Any:
        def seeing(request: Request, *more: Any) -> Result:
            leases.append(request.record.lease)
            result: Result = step(request, *more)
            return result

        return seeing

    stage = NextStage(seen(answers(rejected, rejected=20)), seen(answers(SENT)))
    pool, request = pool_of(), request_of()
    assert await admit(stage).handle(request, pool, asked()) is SENT
    assert len(stage.calls) == len(set(leases)) == 2
    assert request.record.lease == leases[-1]
    assert pool.gate.ledger.lease_count == 0


async def test_rejected_request_that_was_cancelled_is_not_queued_again() -> None:
    rejected = NotSent(Refusal(Reason.QUEUE_FULL, "full"), Retry.REQUEUE)
    request, pool = request_of(), pool_of()
    request.cancelled = Refusal(Reason.CANCELLED, "cancelled")
    stage = NextStage(answers(rejected, rejected=20))
    assert await admit(stage).handle(request, pool, asked()) is rejected
    assert pool.gate.ledger.lease_count == 0


@pytest.mark.parametrize(("output_tokens", "learned"), [(None, 8), (7, 7)])
async def test_stream_without_usage_counts_a_token_per_read(
    output_tokens: int | None, learned: int
) -> None:
    pool, request = pool_of(), request_of()
    pool.gate.controller.release = MagicMock(return_value=[])
    request.record.stream, request.record.cost = True, 1
    counts = SimpleNamespace(counts=(None, output_tokens, None, None))
    await admit(NextStage(answers(SENT, answer=counts, reads=9))).handle(request, pool, asked())
    assert pool.gate.controller.release.call_args.args[2] == learned


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

"""The stage that owns the lease: it is released correctly, whatever the next stage does."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.observability.record import Outcome
from orch_sidecar.pools.parent_leases import ParentLeases
from orch_sidecar.proxy.admit import Admit
from orch_sidecar.proxy.engine_response import EngineResponse
from orch_sidecar.proxy.forward import Forward
from orch_sidecar.proxy.queue_events import Watchers
from orch_sidecar.proxy.request import NotSent, Request, Result, Retry, Sent
from tests.orch_sidecar.proxy.stages import NextStage, asked, pool_of, request_of

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

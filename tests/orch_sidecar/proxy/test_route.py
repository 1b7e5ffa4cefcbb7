"""The stage that routes requests: the order of pools, and the refusal if all fail."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orch_sidecar.api.options import NO_OPTIONS
from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.observability.record import Outcome
from orch_sidecar.pools.discovery import REBALANCED
from orch_sidecar.proxy.in_flight import CANCELLED
from orch_sidecar.proxy.request import NotSent, Result, Retry, Sent
from orch_sidecar.proxy.route import Route, WaitingRoom
from tests.orch_sidecar.proxy.stages import NextStage, asked, pool_of, request_of
from tests.patience import HANG_S

SENT = Sent(keep_alive=True, outcome=Outcome.OK)
LOST = Refusal(Reason.ENGINE_FAILED, "lost")
STALE = Refusal(Reason.ENGINE_STALE, "stale")
BUSY = Refusal(Reason.QUEUE_TIMEOUT, "busy")


class Pools:
    """Pools chosen in the order of their names; `refusal`: when none is left."""

    def __init__(self, *names: str, refusal: Refusal = BUSY) -> None:
        self.pools = [pool_of(name=name, group=name) for name in names]
        self.one = self.pools[0] if len(names) == 1 else None
        self.refusal = refusal
        self.tried: list[set[str] | None] = []
        self.longest_s = 0.0

    def longest_wait_s(self, call: Any, refusal: Refusal, spent_ms: float, waiting: int) -> float:
        return self.longest_s

    def read_prefixes(self, call: Any, body: bytes) -> None:
        return

    def choose(self, call: Any, spent_ms: float, tried: Any = None) -> Any:
        self.tried.append(None if tried is None else set(tried))
        left = [pool for pool in self.pools if pool.name not in (tried or ())]
        return (left[0], asked(), "test") if left else self.refusal


def request(*, refers: bool = False, **more: Any) -> Any:
    call = SimpleNamespace(options=NO_OPTIONS, refers=refers)
    return request_of(call=cast(Any, call), **more)


async def routed(
    pools: Pools, stage: NextStage, asking: Any = None, room: WaitingRoom | None = None
) -> Result:
    room = WaitingRoom() if room is None else room
    route = Route(cast(Any, stage), cast(Any, None), cast(Any, pools), cast(Any, None), room)
    return await route.handle(asking or request())


def names(stage: NextStage) -> list[str]:
    return [pool.name for _, pool, *_ in stage.calls]


async def test_single_pool_is_not_chosen() -> None:
    pools, stage = Pools("a"), NextStage(SENT)
    assert await routed(pools, stage) is SENT
    assert pools.tried == []


async def test_next_pool_serves_what_the_first_could_not() -> None:
    pools, stage = Pools("a", "b"), NextStage(NotSent(STALE, Retry.OTHER_POOL), SENT)
    asking = request()
    assert await routed(pools, stage, asking) is SENT
    assert names(stage) == ["a", "b"]
    assert pools.tried == [None, {"a"}]


async def test_request_of_a_lost_engine_is_retried_once() -> None:
    lost = NotSent(LOST, Retry.OTHER_POOL, reached_engine=True)
    stage = NextStage(lost, lost)
    result = await routed(Pools("a", "b", "c"), stage)
    assert names(stage) == ["a", "b"]
    assert result == NotSent(LOST)


@pytest.mark.parametrize("first", [STALE, BUSY])
async def test_busy_pool_determines_the_refusal(first: Refusal) -> None:
    """A 429, because the client should retry: the 503 of a failed pool would mislead it."""
    stage = NextStage(NotSent(first, Retry.OTHER_POOL), NotSent(STALE, Retry.OTHER_POOL))
    result = await routed(Pools("a", "b", refusal=BUSY), stage)
    assert isinstance(result, NotSent)
    assert result.refusal is BUSY


async def test_refusal_of_the_pool_that_was_tried_stays_where_no_other_is_up() -> None:
    down = Refusal(Reason.ENGINE_DOWN, "down")
    stage = NextStage(*2 * [NotSent(STALE, Retry.OTHER_POOL)])
    result = await routed(Pools("a", "b", refusal=down), stage)
    assert isinstance(result, NotSent)
    assert result.refusal is STALE
    pools = Pools("a", "b", refusal=down)

    def all_leave(*_: Any) -> Result:
        pools.pools.clear()
        return NotSent(REBALANCED, Retry.ANY_POOL)

    result = await routed(pools, NextStage(all_leave))
    assert isinstance(result, NotSent)
    assert result.refusal is down, "it was refused by none before"


async def test_lost_engine_takes_precedence_over_other_reasons() -> None:
    stage = NextStage(
        NotSent(LOST, Retry.OTHER_POOL, reached_engine=True), NotSent(BUSY, Retry.OTHER_POOL)
    )
    result = await routed(Pools("a", "b"), stage)
    assert isinstance(result, NotSent)
    assert result.refusal is LOST


async def test_request_that_moves_to_another_address_is_routed_again_once() -> None:
    asking = request()
    stage = NextStage(NotSent(REBALANCED, Retry.ANY_POOL), SENT)
    pools = Pools("a", "b")
    assert await routed(pools, stage, asking) is SENT
    assert asking.moved
    assert pools.tried == [None, set()]


async def test_cancelled_request_is_not_routed_again() -> None:
    asking = request()

    def is_cancelled(*_: Any) -> Result:
        asking.cancelled = CANCELLED
        return NotSent(CANCELLED, Retry.OTHER_POOL)

    stage = NextStage(is_cancelled)
    result = await routed(Pools("a", "b"), stage, asking)
    assert names(stage) == ["a"]
    assert isinstance(result, NotSent)


async def test_excluded_pools_are_not_chosen() -> None:
    stage = NextStage(SENT)
    await routed(Pools("a", "b"), stage, request(excluded=frozenset({"a"})))
    assert names(stage) == ["b"]


async def test_request_that_leaves_out_the_pool_that_works_waits_for_no_other() -> None:
    pools = Pools("works", "away", refusal=STALE)
    pools.longest_s = HANG_S
    result = await routed(pools, NextStage(), request(excluded=frozenset({"works", "away"})))
    assert result == NotSent(STALE, Retry.OTHER_POOL), "the stage before it may ask that one"


async def test_failure_of_one_attempt_is_not_that_of_the_next() -> None:
    """A client that leaves while it waits for the second pool left of itself."""
    asking = request()

    def fails(request: Any, *_: Any) -> Result:
        request.attempt.failure = LOST
        return NotSent(LOST, Retry.OTHER_POOL, reached_engine=True)

    stage = NextStage(fails, asyncio.CancelledError())
    with pytest.raises(asyncio.CancelledError):
        await routed(Pools("a", "b"), stage, asking)
    assert asking.attempt.failure is None


@pytest.mark.parametrize("first", ["back", "cancelled"])
async def test_request_that_is_cancelled_as_a_pool_is_back_is_not_placed(first: str) -> None:
    """It would take a place in the queue of that pool, and its client would wait for it."""
    pools, stage, room, asking = Pools(), NextStage(SENT), WaitingRoom(), request()
    pools.longest_s = HANG_S
    waits = asyncio.create_task(routed(pools, stage, asking, room))
    await asyncio.sleep(0)
    assert len(room) == 1
    pools.pools.append(pool_of())
    if first == "back":
        room.open()
    asking.cancel(CANCELLED)
    room.open()
    result = await waits
    assert isinstance(result, NotSent)
    assert result.refusal is CANCELLED
    assert stage.calls == []

"""Chooses a pool for a request, and the next one if the first could not serve it.

An engine that is lost with a request may have been lost because of it: such a request goes to
one other pool, and never to a third.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Coroutine
from typing import Any

from orch_sidecar.api.body_outline import LARGE_BYTES
from orch_sidecar.api.generation import GenerationRequest
from orch_sidecar.api.refusal import Refusal
from orch_sidecar.pools.registry import Placement, PoolRegistry
from orch_sidecar.proxy.admit import Admit
from orch_sidecar.proxy.forward import Forward
from orch_sidecar.proxy.request import Attempt, NotSent, Request, Result, Retry, Sent
from orch_sidecar.wire.request_body import BodyReader, model_of


class _PoolWait:
    """The wait of a request until a pool is back."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def end(self, is_back: bool) -> None:
        if not self.ended.done():
            self.ended.set_result(is_back)

    def refuse(self, _: Refusal) -> bool:
        self.end(False)
        return True

    def place(self, _: float) -> None:
        """It is in no queue."""


class WaitingRoom:
    """Requests that no pool can take now, while one is expected back.

    Each is placed again when a pool takes requests, in the order of arrival. Requests that wait for
    slots are in the queue of their pool; a pool that is away has no queue where others may serve
    instead. Lives on one event loop.
    """

    def __init__(self) -> None:
        self._waiting: dict[_PoolWait, None] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def open(self) -> None:
        """Ends all waits: a pool takes requests."""
        for each in self._waiting:
            each.end(True)

    async def wait(self, attempt: Attempt, longest_s: float) -> bool:
        """Waits until a pool takes requests. False: none does within that time, or the request is
        cancelled."""
        wait = attempt.waiting = _PoolWait()
        self._waiting[wait] = None
        timer = asyncio.get_running_loop().call_later(longest_s, wait.end, False)
        try:
            return await wait.ended
        finally:
            timer.cancel()
            attempt.waiting = None
            del self._waiting[wait]


class Route:
    """The stage that places requests on pools."""

    def __init__(
        self,
        admit: Admit,
        forward: Forward,
        pools: PoolRegistry,
        bodies: BodyReader,
        room: WaitingRoom,
    ) -> None:
        """`forward`: for requests that occupy no slot. `room`: opens when a pool is back."""
        self._admit = admit
        self._forward = forward
        self._pools = pools
        self._bodies = bodies
        self._room = room

    def handle(self, request: Request) -> Coroutine[Any, Any, Result]:
        """Places a request that generates; without a choice if there is only one pool."""
        pool, call = self._pools.one, request.call
        assert call is not None
        if pool is None or not call.options.empty:
            return self._place(request, call)
        ask = pool.admission_request(call, 0.0)
        return self._admit.handle(request, pool, ask)

    async def _place(self, request: Request, call: GenerationRequest) -> Result:
        """Places a request, and again as long as another pool may serve it."""
        pools = self._pools
        request.may_be_elsewhere = call.refers and pools.one is None
        pools.read_prefixes(call, request.body)
        tried = set(request.excluded)
        chosen = await self._choose(request, call, tried or None)
        if isinstance(chosen, Refusal):
            return no_pool(request, None, chosen)
        refusal: Refusal | None = None
        while True:
            pool, ask, why = chosen
            result = await self._admit.handle(request, pool, ask, why)
            if isinstance(result, Sent) or request.cancelled is not None:
                return result
            last = result.reached_engine and _is_last(request, result)
            request.loss = result.refusal if result.reached_engine else request.loss
            if last:
                return NotSent(result.refusal)
            if result.refusal.moved:
                request.moved = True
            elif refusal is None or refusal.status != 429:
                refusal = result.refusal  # the client is told that the best pool was busy
            if refusal is not None and (result.retry is Retry.NO or pools.one is not None):
                return NotSent(request.loss or refusal)
            if result.retry is Retry.OTHER_POOL:
                tried.add(pool.name)
            again = await self._choose(request, call, tried)
            if isinstance(again, Refusal):
                return no_pool(request, refusal, again)
            chosen = again
            request.begin_attempt(result.refusal.reason)

    async def _choose(
        self, request: Request, call: GenerationRequest, tried: Collection[str] | None
    ) -> Placement | Refusal:
        """Chooses a pool. Where none takes the request and one is expected back in time, waits."""
        record, pools, room, is_last = request.record, self._pools, self._room, False
        while True:
            if request.cancelled is not None:
                return request.cancelled
            chosen = pools.choose(call, record.spent_ms(), tried)
            if is_last or not isinstance(chosen, Refusal):
                return chosen
            longest_s = pools.longest_wait_s(call, chosen, record.spent_ms(), len(room))
            if longest_s <= 0 or (request.excluded and self._serves(call, record.spent_ms())):
                return chosen
            if record.queued is None:
                record.queued, record.queue_position = time.monotonic_ns(), len(room)
                record.predicted_start_ms = chosen.predicted_start_ms
            is_last = not await room.wait(request.attempt, longest_s)

    def _serves(self, call: GenerationRequest, spent_ms: float) -> bool:
        """Whether any pool takes a request that leaves some out."""
        return not isinstance(self._pools.choose(call, spent_ms), Refusal)

    async def handle_unadmitted(self, request: Request) -> Result:
        """Forwards a request that occupies no slot to the first pool that can take it."""
        model = ""
        if self._pools.one is None and request.endpoint.method == "POST":
            if len(request.body) <= LARGE_BYTES:
                model = model_of(request.body)
            else:
                found = await self._bodies.read_large(
                    request.body, lambda body, outlined: model_of(body)
                )
                model = found if isinstance(found, str) else ""
        request.may_be_elsewhere = request.endpoint.stored and self._pools.one is None
        tried: list[str] = []
        refusal: Refusal | None = None
        while True:
            pool = self._pools.choose_unadmitted(model, request.options, tried)
            if isinstance(pool, Refusal):
                return NotSent(refusal or pool)
            request.record.pool, request.record.labels = pool.name, pool.labels
            result = await self._forward.handle(request, pool)
            if (
                isinstance(result, Sent)
                or not request.may_be_elsewhere
                or request.cancelled is not None
            ):
                return result
            refusal = result.refusal
            tried.append(pool.name)
            request.begin_attempt()


def _is_last(request: Request, result: NotSent) -> bool:
    """Whether a request of which an engine was lost is not tried again."""
    # A parent sidecar may ask one other pool, too: this one then asks none.
    return result.retry is Retry.NO or bool(request.loss or request.parent_lease)


def no_pool(request: Request, before: Refusal | None, refusal: Refusal) -> NotSent:
    """Returns the refusal of a request that no pool takes, after that of one which was tried."""
    if request.cancelled is not None:
        return NotSent(request.cancelled)
    if before is None or refusal.status == 429:
        before = refusal  # a working pool is busy: the client should come back
    return NotSent(request.loss or before, Retry.OTHER_POOL)

"""Shows waiting clients that ask for it (`X-Orch-Queue-Events: sse`) their places in the queue.

`QueueResponse` decides what such a client is sent.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Final

from orch_sidecar.pools.pool import Pool
from orch_sidecar.pools.registry import PoolRegistry
from orch_sidecar.proxy.queue_response import QueueResponse
from orch_sidecar.proxy.request import Request

logger = logging.getLogger("orch.sidecar")

LOOK_EVERY_S: Final = 0.25
# Clients that are shown their places before the event loop runs again.
_CLIENTS_PER_TURN: Final = 256


class Watchers:
    """The clients that watch the queue. Has a task while there are any."""

    def __init__(self, pools: PoolRegistry) -> None:
        self._pools = pools
        # The request that waits for each client's: another one where a generation is shared.
        self._watched: dict[Request, Request] = {}
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None

    def response_of(self, request: Request) -> QueueResponse:
        """Returns the response to the client of a request. Raises CancelledError if it is gone."""
        if request.queue_response is None:
            request.sink = request.queue_response = QueueResponse(request.http, request.record)
        return request.queue_response

    def watch(self, request: Request, waiting: Request) -> None:
        """Shows the client of `request` the progress of `waiting`, until its stream begins.

        Raises CancelledError if the client is gone.
        """
        self.response_of(request)
        self._watched[request] = waiting
        # In the next turn of the event loop it is queued, or has its slots already.
        self._loop.call_soon(self._show, request)
        if self._task is None:
            self._task = self._loop.create_task(self._run(), name="show places in queues")

    async def close(self) -> None:
        """Ends the task."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            while self._watched:
                await asyncio.sleep(LOOK_EVERY_S)
                for number, request in enumerate(list(self._watched), 1):
                    self._show(request)
                    if number % _CLIENTS_PER_TURN == 0:
                        await asyncio.sleep(0)
        finally:
            self._task = None

    def _show(self, request: Request) -> None:
        """Shows one client its place; forgets it when its stream has begun or its request ended."""
        waiting, response = self._watched.get(request), request.queue_response
        if waiting is None or response is None:
            return
        if response.started or request.record.ended or response.transport.is_closing():
            del self._watched[request]
            return
        try:
            self._show_place(response, request, waiting)
        # A client that is shown nothing must not keep the others from it.
        except Exception:
            logger.exception("a place in a queue could not be shown")
            del self._watched[request]

    def _show_place(self, response: QueueResponse, request: Request, waiting: Request) -> None:
        now, record = self._loop.time(), waiting.record
        if waiting.attempt.waiting is None:
            if request.record.admitted is not None:
                response.show_slots(now)
            return
        assert record.pool is not None, "it waits at a gate"
        pool = self._pools[record.pool]
        position, start_ms = waiting.place(now)
        if not response.has_begun:
            if waiting is not request:
                request.record.copy_generation(record)
            _pin(request, pool)
            _pin(waiting, pool)
        response.show_place(pool, position, start_ms, now)


def _pin(request: Request, pool: Pool) -> None:
    """Keeps a request at pools of the measurement type that its response is about to have."""
    call = request.call
    assert call is not None
    if call.options.measurement_type is None:
        measurement_type = pool.profile.measurement_type
        call.options = replace(call.options, measurement_type=measurement_type, labelled=True)

"""Identical requests, one decode: who shares which, and what becomes of it.

A request that one decode can answer for others, too, does not go to the engine itself. A decode
is begun for it, which belongs to nobody and has a task of its own; it joins that, and so do those
that come after it and want the same. So whoever leaves, the others have their answer, and the
decode is given up when nobody is left. Knows neither pools' queues nor how an answer is passed on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Final, cast

import aiohttp
from aiohttp import web

from orch_sidecar.admission import refusals
from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.coalescing.shared_decode import Key, SharedGeneration, key_of, limited
from orch_sidecar.coalescing.subscriber import Subscriber
from orch_sidecar.observability.metrics import Metrics
from orch_sidecar.observability.record import RequestRecord
from orch_sidecar.pools.pool import Wanted
from orch_sidecar.pools.registry import PoolRegistry
from orch_sidecar.proxy.admit import CLOSE, KEEP, Failed
from orch_sidecar.proxy.answering import Relayed, how_ended
from orch_sidecar.proxy.request import Request, fields
from orch_sidecar.proxy.stall_watchdog import StallWatchdog
from orch_sidecar.wire.client_connection import ClientConnection

logger = logging.getLogger("orch.sidecar")

_NONE: Final = frozenset[str]()

# They are about the place in the queue that the decode had, and not about who joined it later.
_OF_ITS_PLACE: Final = frozenset(
    {
        Reason.QUEUE_TIMEOUT,
        Reason.DEADLINE_MISS,
        Reason.SLO_MISS,
        Reason.QUEUE_FULL_DROP_LRU,
    }
)


class Coalescer:
    """The decodes that are shared now."""

    def __init__(
        self,
        pools: PoolRegistry,
        watch: StallWatchdog,
        metrics: Metrics,
        generate: Callable[[Request, Wanted], Awaitable[web.StreamResponse | Failed]],
    ) -> None:
        """`generate`: serves a request by itself, or says what failed it."""
        self._pools = pools
        self._watch = watch
        self._metrics = metrics
        self._generate = generate
        self._by_key: dict[Key, SharedGeneration] = {}
        self._decodes: set[SharedGeneration] = set()
        self._loop = asyncio.get_running_loop()

    async def serve(self, request: Request, wanted: Wanted) -> web.StreamResponse | Failed:
        """Serves a request whose decode could be another's, too."""
        record, key = request.record, key_of(request, wanted)
        while True:
            if request.http.transport is None:
                raise asyncio.CancelledError  # its client is gone, and aiohttp is about to say so
            shared = self._open(key)
            leads = shared is None or not shared.takes(wanted)
            if shared is None or leads:
                barred = self._barred(wanted, record)
                # One that only this request cannot join stays where others find it.
                if barred is None or (shared is not None and limited(wanted.options)):
                    return await self._generate(request, wanted)
                shared = self._begin(key, request, wanted, barred)
            follower, ending = await self._follow(shared, request, coalesced=not leads)
            failure = ending.failure
            if failure is None or ending.answered:
                return KEEP if follower.keep_alive else CLOSE
            if request.cancelled is not None:
                return Failed(request.cancelled)
            if shared.elsewhere:
                return await self._apart(shared, request, wanted, failure)
            again = None if leads else self._again(shared, record, wanted, failure)
            if again is None:
                return Failed(failure)
            wanted = again
            record.begin_again()

    async def close(self) -> None:
        """Ends the decodes that are left."""
        tasks = [shared.task for shared in self._decodes if shared.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _open(self, key: Key) -> SharedGeneration | None:
        """The decode of that key, if more requests can be taken in."""
        shared = self._by_key.get(key)
        if shared is None or not shared.fanout.joinable:
            return None
        name = shared.request.record.pool
        away = self._pools.draining if name is None else self._pools[name].unavailable is not None
        return None if away else shared

    def _barred(self, wanted: Wanted, record: RequestRecord) -> frozenset[str] | None:
        """The pools that share no decodes. None: the request goes to one of these."""
        if self._pools.one is not None:
            return _NONE
        barred = frozenset(
            pool.group for pool in self._pools if not pool.gate.core.rules.coalescing
        )
        if barred:
            chosen = self._pools.choose(wanted, record.spent_ms())
            if not isinstance(chosen, Refusal) and chosen.pool.group in barred:
                return None
        return barred

    def _begin(
        self, key: Key, request: Request, wanted: Wanted, barred: frozenset[str]
    ) -> SharedGeneration:
        shared = SharedGeneration(key, request, wanted, barred, self._abandoned)
        shared.task = self._loop.create_task(self._decode(shared))
        self._by_key[key] = shared
        self._decodes.add(shared)
        return shared

    async def _decode(self, shared: SharedGeneration) -> None:
        record, fanout = shared.request.record, shared.fanout
        try:
            outcome = await self._generate(shared.request, shared.wanted)
            if isinstance(outcome, Failed):
                record.outcome = outcome.refusal.reason
                shared.elsewhere = outcome.elsewhere and bool(shared.request.barred)
                fanout.fail(outcome.refusal)
        except asyncio.CancelledError:
            fanout.fail(refusals.shutting_down())  # where it is not for want of clients
            raise
        except Exception:
            logger.exception("a shared decode failed")
            record.outcome, record.status = Reason.INTERNAL_ERROR, 500
            fanout.fail(Refusal(Reason.INTERNAL_ERROR, "an error of the sidecar; its log has it"))
        finally:
            self._forget(shared)
            self._metrics.generation_ended(record)
            shared.request.trace.ended()

    def _abandoned(self, shared: SharedGeneration) -> None:
        """Nobody wants it any more."""
        self._forget(shared)  # here, too: a task that is cancelled before it ran does nothing
        assert shared.task is not None
        shared.task.cancel()

    def _forget(self, shared: SharedGeneration) -> None:
        self._decodes.discard(shared)
        if self._by_key.get(shared.key) is shared:
            del self._by_key[shared.key]

    async def _follow(
        self, shared: SharedGeneration, request: Request, *, coalesced: bool
    ) -> tuple[Subscriber, Relayed]:
        """Gives the client of this request its answer, for as long as it is there."""
        http, record, fanout = request.http, request.record, shared.fanout
        client, transport = cast(ClientConnection, http.protocol), http.transport
        assert transport is not None  # it was there in this turn of the event loop
        record.shared, record.coalesced = True, coalesced
        if coalesced:
            request.trace.joined(shared.request.trace)
            request.body = shared.request.body  # as good as its own, which is kept no longer
        http11 = http.version >= aiohttp.HttpVersion11
        follower = fanout.join(
            transport,
            record,
            partial(self._fields, shared, record),
            http10=not http11,
            keep_alive=http.keep_alive and http11 and not self._pools.draining,
        )
        client.relay = follower
        if fanout.admitted:
            self._watch.add(follower)
        try:
            follower.start(paused=client.writing_paused)
            ending = await follower.done
            if ending.failure is None:
                record.outcome = how_ended(record, fanout.answer)
            return follower, ending
        finally:
            client.relay = None
            self._watch.discard(follower)
            follower.leave()
            shared.tell(record)

    def _fields(self, shared: SharedGeneration, record: RequestRecord) -> bytes:
        """Our fields of an answer's head, which is about to be written."""
        decode = shared.request.record
        if decode.first_byte is None:
            decode.first_byte = time.monotonic_ns()
        shared.tell(record)
        assert decode.pool is not None
        return fields(record, self._pools[decode.pool])

    async def _apart(
        self, shared: SharedGeneration, request: Request, wanted: Wanted, failure: Refusal
    ) -> web.StreamResponse | Failed:
        """Serves it by itself, where the shared decode was not to go."""
        record, barred = request.record, shared.request.barred
        record.begin_again()
        request.barred = frozenset(pool.group for pool in self._pools) - barred
        request.lost = shared.request.lost
        outcome = await self._generate(request, wanted)
        return Failed(request.lost or failure) if isinstance(outcome, Failed) else outcome

    def _again(
        self, shared: SharedGeneration, record: RequestRecord, wanted: Wanted, failure: Refusal
    ) -> Wanted | None:
        """What it still wants, if the failure is not its own and there is time left; else None.

        It waits no longer than it would have waited by itself, counted from its arrival.
        """
        name = shared.request.record.pool
        if failure.reason not in _OF_ITS_PLACE or name is None:
            return None
        rules = self._pools[name].gate.core.rules
        limit_ms = 1000 * rules.of(shared.wanted.service_class).max_wait_s
        if record.spent_ms() >= limit_ms:
            return None
        given = wanted.options
        own_ms = limit_ms if given.max_wait_ms is None else min(given.max_wait_ms, limit_ms)
        return replace(wanted, options=replace(given, max_wait_ms=own_ms))

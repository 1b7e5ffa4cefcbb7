"""One request at one pool: slots, a connection to the engine, the answer, the end of the lease.

What it cannot do it returns, and whether another pool might: the caller decides. Every lease is
given back in the one `finally` of `relay`, whatever happened.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import aiohttp
from aiohttp import web

from orch_sidecar.admission.ledger import Lease
from orch_sidecar.admission.types import AdmissionRequest, Queued
from orch_sidecar.api.body_outline import LARGE_BYTES
from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.coalescing.broadcast import Broadcast
from orch_sidecar.observability.record import Outcome
from orch_sidecar.pools.parent_leases import ParentLeases
from orch_sidecar.pools.pool import Pool
from orch_sidecar.pools.rebalancer import MOVED
from orch_sidecar.proxy.answering import how_ended
from orch_sidecar.proxy.client_writer import Relay
from orch_sidecar.proxy.engine_response import Decode
from orch_sidecar.proxy.request import Request, fields
from orch_sidecar.proxy.stall_watchdog import StallWatchdog
from orch_sidecar.wire import backpressure
from orch_sidecar.wire.client_connection import ClientConnection, Written

KEEP: Final = Written(keep_alive=True)
CLOSE: Final = Written(keep_alive=False)

# Said at once by a pool that is busier than it was thought to be: another may be less so.
_BUSY: Final = frozenset(
    {
        Reason.QUEUE_FULL,
        Reason.QUEUE_TIMEOUT,
        Reason.SLO_MISS,
        Reason.DEADLINE_MISS,
        Reason.DO_NOT_QUEUE,
    }
)
_OK: Final = Outcome.OK  # bound once: looking up a member of an enum is slow
_NOWHERE: Final = frozenset[Reason]()


@dataclass(frozen=True, slots=True)
class Failed:
    """It came to nothing, and the client knows nothing of it yet.

    `elsewhere`: another pool may be asked. `tried`: and not this one again. `sent`: this one's
    engine had got the request.
    """

    refusal: Refusal
    elsewhere: bool = False
    tried: bool = True
    sent: bool = False


@dataclass(frozen=True, slots=True)
class TurnedAway:
    """It has not been taken below, and may be later: it waits up here."""

    reason: Reason


class Attempts:
    """Attempts of all requests."""

    def __init__(self, watch: StallWatchdog, leases: ParentLeases) -> None:
        """`leases`: those of sidecars above."""
        self._watch = watch
        self._leases = leases
        self._loop = asyncio.get_running_loop()

    async def run(
        self, request: Request, pool: Pool, ask: AdmissionRequest
    ) -> web.StreamResponse | Failed:
        """Asks the pool for slots, waits for them if it must, and relays the answer."""
        gate, since_s = pool.gate, self._loop.time()
        ticket = gate.open(request, ask.cost)
        try:
            got = gate.ask(ticket, ask)
            elsewhere: Collection[Reason] = _BUSY
            if type(got) is Queued:
                record = request.record
                record.queued = time.monotonic_ns()
                record.queue_position = got.position
                record.predicted_start_ms = got.predicted_start_ms
                elsewhere = _NOWHERE
                got = await self._wait(request, pool, ticket, ask)
            while type(got) is Lease:
                if request.presence is not None:
                    self._leases.granted(request.presence, gate.core.ledger, got)
                outcome = await self.relay(request, pool, got)
                if not isinstance(outcome, TurnedAway):
                    return outcome
                if request.cancelled is not None:
                    return Failed(request.cancelled)
                elsewhere = _NOWHERE
                request.trace.retried(outcome.reason)
                gate.close(ticket)
                ticket = gate.open(request, ask.cost)
                got = await self._put_back(request, pool, ticket, ask, since_s)
            assert isinstance(got, Refusal)
            return _refused(pool, ask, got, elsewhere)
        finally:
            request.ticket = None  # first: what `close` should fail to end is found by that
            gate.close(ticket)

    async def _put_back(
        self, request: Request, pool: Pool, ticket: str, ask: AdmissionRequest, since_s: float
    ) -> Lease | Refusal:
        """Waits at the head of the queue, after it was turned away below."""
        record = request.record
        record.queued = record.queued or time.monotonic_ns()
        record.admitted = record.predicted_start_ms = None
        away = pool.gate.core.unavailable
        if away is not None and not pool.keeps_queue:
            return away  # who waited there was told so before this one came back
        back = pool.gate.put_back(ticket, ask, since_s)
        if isinstance(back, Refusal):
            return back
        return await self._wait(request, pool, ticket, ask)

    async def _wait(
        self, request: Request, pool: Pool, ticket: str, ask: AdmissionRequest
    ) -> Lease | Refusal:
        """Waits for the slots."""
        request.waiting = pool.gate, ticket
        if pool.group != pool.name and not request.moved and request.options.pool != pool.name:
            pool.movable[ticket] = ask.service_class, ask.cost
        try:
            return await pool.gate.wait(ticket)
        except asyncio.CancelledError:
            pool.turned_down[ask.service_class, Outcome.CANCELLED.value] += 1
            raise
        finally:
            request.waiting = None
            pool.movable.pop(ticket, None)

    async def relay(
        self, request: Request, pool: Pool, lease: Lease | None
    ) -> web.StreamResponse | Failed | TurnedAway:
        """Sends the request to the engine and its answer to the client; gives the lease back."""
        http, record, core = request.http, request.record, pool.gate.core
        client: ClientConnection = http.protocol  # type: ignore[assignment]
        shared = request.fanout
        relay: Relay | None = None
        receiver: Relay | Decode | None = None
        written = complete = served = False
        output_tokens: int | None = None
        if lease is not None:
            record.admitted = time.monotonic_ns()
            record.lease = lease.id
            if shared is not None:
                self._admit(shared, pool, record.admitted)
        try:
            head = request.head(pool, lease)
            connection = pool.connections.take()
            if connection is None:
                try:
                    connection = await pool.connections.acquire()
                except (OSError, TimeoutError) as error:
                    return _unsent(request, pool, pool.unreachable(error))
            if lease is not None and (core.unavailable or not core.ledger.holds(lease.id)):
                connection.close()  # the engine went while we waited; this may be its successor
                gone = Refusal(Reason.ENGINE_DOWN, "the engine was restarted")
                return _unsent(request, pool, core.unavailable or gone)
            if request.cancelled is not None:
                pool.connections.give_back(connection)
                return Failed(request.cancelled)
            turned_away = None if lease is None else pool.turned_away
            if shared is not None:
                receiver = Decode(shared, pool.connections, turned_away=turned_away)
            else:
                transport = http.transport
                if transport is None:
                    connection.close()
                    raise asyncio.CancelledError
                http11 = http.version >= aiohttp.HttpVersion11
                receiver = relay = Relay(
                    transport,
                    pool.connections,
                    record,
                    fields(record, pool),
                    not http11,
                    http.keep_alive and http11 and not core.draining,
                    turned_away,
                )
                client.relay = relay
                self._watch.add(relay)
            written = True
            if len(request.body) <= LARGE_BYTES:
                receiver.start(connection, head + request.body)
            else:
                receiver.start(connection, head, request.body)  # a body is here only once
            if relay is not None and client.writing_paused:
                relay.pause()  # it is full of an earlier answer, to a request sent ahead
            ending = await receiver.done
            if isinstance(receiver, Decode):
                record.status = receiver.status
            complete = ending.failure is None
            if ending.failure is not None:
                record.outcome = ending.failure.reason
                if not ending.answered:
                    return Failed(ending.failure, elsewhere=receiver.unanswered, sent=True)
            elif receiver.retry_after_ms is not None:
                # Before the lease is given back: nobody else is to be sent down there now.
                pool.gate.turned_away(min(receiver.retry_after_ms, backpressure.LONGEST_PAUSE_MS))
                return TurnedAway(Reason.QUEUE_FULL if pool.tier else Reason.ENGINE_DOWN)
            else:
                served = True
                answer = receiver.answer
                record.outcome = outcome = how_ended(record, answer)
                if outcome is _OK and lease is not None and record.status == 200:
                    record.input_tokens, record.output_tokens = answer.counts
                    record.held_up = receiver.was_paused  # it took the time of its client
                    if not record.held_up and core.outlook.learns(self._loop.time()):
                        output_tokens = _learn(request, pool, receiver)
            return KEEP if relay is None or relay.keep_alive else CLOSE
        finally:
            if receiver is not None:
                receiver.stop()
            if relay is not None:
                client.relay = None
                self._watch.discard(relay)
            elif shared is not None:
                self._withdraw(shared)
            if lease is not None:
                if complete or not written:
                    pool.gate.release(lease.id, output_tokens, served=served)
                else:
                    pool.gate.abandon(lease.id)

    def _admit(self, shared: Broadcast, pool: Pool, at: int) -> None:
        """Before that its clients wait for a slot: nothing could move for them."""
        shared.admit(at)
        for follower in shared.followers:
            self._watch.add(follower)
            if pool.gate.core.draining:
                follower.close_after()

    def _withdraw(self, shared: Broadcast) -> None:
        """Its clients wait again, if they know of no answer and may still get one."""
        if shared.untouched and not shared.log.ended:
            shared.withdraw()
            for follower in shared.followers:
                self._watch.discard(follower)


def _refused(
    pool: Pool, ask: AdmissionRequest, refusal: Refusal, elsewhere: Collection[Reason]
) -> Failed:
    """The pool has no slots for it. When the pool itself is away, all who wait are told so."""
    if refusal is MOVED:
        return Failed(refusal, elsewhere=True, tried=False)
    pool.turned_down[ask.service_class, refusal.reason.value] += 1
    if refusal is pool.gate.core.unavailable:
        return Failed(refusal, elsewhere=True, tried=False)
    return Failed(refusal, elsewhere=refusal.reason in elsewhere)


def _unsent(request: Request, pool: Pool, refusal: Refusal) -> Failed | TurnedAway:
    """Nothing of it was written. Who has waited for this pool alone waits for its return, too."""
    if pool.keeps_queue and request.record.queued is not None:
        pool.gate.turned_away(backpressure.LONGEST_PAUSE_MS)
        return TurnedAway(refusal.reason)
    return Failed(refusal, elsewhere=True)


def _learn(request: Request, pool: Pool, receiver: Relay | Decode) -> int | None:
    """Learns from the token counts of a whole answer, and returns those that were generated.

    A stream that does not tell them was read about once per token.
    """
    record = request.record
    if record.input_tokens is not None:
        pool.prompt_size.learn(len(request.body), record.input_tokens)
    if record.output_tokens is not None or not record.stream:
        return record.output_tokens
    per_sequence = max(1, receiver.reads - 1)
    if record.max_tokens is not None:
        per_sequence = min(per_sequence, record.max_tokens)
    return record.cost * per_sequence

"""Gets slots for a request at one pool: asks, waits if it must, queues it again if rejected."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from typing import Final, NamedTuple

from orch_sidecar.admission.gate import Gate
from orch_sidecar.admission.types import AdmissionRequest, Lease, Queued
from orch_sidecar.api.body_outline import LARGE_BYTES
from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.observability.record import OK, Outcome, RequestRecord
from orch_sidecar.pools.parent_leases import ParentLeases
from orch_sidecar.pools.placement.routing import PlacementReason
from orch_sidecar.pools.pool import Pool
from orch_sidecar.proxy.engine_response import EngineResponse
from orch_sidecar.proxy.forward import Forward
from orch_sidecar.proxy.queue_events import Watchers
from orch_sidecar.proxy.request import Request
from orch_sidecar.proxy.result import NotSent, Result, Retry, Sent
from orch_sidecar.wire.backpressure import LONGEST_PAUSE_MS

# Immediate refusals of a pool that is busier than it was thought to be: another may be less so.
_BUSY: Final = frozenset(
    {
        Reason.QUEUE_FULL,
        Reason.QUEUE_TIMEOUT,
        Reason.SLO_MISS,
        Reason.DEADLINE_MISS,
        Reason.DO_NOT_QUEUE,
    }
)
# The engine is away, for whatever reason: this concerns the pool, and not the request.
_AWAY: Final = frozenset(
    {
        Reason.ENGINE_STARTING,
        Reason.ENGINE_DOWN,
        Reason.ENGINE_STALE,
        Reason.ENGINE_STALLED,
        Reason.ENGINE_PAUSED,
        Reason.ENGINE_WITHOUT_PLUGIN,
        Reason.ENGINE_REFUSES_KEY,
        Reason.PROFILE_MISMATCH,
        Reason.API_VERSION_MISMATCH,
    }
)
_NONE: Final = frozenset[Reason]()
_ONLY: Final = PlacementReason.ONLY
_REQUEUE: Final = Retry.REQUEUE


class _Return(NamedTuple):
    """A request returns to the queue of its pool. `pause_ms`: for which nothing is dispatched;
    `lacks`: what the engine has none of, by the type of its error."""

    pause_ms: float | None = None
    lacks: str | None = None

    def hold_others(self, gate: Gate, lease_id: str) -> None:
        """Keeps others from being dispatched in its place."""
        if self.lacks is not None:
            gate.rejected(lease_id, self.lacks)
        elif self.pause_ms is not None:
            gate.pause(lease_id, self.pause_ms)


class Admit:
    """The stage that owns the lease: its `finally` ends that."""

    def __init__(self, forward: Forward, parent_leases: ParentLeases, watchers: Watchers) -> None:
        self._forward = forward
        self._parent_leases = parent_leases
        self._watchers = watchers
        self._loop = asyncio.get_running_loop()

    async def handle(
        self, request: Request, pool: Pool, ask: AdmissionRequest, why: PlacementReason = _ONLY
    ) -> Result:
        """Forwards the request once it has its slots. `why`: it was placed here."""
        gate, record, since_s = pool.gate, request.record, self._loop.time()
        record.pool, record.placement = pool.name, why
        record.service_class = ask.service_class
        record.labels = pool.class_labels[ask.service_class]
        parent = request.parent_lease
        ask.parent = "" if parent is None else parent.instance
        ticket = gate.open(request, ask.cost)
        try:
            elsewhere: Collection[Reason] = _BUSY
            if gate.reserve.interactive.retries or gate.reserve.bulk.retries:
                ask.identity = _identity(request.body)
            outcome = gate.arrive(ticket, ask)
            if type(outcome) is Queued:
                record.queued = time.monotonic_ns()
                record.queue_position = outcome.position
                record.predicted_start_ms = outcome.predicted_start_ms
                elsewhere = _NONE
                outcome = await self._wait(request, pool, ticket, ask)
            while type(outcome) is Lease:
                record.admitted = time.monotonic_ns()
                record.lease = outcome.id
                request.response = None
                if parent is not None:
                    self._parent_leases.granted(parent, gate.ledger, outcome)
                result = await self._forward.handle(request, pool, outcome)
                if isinstance(result, Sent):
                    return result
                back = _return_of(request, pool, result)
                if back is not None:  # before its lease is released, which would dispatch another
                    back.hold_others(gate, outcome.id)
                if back is None or request.cancelled is not None:
                    return result
                request.retried(result.refusal.reason)
                elsewhere = _NONE
                if request.reclaimed:  # the time that it had its slots is not waited
                    since_s += self._loop.time() - outcome.granted_at
                    request.reclaimed, request.failure = False, None
                self._end(request, pool, ticket)
                ticket = gate.open(request, ask.cost)
                outcome = await self._requeue(request, pool, ticket, ask, since_s)
            assert isinstance(outcome, Refusal)
            if outcome.retry_after_ms is not None and not outcome.moved:
                ask.identity = _identity(request.body)
                gate.refused(ask, outcome.retry_after_ms)
            return _refused(pool, ask, outcome, elsewhere)
        finally:
            request.ticket = None  # first: reconciliation finds what `_end` should fail to end
            self._end(request, pool, ticket)

    def _end(self, request: Request, pool: Pool, ticket: str) -> None:
        """Ends the lease of a ticket, if any, and the ticket.

        A response that was cut short leaves the lease to the engine's confirmation.
        """
        record, response = request.record, request.response
        if response is not None and (request.reserved is not None or request.sink is not None):
            record.generated_tokens = generated_tokens(record, response)
        tokens: int | None = None
        leased = record.lease == ticket
        if leased and response is not None and response.status == 200 and response.outcome is OK:
            record.input_tokens, record.output_tokens = response.answer.counts
            record.client_limited = response.client_limited
            if not response.client_limited:
                if record.input_tokens is not None:
                    pool.prompt_size.learn(len(request.body), record.input_tokens)
                tokens = generated_tokens(record, response)
                if tokens is not None:
                    record.generated_tokens = tokens
        pool.gate.release(
            ticket,
            tokens,
            ended=leased and (response is None or response.complete),
            served=response is not None and response.rejected is None,
            sent=response is not None,
        )

    async def _requeue(
        self, request: Request, pool: Pool, ticket: str, ask: AdmissionRequest, since_s: float
    ) -> Lease | Refusal:
        """Waits at the head of the queue, within the time limits from the beginning."""
        record = request.record
        record.queued = record.queued or time.monotonic_ns()
        record.admitted = record.predicted_start_ms = None
        away = pool.gate.unavailable
        if away is not None and not pool.keeps_queue:
            return away  # the queue was dismissed before this request came back
        outcome = pool.gate.requeue(ticket, ask, since_s)
        if isinstance(outcome, Refusal):
            return outcome
        return await self._wait(request, pool, ticket, ask)

    async def _wait(
        self, request: Request, pool: Pool, ticket: str, ask: AdmissionRequest
    ) -> Lease | Refusal:
        """Waits for the slots; another address of the pool may take the request over."""
        request.waiting = pool.gate, ticket
        if pool.group != pool.name and not request.moved and request.options.pool != pool.name:
            pool.movable[ticket] = ask.service_class, ask.cost
        pool.queued_models[ticket] = request.record.model
        try:
            if request.options.queue_events and request.record.stream:
                self._watchers.watch(request, request)
            return await pool.gate.wait(ticket)
        except asyncio.CancelledError:
            pool.not_admitted[ask.service_class, Outcome.CANCELLED.value] += 1
            raise
        finally:
            request.waiting = None
            pool.movable.pop(ticket, None)
            del pool.queued_models[ticket]


def generated_tokens(record: RequestRecord, response: EngineResponse) -> int | None:
    """The tokens that a response has so far; None: unknown."""
    if response.answer.counts[1] is not None or not record.stream:
        return response.answer.counts[1]
    per_sequence = max(1, response.reads - 1)  # a stream without usage: a read per token
    if record.max_tokens is not None:
        per_sequence = min(per_sequence, record.max_tokens)
    return record.cost * per_sequence


def _identity(body: bytes) -> int:
    """A number that is the same for a request that comes back unchanged."""
    part = body if len(body) <= LARGE_BYTES else body[:LARGE_BYTES]
    return hash(part) ^ len(body)


def _return_of(request: Request, pool: Pool, result: NotSent) -> _Return | None:
    """How a request returns to this pool's queue; None: it does not."""
    if request.reclaimed:
        return _Return()
    response = request.response
    rejected = None if response is None else response.rejected
    if result.retry is _REQUEUE and rejected is not None:
        if isinstance(rejected, str):
            return _Return(lacks=rejected)
        return _Return(min(rejected, LONGEST_PAUSE_MS))
    # A request that has waited for the only pool waits for its return, too.
    unreached = response is None and result.retry is Retry.OTHER_POOL
    waited = pool.keeps_queue and request.record.queued is not None
    return _Return(LONGEST_PAUSE_MS) if unreached and waited else None


def _refused(
    pool: Pool, ask: AdmissionRequest, refusal: Refusal, elsewhere: Collection[Reason]
) -> NotSent:
    """The pool has no slots for the request."""
    if refusal.moved:
        return NotSent(refusal, Retry.ANY_POOL)
    pool.not_admitted[ask.service_class, refusal.reason.value] += 1
    if refusal.reason in _AWAY or refusal is pool.gate.unavailable:
        return NotSent(refusal, Retry.ANY_POOL)
    return NotSent(refusal, Retry.OTHER_POOL if refusal.reason in elsewhere else Retry.NO)

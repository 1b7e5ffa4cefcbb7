"""Gets slots for a request at one pool: asks, waits if it must, queues it again if rejected."""

from __future__ import annotations

import asyncio
import time
from typing import Final, NamedTuple

from orch_sidecar.admission.gate import Ticket
from orch_sidecar.admission.types import AdmissionRequest, Lease
from orch_sidecar.api.body_outline import LARGE_BYTES
from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.observability.record import OK
from orch_sidecar.pools.parent_leases import ParentLeases
from orch_sidecar.pools.pool import Pool
from orch_sidecar.pools.routing import PlacementReason
from orch_sidecar.proxy.forward import Forward
from orch_sidecar.proxy.queue_events import Watchers
from orch_sidecar.proxy.request import NotSent, Request, Result, Retry, Sent
from orch_sidecar.wire.backpressure import LONGEST_PAUSE_MS

# Immediate refusals of a pool that is busier than expected: another may be less so.
_BUSY_REASONS: Final = frozenset(
    {
        Reason.QUEUE_FULL,
        Reason.QUEUE_TIMEOUT,
        Reason.SLO_MISS,
        Reason.DEADLINE_MISS,
        Reason.DO_NOT_QUEUE,
    }
)
_ONLY: Final = PlacementReason.ONLY


class _Requeue(NamedTuple):
    """A request's return to the queue of its pool. `rejection`: for its ticket."""

    rejection: float | str | None = None


class Admit:
    """The stage that owns the lease: its `finally` ends it."""

    def __init__(self, forward: Forward, parent_leases: ParentLeases, watchers: Watchers) -> None:
        self._forward = forward
        self._parent_leases = parent_leases
        self._watchers = watchers
        self._loop = asyncio.get_running_loop()

    async def handle(
        self, request: Request, pool: Pool, ask: AdmissionRequest, why: PlacementReason = _ONLY
    ) -> Result:
        """Forwards the request once it has its slots. `why`: it was placed here."""
        gate, record = pool.gate, request.record
        record.pool, record.placement = pool.name, why
        record.service_class = service_class = ask.service_class
        record.labels = pool.class_labels[service_class]
        parent = request.parent_lease
        ask.parent = "" if parent is None else parent.instance
        if gate.reserve.interactive.retries or gate.reserve.bulk.retries:
            ask.identity = _identity_of(request.body)
        rejection = None
        ticket = request.attempt.ticket = gate.open(request, ask)
        try:
            while True:
                outcome = ticket.outcome
                if type(outcome) is not Lease:
                    outcome = await self._wait(request, pool, ticket)
                    if isinstance(outcome, Refusal):
                        return _refused(request, ticket, outcome)
                record.admitted = time.monotonic_ns()
                record.lease = outcome.id
                if parent is not None:
                    self._parent_leases.granted(parent, gate.ledger, outcome)
                result = await self._forward.handle(request, pool)
                if isinstance(result, Sent):
                    return result
                back = _requeue_of(request, pool, result, outcome)
                if back is None:
                    return result
                rejection = back.rejection
                if request.cancelled is not None:
                    return result
                since_s = ticket.since_s
                if outcome.reclaimed:  # the time in which it had its slots is no wait
                    since_s += self._loop.time() - outcome.granted_at
                self._end(request, pool, ticket, rejection)
                rejection = None
                request.begin_attempt_here(result.refusal.reason)
                ticket = request.attempt.ticket = gate.open(request, ask, since_s)
        finally:
            ticket.owner = None  # first: reconciliation ends it if `_end` fails
            self._end(request, pool, ticket, rejection)

    async def _wait(self, request: Request, pool: Pool, ticket: Ticket) -> Lease | Refusal:
        """Waits for the slots, unless they are refused at once. Meanwhile another address of the
        pool may take the request over, and its client may be shown its place."""
        record, attempt, queued = request.record, request.attempt, ticket.queued
        if queued is None:
            return await ticket.lease()
        if record.lease is None:  # it had no slots before
            record.queued, record.queue_position = time.monotonic_ns(), queued.position
        record.predicted_start_ms = queued.predicted_start_ms
        attempt.waiting, named = ticket, request.options.pool == pool.name
        ticket.movable = pool.group != pool.name and not (request.moved or named)
        try:
            if request.options.queue_events and record.stream:
                self._watchers.watch(request, request)
            return await ticket.lease()
        finally:
            attempt.waiting = None

    def _end(
        self, request: Request, pool: Pool, ticket: Ticket, rejection: float | str | None
    ) -> None:
        """Ends a ticket and its lease; see `Ticket.end`.

        If the response was cut short, the engine has to confirm the end of the lease.
        """
        record, response = request.record, request.attempt.response
        if response is None:
            ticket.end(served=False, sent=False, rejection=rejection)
            return
        if request.reserved is not None or request.sink is not None:
            record.generated_tokens = response.generated_tokens(record)
        tokens: int | None = None
        if response.status == 200 and response.outcome is OK:
            (
                record.input_tokens,
                record.output_tokens,
                record.cached_tokens,
                record.reasoning_tokens,
            ) = response.answer.counts
            record.client_limited = response.client_limited
            if not response.client_limited:
                if record.input_tokens is not None:
                    pool.prompt_size.learn(len(request.body), record.input_tokens)
                tokens = record.output_tokens
                if tokens is None:
                    tokens = response.generated_tokens(record)
                if tokens is not None:
                    record.generated_tokens = tokens
        ticket.end(
            tokens,
            ended=response.complete,
            served=response.rejected is None,
            rejection=rejection,
        )


def _identity_of(body: bytes) -> int:
    """Returns a number that is the same for a request that comes back unchanged."""
    part = body if len(body) <= LARGE_BYTES else body[:LARGE_BYTES]
    return hash(part) ^ len(body)


def _requeue_of(request: Request, pool: Pool, result: NotSent, lease: Lease) -> _Requeue | None:
    """Returns whether and how a request returns to this pool's queue."""
    if lease.reclaimed:
        return _Requeue()
    response = request.attempt.response
    rejected = None if response is None else response.rejected
    if result.retry is Retry.REQUEUE and rejected is not None:
        if isinstance(rejected, str):
            return _Requeue(rejected)
        return _Requeue(min(rejected, LONGEST_PAUSE_MS))
    # A request that has waited for the only pool also waits until it is back.
    unreached = response is None and result.retry is Retry.OTHER_POOL
    waited = pool.keeps_queue and request.record.queued is not None
    return _Requeue(LONGEST_PAUSE_MS) if unreached and waited else None


def _refused(request: Request, ticket: Ticket, refusal: Refusal) -> NotSent:
    """Returns the result of a request that got no slots at the pool."""
    if refusal.retry_after_ms is not None and not refusal.moved:
        ticket.request.identity = _identity_of(request.body)  # to recognize its retry
    if refusal.moved or refusal.kind.engine_away:
        return NotSent(refusal, Retry.ANY_POOL)
    at_once = ticket.queued is None and request.record.lease is None
    elsewhere = at_once and refusal.reason in _BUSY_REASONS
    return NotSent(refusal, Retry.OTHER_POOL if elsewhere else Retry.NO)

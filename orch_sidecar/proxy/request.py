"""Keeps what the stages know of a request, and of the attempts to answer it; and says what a stage
returns to the stage before it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from orch_sidecar.admission.gate import Ticket
from orch_sidecar.admission.prediction.forecast import Place
from orch_sidecar.api.endpoints import Endpoint
from orch_sidecar.api.generation import GenerationRequest
from orch_sidecar.api.options import NO_OPTIONS, RequestOptions
from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.auth.budgets import Reservation
from orch_sidecar.auth.keys import ApiKey
from orch_sidecar.observability.record import CANCELLED, OK, Outcome, RequestRecord
from orch_sidecar.observability.tracing import Trace
from orch_sidecar.pools.parent_leases import ParentLease
from orch_sidecar.proxy.engine_response import EngineResponse, Sink
from orch_sidecar.proxy.queue_response import QueueResponse
from orch_sidecar.wire.client_request import ClientRequest
from orch_sidecar.wire.forwarding import HeaderNames

# Ends an attempt. No client sees this refusal: the request is queued again.
_RECLAIMED: Final = Refusal(
    Reason.QUEUE_FULL, "an interactive request needed the slots more urgently"
)


class Wait(Protocol):
    """The wait of a request: for its slots, for a pool to be back, or for its parts."""

    def refuse(self, refusal: Refusal) -> bool:
        """Ends the wait. False: it has ended."""

    def place(self, now: float) -> Place | None:
        """Returns its place in a queue, at the event loop's time `now`. None: it is not known."""


@dataclass(slots=True, eq=False)
class Attempt:
    """One attempt to answer a request: at one pool, or by the generation of another request.

    `ticket`: of its slots, None if it takes none. `waiting`: its wait, None if it does not wait.
    `response`: the engine's, once it got some of the request. `failure`: why the response ended
    early. `generation`: the request that goes to the engine for this one and others.
    """

    ticket: Ticket | None = None
    response: EngineResponse | None = None
    failure: Refusal | None = None
    generation: Request | None = None
    waiting: Wait | None = None

    @property
    def outcome_of_left(self) -> Outcome | Reason:
        """The outcome of a request whose client is gone: by a reset, with all of it, or without."""
        if self.failure is not None:
            return self.failure.reason
        whole = self.response is not None and self.response.outcome is OK
        return OK if whole else CANCELLED


@dataclass(slots=True, eq=False)
class Request:
    """A request that is being served.

    Of the client: `http`, `names` (of its header fields), `key`, `key_sequences` (counted for that
    key), `reserved` (of its budgets), `strip_keys` (clients' keys are for this sidecar alone),
    `parent_lease`, `line` (of the request for the engine, where it has an id in its path; else that
    of the endpoint), `body`, `salt` (follows the first byte of the body for the engine),
    `reserved_bytes` (of the body budget), `options`, `call` (what it asks of a pool), `cancelled`,
    `sink` (of the response; None: the client alone), `queue_response` (the same, of a client that
    is shown its place in the queue).
    Of its way: `attempt` (the current or the last one), `moved` (it waited at another address of
    the pool before), `may_be_elsewhere` (any pool's engine may store what it refers to),
    `excluded` (pools it must not be sent to), `loss` (why an engine that received it did not
    answer).
    """

    http: ClientRequest
    endpoint: Endpoint
    record: RequestRecord
    trace: Trace | None
    attempt: Attempt
    names: HeaderNames | None = None
    key: ApiKey | None = None
    sink: Sink | None = None
    strip_keys: bool = False
    body: bytes = b""
    salt: bytes = b""
    line: bytes = b""
    options: RequestOptions = NO_OPTIONS
    call: GenerationRequest | None = None
    parent_lease: ParentLease | None = None
    cancelled: Refusal | None = None
    moved: bool = False
    may_be_elsewhere: bool = False
    excluded: frozenset[str] = frozenset()
    key_sequences: int = 0
    reserved: Reservation | None = None
    reserved_bytes: int = 0
    loss: Refusal | None = None
    queue_response: QueueResponse | None = None

    @property
    def is_unseen(self) -> bool:
        """Whether the engine runs it, and its client has seen nothing of the response."""
        response = self.attempt.response
        return response is not None and response.is_unseen and self.cancelled is None

    def reclaim(self) -> None:
        """Aborts it in the engine, to be queued again; only if it is unseen."""
        response = self.attempt.response
        assert response is not None, "an unseen request has reached the engine"
        response.fail(_RECLAIMED)

    def begin_attempt(self, why: Reason | None = None) -> None:
        """Begins another attempt: the last one failed, and the client has seen nothing of it.
        `why`: for the trace."""
        if self.trace is not None and why is not None:
            self.trace.retried(why)
        self.attempt = Attempt()
        self.record.begin_attempt()

    def begin_attempt_here(self, why: Reason) -> None:
        """Begins another attempt at the same pool, in whose queue the request is by now."""
        if self.trace is not None:
            self.trace.retried(why)
        self.attempt = Attempt()
        self.record.return_to_queue()

    def cancel(self, refusal: Refusal) -> None:
        """Ends the request with `refusal`, wherever it is. The first cancellation counts."""
        if self.cancelled is not None:
            return
        self.cancelled = refusal  # stages that neither wait nor forward look at this
        transport = self.http.transport
        response = self.http.protocol.response
        if response is not None and transport is not None:
            if self.record.first_byte is not None and transport.get_write_buffer_size():
                response.abort_client()  # part of the response is still to be sent
            response.fail(refusal)
        elif self.attempt.waiting is not None:
            self.attempt.waiting.refuse(refusal)
        else:
            self.http.protocol.refuse_upload(refusal)

    def place(self, now: float) -> tuple[int, int | None]:
        """Returns how many requests go before it, and in how many milliseconds it gets its slots
        (None: unknown). `now`: the event loop's time, for one that waits."""
        record, waiting = self.record, self.attempt.waiting
        place = None if waiting is None else waiting.place(now)
        if place is not None:
            at = place.starts_at
            return place.position, None if at is None else max(0, round(1000 * (at - now)))
        start_ms = record.predicted_start_ms  # as of its arrival there
        if start_ms is not None and record.queued is not None:
            start_ms = max(0, start_ms - (time.monotonic_ns() - record.queued) // 10**6)
        return record.queue_position, start_ms


class Retry(Enum):
    """Where a request may be tried again while its client has seen nothing yet."""

    NO = "no"
    OTHER_POOL = "other pool"
    ANY_POOL = "any pool"  # this one included: it did not reject the request itself
    REQUEUE = "requeue"  # the same pool: the upstream rejected the request for now


@dataclass(frozen=True, slots=True)
class Sent:
    """The client has its response, at least in part."""

    keep_alive: bool
    outcome: Outcome | Reason


SENT_WELL: Final = Sent(True, OK)  # as nearly all are


@dataclass(frozen=True, slots=True)
class NotSent:
    """The client has nothing yet. `reached_engine`: an engine received the request and was lost."""

    refusal: Refusal
    retry: Retry = Retry.NO
    reached_engine: bool = False


# What a stage of the request's path returns.
Result = Sent | NotSent

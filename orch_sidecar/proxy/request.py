"""A request on its way through the stages, and its head for the engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol, cast

from aiohttp import web

from orch_sidecar.api.endpoints import Endpoint
from orch_sidecar.api.options import NO_OPTIONS, RequestOptions
from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.auth.budgets import Reservation
from orch_sidecar.auth.keys import ApiKey
from orch_sidecar.observability.record import RequestRecord
from orch_sidecar.observability.tracing import Trace
from orch_sidecar.pools.generation_call import GenerationCall
from orch_sidecar.pools.parent_leases import ParentLease
from orch_sidecar.proxy.engine_response import EngineResponse, Sink
from orch_sidecar.wire.client_connection import ClientConnection
from orch_sidecar.wire.forwarding import Names

# Ends an attempt. No client sees it: the request is queued again.
RECLAIMED: Final = Refusal(
    Reason.QUEUE_FULL, "an interactive request needed the slots more urgently"
)


class Waiting(Protocol):
    """Where a request waits: at a gate, in the room for those without a pool, or for its parts."""

    def refuse(self, ticket: str, refusal: Refusal) -> bool:
        """Ends the wait. False: it has ended."""


@dataclass(slots=True)
class Request:
    """A request that is being served.

    Of the client: `http`, `names` (of its header fields), `key`, `key_sequences` (counted for that
    key), `reserved` (of its budgets), `strip_keys` (clients' keys are for this sidecar alone),
    `parent_lease`, `line` (of the request for the engine, where it has an id in its path; else that
    of the endpoint), `body`, `salt` (follows the first byte of the body for the engine),
    `reserved_bytes` (of the body budget), `options`.
    Of admission: `call`, `ticket` (under which it waits for slots or owns them), `waiting` (the
    gate at which it waits, or the room where it does for a pool to be back, and its ticket there),
    `moved` (it waited at another address of the pool before), `elsewhere` (what it refers to may be
    stored by the engine of any pool), `excluded` (pools it must not be sent to), `lost` (why an
    engine that received it did not answer), `generation` (the request that goes to the engine for
    it and others).
    Of the response: `sink` (None: the client alone), `response` (of the engine, once that got
    something), `failure` (why the response ended early), `reclaimed` (it gave its
    slots to another request, and is to be queued again), `cancelled`.
    """

    http: web.BaseRequest
    endpoint: Endpoint
    record: RequestRecord
    trace: Trace | None
    names: Names | None = None
    key: ApiKey | None = None
    strip_keys: bool = False
    body: bytes = b""
    salt: bytes = b""
    line: bytes = b""
    options: RequestOptions = NO_OPTIONS
    call: GenerationCall | None = None
    parent_lease: ParentLease | None = None
    ticket: str | None = None
    waiting: tuple[Waiting, str] | None = None
    moved: bool = False
    cancelled: Refusal | None = None
    sink: Sink | None = None
    response: EngineResponse | None = None
    failure: Refusal | None = None
    elsewhere: bool = False
    excluded: frozenset[str] = frozenset()
    key_sequences: int = 0
    reserved: Reservation | None = None
    reserved_bytes: int = 0
    reclaimed: bool = False
    lost: Refusal | None = None
    generation: Request | None = None

    @property
    def unseen(self) -> bool:
        """Whether the engine runs it, and its client has seen nothing of the response."""
        response = self.response
        return response is not None and response.unseen and self.cancelled is None

    def reclaim(self) -> None:
        """Aborts it in the engine, to be queued again; only if it is unseen."""
        assert self.response is not None, "an unseen request has reached the engine"
        self.reclaimed = True
        self.response.fail(RECLAIMED)

    def begin_attempt(self, why: Reason | None = None) -> None:
        """Forgets the attempt before: it failed, and the client has seen nothing of it. `why`: as
        the trace is to say."""
        self.retried(why)
        self.response = self.failure = self.generation = None
        self.record.begin_attempt()

    def retried(self, why: Reason | None) -> None:
        """Has the trace say why it is tried again."""
        if self.trace is not None and why is not None:
            self.trace.retried(why)

    def cancel(self, refusal: Refusal) -> None:
        """Ends the request with `refusal`, wherever it is. The first cancellation counts."""
        if self.cancelled is not None:
            return
        self.cancelled = refusal  # stages that neither wait nor forward look at this
        transport = self.http.transport
        response = cast(ClientConnection, self.http.protocol).response
        if response is not None and transport is not None:
            if self.record.first_byte is not None and transport.get_write_buffer_size():
                response.abort_client()  # part of the response is still to be sent
            response.fail(refusal)
        elif self.waiting is not None:
            gate, ticket = self.waiting
            gate.refuse(ticket, refusal)

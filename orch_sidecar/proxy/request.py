"""A request on its way through the stages, and its head for the engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, cast

from aiohttp import web

from orch_sidecar.admission.gate import Gate
from orch_sidecar.admission.types import Lease
from orch_sidecar.api.endpoints import Endpoint
from orch_sidecar.api.headers import (
    ACCEPT_ENCODING,
    CONTENT_LENGTH,
    X_ORCH_LEASE,
    X_REQUEST_ID,
    field_line,
    raw,
)
from orch_sidecar.api.options import NO_OPTIONS, RequestOptions
from orch_sidecar.api.refusal import Refusal
from orch_sidecar.auth.budgets import Reservation
from orch_sidecar.auth.keys import ApiKey
from orch_sidecar.observability.record import RequestRecord
from orch_sidecar.observability.tracing import Trace
from orch_sidecar.pools.parent_leases import ParentLease
from orch_sidecar.pools.pool import GenerationCall, Pool
from orch_sidecar.proxy.engine_response import EngineResponse, Sink
from orch_sidecar.wire import backpressure
from orch_sidecar.wire.client_connection import ClientConnection
from orch_sidecar.wire.forwarding import Names, request_head

_ACCEPT_ENCODING: Final = raw(ACCEPT_ENCODING)
_REQUEST_ID: Final = field_line(X_REQUEST_ID, "%b")
_CONTENT_LENGTH: Final = field_line(CONTENT_LENGTH, "%d")
_LEASE: Final = field_line(X_ORCH_LEASE, "%b")


@dataclass(slots=True)
class Request:
    """A request that is being served.

    Of the client: `http`, `names` (of its header fields), `key`, `key_sequences` (counted for that
    key), `reserved` (of its budgets), `strip_keys` (clients' keys are for this sidecar alone),
    `parent_lease`, `body`, `reserved_bytes` (of the body budget), `options`.
    Of admission: `call`, `ticket` (under which it waits for slots or owns them), `waiting` (the
    gate at which it waits, and that ticket), `moved` (it waited at another address of the pool
    before), `excluded` (pools it must not be sent to), `lost` (why an engine that received it did
    not answer).
    Of the response: `sink` (None: the client alone), `response` (of the engine, once that got
    something), `failure` (why the response ended early), `cancelled`.
    """

    http: web.BaseRequest
    endpoint: Endpoint
    record: RequestRecord
    trace: Trace
    names: Names | None = None
    key: ApiKey | None = None
    strip_keys: bool = False
    body: bytes = b""
    options: RequestOptions = NO_OPTIONS
    call: GenerationCall | None = None
    parent_lease: ParentLease | None = None
    ticket: str | None = None
    waiting: tuple[Gate, str] | None = None
    moved: bool = False
    cancelled: Refusal | None = None
    sink: Sink | None = None
    response: EngineResponse | None = None
    failure: Refusal | None = None
    excluded: frozenset[str] = frozenset()
    key_sequences: int = 0
    reserved: Reservation | None = None
    reserved_bytes: int = 0
    lost: Refusal | None = None

    @property
    def headers(self) -> Mapping[str, str]:
        """The client's header fields."""
        return self.http.headers

    def begin_attempt(self) -> None:
        """Forgets the attempt before: it failed, and the client has seen nothing of it."""
        self.response = self.failure = None
        self.record.begin_attempt()

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

    def head(self, pool: Pool, lease: Lease | None) -> bytes:
        """Returns the head for the engine."""
        endpoint, record = self.endpoint, self.record
        ours = pool.address + _REQUEST_ID % record.identity.request_id.encode()
        if endpoint.method == "POST":
            ours += _CONTENT_LENGTH % len(self.body)
        if lease is not None:
            ours += _LEASE % lease.id.encode()
        for field in self.trace.dispatched():
            ours += b"%b: %b\r\n" % field
        if lease is not None:
            assert record.service_class is not None
            ours += pool.priority(record.service_class)
            if pool.tier:
                ours += backpressure.fields(record.service_class, self.options, record.spent_ms())
        given, names = self.http.raw_headers, self.names
        if self.sink is not None:
            # Response ids cannot be replaced within a compressed body.
            given = tuple(field for field in given if field[0].lower() != _ACCEPT_ENCODING)
            names = None
        return request_head(endpoint.line, given, ours, pool.authorization, self.strip_keys, names)

"""A request that is being served, and what is written of it: to the engine, and to its client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, cast

from aiohttp import web

from orch_sidecar.admission.gate import Gate
from orch_sidecar.admission.ledger import Lease
from orch_sidecar.api.endpoints import Endpoint
from orch_sidecar.api.options import NO_OPTIONS, RequestOptions
from orch_sidecar.api.refusal import Refusal
from orch_sidecar.auth.keys import ApiKey
from orch_sidecar.coalescing.broadcast import Broadcast
from orch_sidecar.observability.record import RequestRecord
from orch_sidecar.observability.tracing import Trace
from orch_sidecar.pools.parent_leases import ParentLease
from orch_sidecar.pools.pool import Pool
from orch_sidecar.wire import backpressure
from orch_sidecar.wire.client_connection import ClientConnection
from orch_sidecar.wire.forwarding import Names, request_head

_ACCEPT_ENCODING: Final = b"accept-encoding"


@dataclass(slots=True)
class Request:
    """A request that is being served.

    `presence`: it came from a sidecar above. `ticket`: under which it waits for slots or has them,
    and `waiting`: at which gate it waits, under which ticket.
    `moved`: it waited at another address of its pool before.
    `fanout`: its answer goes there, to several clients perhaps. `barred`: the pools that it must
    not go to. `names`: those of its fields, where looked up. `key`: whose it is, and `held`: how
    many sequences of that key it counts for. `keyless`: clients' keys are for this sidecar.
    `reserved_bytes`: of the budget for bodies. `lost`: why an engine that had got it did
    not answer.
    """

    http: web.BaseRequest
    route: Endpoint
    record: RequestRecord
    trace: Trace
    names: Names | None = None
    key: ApiKey | None = None
    keyless: bool = False
    body: bytes = b""
    options: RequestOptions = NO_OPTIONS
    presence: ParentLease | None = None
    ticket: str | None = None
    waiting: tuple[Gate, str] | None = None
    moved: bool = False
    cancelled: Refusal | None = None
    fanout: Broadcast | None = None
    barred: frozenset[str] = frozenset()
    held: int = 0
    reserved_bytes: int = 0
    lost: Refusal | None = None

    @property
    def headers(self) -> Mapping[str, str]:
        """The client's."""
        return self.http.headers

    def cancel(self, refusal: Refusal) -> None:
        """Ends it, wherever it is: nothing of its answer goes out after this but `refusal`.

        Does nothing to one that was cancelled before.
        """
        if self.cancelled is not None:
            return
        self.cancelled = refusal  # where it neither waits nor is answered, this is looked at
        transport = self.http.transport
        answering = cast(ClientConnection, self.http.protocol).relay
        if answering is not None and transport is not None:
            if self.record.first_byte is not None and transport.get_write_buffer_size():
                answering.abort_client()  # some of its answer has yet to go out
            answering.fail(refusal)
        elif self.waiting is not None:
            gate, ticket = self.waiting
            gate.refuse(ticket, refusal)

    def head(self, pool: Pool, lease: Lease | None) -> bytes:
        """The head for the engine."""
        route, record = self.route, self.record
        said = f"x-request-id: {record.request_id}\r\n"
        if route.method == "POST":
            said += f"content-length: {len(self.body)}\r\n"
        if lease is not None:
            said += f"x-orch-lease: {lease.id}\r\n"
        ours = pool.address + said.encode()
        for field in self.trace.dispatched():
            ours += b"%b: %b\r\n" % field
        if lease is not None:
            assert record.service_class is not None
            ours += pool.priority(record.service_class)
            if pool.tier:
                ours += backpressure.fields(record.service_class, self.options, record.spent_ms())
        given, names = self.http.raw_headers, self.names
        if self.fanout is not None:
            # What is compressed cannot be told apart by its id.
            given = tuple(field for field in given if field[0].lower() != _ACCEPT_ENCODING)
            names = None
        return request_head(
            route.line,
            given,
            ours,
            pool.authorization,
            self.keyless,
            names,
        )


def fields(record: RequestRecord, pool: Pool) -> bytes:
    """Our fields of the answer's head."""
    ids = (
        f"x-request-id: {record.request_id}\r\n"
        f"x-correlation-id: {record.correlation_id}\r\n"
        f"x-orch-request-id: {record.id}\r\n"
    ).encode()
    if record.lease is None:
        return ids + pool.fields
    if record.queued is None:
        return ids + pool.fields_at_once
    queued = f"x-orch-queue-position: {record.queue_position}\r\n"
    if record.predicted_start_ms is not None:
        queued += f"x-orch-predicted-start-ms: {record.predicted_start_ms}\r\n"
    return ids + pool.fields + queued.encode()

"""Forwards a request to an engine, and the engine's response to the request's sink."""

from __future__ import annotations

from typing import Final

from orch_sidecar.api.headers import (
    ACCEPT_ENCODING,
    CONTENT_LENGTH,
    X_ORCH_LEASE,
    X_REQUEST_ID,
    field_line,
    raw,
)
from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.observability.record import OK
from orch_sidecar.pools.pool import Pool
from orch_sidecar.proxy.client_writer import ClientWriter, HeadWriter
from orch_sidecar.proxy.engine_response import EngineResponse, Sink
from orch_sidecar.proxy.request import SENT_WELL, NotSent, Request, Result, Retry, Sent
from orch_sidecar.wire import backpressure
from orch_sidecar.wire.forwarding import request_head
from vllm_plugin.contracts.lease_protocol import ADAPTER_HEADER, NO_ADAPTER, encoded_adapter
from vllm_plugin.contracts.profile import BULK, IDLE

_ACCEPT_ENCODING: Final = raw(ACCEPT_ENCODING)
_REQUEST_ID, _CONTENT_LENGTH, _LEASE = (
    name.lower() for name in (X_REQUEST_ID, CONTENT_LENGTH, X_ORCH_LEASE)
)
_ADAPTER: Final = field_line(ADAPTER_HEADER, "%b")

_QUEUE_FULL: Final = Refusal(Reason.QUEUE_FULL, "the child sidecar has no free slot")
_NO_SLOT: Final = Refusal(Reason.QUEUE_FULL, "the engine has no free slot")
_NO_ADAPTER: Final = Refusal(Reason.QUEUE_FULL, "the engine has no room for the LoRA adapter")
_ABSENT: Final = Refusal(Reason.NOT_FOUND, "no engine has this response: it may have restarted")
_STOPPING: Final = Refusal(
    Reason.ENGINE_DOWN, "the engine is shutting down and accepts no more requests"
)


class Forward:
    """The last stage: its `finally` ends the connection to the engine."""

    async def handle(self, request: Request, pool: Pool) -> Result:
        """Forwards a request, under the lease of its attempt's ticket if it occupies slots.

        The attempt has its `response` from the moment at which the engine gets something of it.
        """
        attempt, sink = request.attempt, request.sink
        ticket, head = attempt.ticket, _head(request, pool)
        connection, waited = pool.connections.take(), request.record.queued is not None
        try:
            if connection is None:
                waited = True
                try:
                    connection = await pool.connections.acquire()
                except (OSError, TimeoutError) as error:
                    return NotSent(pool.unreachable(error), Retry.OTHER_POOL)
            if waited and (obstacle := _obstacle(request)) is not None:
                return obstacle
            if sink is None:
                heads_only = ticket is None and request.http.method == "HEAD"
                sink = (HeadWriter if heads_only else ClientWriter)(request.http, request.record)
            rejection = None if ticket is None else pool.rejection
            response = EngineResponse(
                sink,
                pool.connections,
                request.record.stream,
                backpressure.with_absence(rejection) if request.may_be_elsewhere else rejection,
                request.record.service_class is IDLE and ticket is not None,
            )
            sink.attach(response, pool)
            attempt.response = response
            body: bytes | memoryview = request.body
            if request.salt:
                head, body = head + request.body[:1] + request.salt, memoryview(request.body)[1:]
            response.start(connection, head, body, request.http.protocol.turn)
            await response.done
            return _result(response, sink, pool)
        finally:
            if (sent := attempt.response) is not None:
                attempt.failure = sent.failure
                if not sent.complete:
                    sent.abandon()
            elif connection is not None:
                connection.close()
            if sink is not None:
                sink.detach()


def _head(request: Request, pool: Pool) -> bytes:
    """Returns the head for the engine."""
    endpoint, record, ticket = request.endpoint, request.record, request.attempt.ticket
    lines = f"{_REQUEST_ID}: {record.request_id}\r\n"
    if endpoint.method == "POST":
        length = len(request.body) + len(request.salt)
        lease = "" if ticket is None else f"{_LEASE}: {ticket.id}\r\n"
        lines = f"{lines}{_CONTENT_LENGTH}: {length}\r\n{lease}"
    if request.trace is None:
        ours = pool.address + lines.encode()
    else:
        lines += request.trace.dispatched()
        ours = pool.address + lines.encode("utf-8", "surrogateescape")
    if ticket is not None:
        assert record.service_class is not None
        ours += pool.class_fields[record.service_class]
        if pool.tier:
            of_class = record.service_class
            if of_class is IDLE and not pool.watcher.knows_idle:
                of_class = BULK
            ours += backpressure.child_fields(of_class, request.options, record.spent_ms())
        elif ticket.request.adapter is not None:
            ours += _ADAPTER % encoded_adapter(ticket.request.adapter).encode()
    given, names = request.http.raw_headers, request.names
    if request.sink is not None:
        # Response ids cannot be replaced within a compressed body.
        given = tuple(field for field in given if field[0].lower() != _ACCEPT_ENCODING)
        names = None
    return request_head(
        request.line or endpoint.line, given, ours, pool.authorization, request.strip_keys, names
    )


def _obstacle(request: Request) -> NotSent | None:
    """Returns why a request that has waited since it had its slots is not sent."""
    if request.cancelled is not None:
        return NotSent(request.cancelled)
    ticket = request.attempt.ticket
    refusal = None if ticket is None else ticket.obstacle()
    return None if refusal is None else NotSent(refusal, Retry.OTHER_POOL)


def _result(response: EngineResponse, sink: Sink, pool: Pool) -> Result:
    failure = response.failure
    if failure is None:
        if response.rejected is not None:
            if response.rejected == backpressure.ABSENT:
                return NotSent(_ABSENT, Retry.OTHER_POOL)
            if isinstance(response.rejected, str):
                lacks = _NO_ADAPTER if response.rejected == NO_ADAPTER else _NO_SLOT
                return NotSent(lacks, Retry.REQUEUE)
            return NotSent(_QUEUE_FULL if pool.tier else _STOPPING, Retry.REQUEUE)
        if sink.keep_alive and response.outcome is OK:
            return SENT_WELL
        return Sent(sink.keep_alive, response.outcome)
    if sink.started:
        return Sent(sink.keep_alive, failure.reason)
    retry = Retry.OTHER_POOL if response.unanswered else Retry.NO
    return NotSent(failure, retry, reached_engine=True)

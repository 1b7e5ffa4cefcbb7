"""Writes a response to one client's transport.

The head goes out with the first bytes of the body; then each part as it comes: with the engine's
framing, or, where the body comes without one, in chunks of its own. A failure after that becomes
the last event of a stream if an event has just ended; otherwise the connection is reset: never a
clean end of file. A client that gets no response of an engine gets one that tells why
(`response_to`).
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final, Protocol

from aiohttp import web

from orch_sidecar.api.endpoints import Endpoint
from orch_sidecar.api.headers import (
    ALLOW,
    CONNECTION,
    CONTENT_LENGTH,
    SERVER_TIMING,
    X_CORRELATION_ID,
    X_MEASUREMENT_TYPE,
    X_ORCH_PREDICTED_START_MS,
    X_ORCH_QUEUE_POSITION,
    X_ORCH_REQUEST_ID,
    X_REQUEST_ID,
    field_line,
    raw,
)
from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.observability.record import Outcome, RequestRecord
from orch_sidecar.pools.pool import Pool
from orch_sidecar.proxy.engine_response import Sink
from orch_sidecar.wire.client_connection import ClientConnection
from orch_sidecar.wire.client_connections import SilenceLimit, undelivered_bytes
from orch_sidecar.wire.client_request import ClientRequest
from orch_sidecar.wire.forwarding import filtered_response_head, is_event_stream
from orch_sidecar.wire.http1 import LAST_CHUNK, Head

_RESET: Final = struct.pack("ii", 1, 0)  # SO_LINGER: on, for no time
_CLOSE: Final = field_line(CONNECTION, "close")
_CONTENT_LENGTH: Final = raw(CONTENT_LENGTH)
_CONTENT_LENGTH_LINE: Final = field_line(CONTENT_LENGTH, "%d")
_QUEUE_POSITION: Final = field_line(X_ORCH_QUEUE_POSITION, "%d")
_PREDICTED_START_MS: Final = field_line(X_ORCH_PREDICTED_START_MS, "%d")
_TIMING: Final = raw(SERVER_TIMING) + b": "
# In lower case, as `field_line` writes names; interpolating text costs half of formatting bytes.
_REQUEST_ID, _CORRELATION_ID, _OWN_ID = (
    name.lower() for name in (X_REQUEST_ID, X_CORRELATION_ID, X_ORCH_REQUEST_ID)
)
# The rest of the request may still be on its way, or the client should connect elsewhere.
_CLOSING: Final = frozenset(
    {Reason.DRAINING, Reason.BODY_TOO_LARGE, Reason.BODY_BUDGET_FULL, Reason.BODY_TIMEOUT}
)
# Such a client may still be sending a body, which is not going to be read.
_UNREAD: Final = frozenset({Reason.UNAUTHORIZED, Reason.FORBIDDEN})


class Source(Protocol):
    """The source of a response: an engine's response, several together, or a shared one."""

    @property
    def reads(self) -> int:
        """Changes as it makes progress."""

    def pause(self) -> None:
        """Stops reading from the engine."""

    def resume(self) -> None:
        """Reads from the engine again."""

    def stop(self) -> None:
        """Ends it: the client is gone."""

    def fail(self, refusal: Refusal) -> None:
        """Ends it with an error."""


class ClientWriter(Sink):
    """The response to one client: the sink of an engine's response, paused by the transport.

    `keep_alive`: the client's connection may serve another request afterwards. `started`: the body,
    or an error, has begun, so that nothing can be retried. `adds_framing`: the body is sent in
    chunks of its own. `own_fields`: the lines of the head that are this sidecar's.
    """

    __slots__ = (
        "_head",
        "_source",
        "_token_mark",
        "adds_framing",
        "client",
        "dechunk",
        "keep_alive",
        "own_fields",
        "paused",
        "record",
        "silence_limit_s",
        "started",
        "transport",
    )

    def __init__(self, http: ClientRequest, record: RequestRecord) -> None:
        """Raises CancelledError if the client is gone: aiohttp is about to cancel the handler."""
        client: Any = http.protocol
        transport: asyncio.Transport | None = client.transport
        if transport is None:
            raise asyncio.CancelledError
        http11 = http.http11
        self.transport = transport
        self.client: ClientConnection = client
        self.silence_limit_s: SilenceLimit | None = None
        self.own_fields = b""
        self._head: Head | None = None
        self._source: Source | None = None
        self._token_mark = record.endpoint.token_mark if record.stream else None
        self.record = record
        self.dechunk = not http11
        self.keep_alive = http11 and http.keep_alive
        self.paused = self.started = self.adds_framing = False

    def open(self, source: Source) -> None:
        """Has the client's connection pause, resume and end `source`, whose pool may not be known
        yet."""
        client = self.client
        self._source = source
        client.response = self
        if client.writing_paused:
            self.pause()  # it is full of an earlier response, to a pipelined request

    # Sink of an engine's response

    def attach(self, source: Source, pool: Pool) -> None:
        self.open(source)
        self.own_fields = response_fields(self.record, pool)
        if pool.admission.draining is not None:
            self.keep_alive = False
        self.silence_limit_s = pool.silence_limit_s

    def detach(self) -> None:
        self.client.response = None
        self.silence_limit_s = None
        self._source = None  # it refers to this: a cycle would wait for the garbage collector

    def begin(self, head: Head) -> None:
        self._head = head

    def begin_unframed(self, head: Head, length: int | None = None) -> None:
        """Takes the head of a response whose body comes without framing: the body is sent in
        chunks, or as its `length` bytes."""
        self.adds_framing = length is None and not self.dechunk
        self._head = _reframed(head, length is None)
        if length is not None and head.status not in (204, 304):
            self.own_fields += _CONTENT_LENGTH_LINE % length

    def write(self, data: bytes, *, last: bool = False) -> None:
        transport = self.transport
        if transport.is_closing():
            assert self._source is not None
            self._source.stop()  # the handler of this request is about to be cancelled
            return
        if self.adds_framing:
            data = chunk(data) + LAST_CHUNK if last else chunk(data)
        if not self.started:
            data = self.start() + data
        turn = self.client.turn
        if turn.active > 1:
            turn.write(transport, data)
        else:
            transport.write(data)
        mark = self._token_mark
        if mark is not None and data.find(mark) >= 0:  # `in` takes twice the time
            # An event that is cut in its mark by the engine's connection counts as part of none.
            self.record.last_token = time.monotonic_ns()

    def finish(self, outcome: Outcome, last: bytes = b"") -> None:
        """Ends the response, which is complete. `last`: the end of its body."""
        if (last or self.adds_framing or not self.started) and not self.transport.is_closing():
            self.write(last, last=True)

    def cut_short(self, refusal: Refusal, *, at_event_boundary: bool) -> None:
        head = self._head
        if self.started and head is not None:
            in_stream = at_event_boundary and head.length is None and is_event_stream(head)
            self.end_with(refusal, in_stream=in_stream, chunked=head.chunked and not self.dechunk)

    # Active response of the client's connection

    @property
    def progress(self) -> tuple[int, int]:
        source = self._source
        reads = 0 if source is None else source.reads
        return reads, undelivered_bytes(self.transport) if self.paused else 0

    def pause(self) -> None:
        self.paused = True
        if self._source is not None:
            self._source.pause()

    def resume(self) -> None:
        self.paused = False
        if self._source is not None:
            self._source.resume()

    def fail(self, refusal: Refusal) -> None:
        if self._source is not None:
            self._source.fail(refusal)  # which calls `cut_short`, if anything was sent

    def abort_client(self) -> None:
        """Resets the client's connection: a plain close could look like the end of a response."""
        connection = self.transport.get_extra_info("socket")
        if connection is not None and not self.transport.is_closing():
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.transport.abort()

    # Parts

    def start(self) -> bytes:
        """Returns the head: the engine's fields, ours, and the times known only now."""
        self.started = True
        record, head = self.record, self._head
        record.first_byte = time.monotonic_ns()
        assert head is not None
        record.status = head.status
        fields, framed = filtered_response_head(head, self.dechunk)
        if not framed:
            self.keep_alive = False  # the end of the connection is the end of the body
        closing = b"" if self.keep_alive else _CLOSE
        timing = record.server_timing()
        if self.client.origin_fields:
            closing += b"".join(field_line(*each) for each in self.client.origin_fields.items())
        return b"".join((fields, closing, _TIMING, timing, b"\r\n", self.own_fields, b"\r\n"))

    def end_with(self, refusal: Refusal, *, in_stream: bool, chunked: bool) -> None:
        """Ends a response that has begun with an error event, or by resetting the connection.

        A chunked response ends properly: the client's connection remains usable.
        """
        if self.transport.is_closing():
            return
        if not in_stream:
            self.keep_alive = False
            self.abort_client()
            return
        self.client.turn.flush()
        event = self.record.endpoint.error_format.in_stream(refusal)
        self.transport.write(chunk(event) + LAST_CHUNK if chunked else event)


class HeadWriter(ClientWriter):
    """The response to a HEAD: the head of what a GET would get."""

    __slots__ = ()

    def write(self, data: bytes, *, last: bool = False) -> None:
        if not self.started:
            super().write(b"", last=last)


def response_fields(record: RequestRecord, pool: Pool) -> bytes:
    """Returns the header lines that this sidecar adds to a response of this pool, except for times.

    They are computed when the engine's response begins, or for a client that is shown its place in
    the queue before its request has slots.
    """
    ids = (
        f"{_REQUEST_ID}: {record.request_id}\r\n"
        f"{_CORRELATION_ID}: {record.correlation_id}\r\n{_OWN_ID}: {record.id}\r\n"
    ).encode()
    for name, value in record.rate_limits:
        ids += field_line(name, value)
    if record.queued is None:
        at_once = record.lease is not None
        return ids + (pool.response_fields_at_once if at_once else pool.response_fields)
    queued = _QUEUE_POSITION % record.queue_position
    if record.predicted_start_ms is not None:
        queued += _PREDICTED_START_MS % record.predicted_start_ms
    return ids + pool.response_fields + queued


def chunk(data: bytes) -> bytes:
    """Returns a chunk; nothing for no data, which would be the last chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""


# `http1` returns one object for equal heads, so this is computed once for them.
@lru_cache(maxsize=256)
def _reframed(head: Head, chunked: bool) -> Head:
    """Returns the head without the engine's framing. Not `chunked`: a separate line has the length
    of each response."""
    fields = tuple(field for field in head.fields if field[0] != _CONTENT_LENGTH)
    return replace(head, fields=fields, chunked=chunked, length=None if chunked else 0)


def response_to(
    http: ClientRequest,
    record: RequestRecord,
    refusal: Refusal,
    endpoint: Endpoint | None,
    common_headers: Mapping[str, str],
) -> web.Response:
    """Returns the response to a request that is refused.

    `endpoint`: None if the path is unknown. `common_headers`: of every response of ours.
    """
    headers: dict[str, str] = {
        **common_headers,
        X_REQUEST_ID: record.request_id,
        X_CORRELATION_ID: record.correlation_id,
        X_ORCH_REQUEST_ID: record.id,
        SERVER_TIMING: record.server_timing().decode(),
        **dict(record.rate_limits),
        **refusal.headers(),
    }
    if record.labels is not None:
        headers[X_MEASUREMENT_TYPE] = str(record.labels["measurement_type"])
    if refusal.queue_position is not None:
        headers[X_ORCH_QUEUE_POSITION] = str(refusal.queue_position)
    if refusal.predicted_start_ms is not None:
        headers[X_ORCH_PREDICTED_START_MS] = str(refusal.predicted_start_ms)
    response = web.Response(
        status=refusal.status,
        body=record.endpoint.error_format.body(refusal),
        content_type="application/json",
        headers=headers,
    )
    if refusal.reason is Reason.METHOD_NOT_ALLOWED and endpoint is not None:
        response.headers[ALLOW] = "GET, HEAD" if endpoint.method == "GET" else endpoint.method
    if refusal.reason in _CLOSING or (refusal.reason in _UNREAD and not http.complete):
        response.force_close()
    return response

"""Writes a response to one client's transport.

The head goes out with the first bytes of the body; then each part as it comes. A failure after
that becomes the last event of a stream if an event has just ended; otherwise the connection is
reset: never a clean end of file.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from typing import Final, Protocol, cast

from aiohttp import HttpVersion11, web

from orch_sidecar.api.headers import (
    CONNECTION,
    CONTENT_TYPE,
    SERVER_TIMING,
    X_CORRELATION_ID,
    X_ORCH_PREDICTED_START_MS,
    X_ORCH_QUEUE_POSITION,
    X_ORCH_REQUEST_ID,
    X_REQUEST_ID,
    field_line,
    raw,
)
from orch_sidecar.api.refusal import Refusal
from orch_sidecar.observability.record import Outcome, RequestRecord
from orch_sidecar.pools.pool import Pool
from orch_sidecar.wire.client_connection import ClientConnection
from orch_sidecar.wire.client_connections import SilenceLimit, undelivered_bytes
from orch_sidecar.wire.forwarding import filtered_response_head
from orch_sidecar.wire.http1 import LAST_CHUNK, Head

_RESET: Final = struct.pack("ii", 1, 0)  # SO_LINGER: on, for no time
_CLOSE: Final = field_line(CONNECTION, "close")
_CONTENT_TYPE: Final = raw(CONTENT_TYPE)
_QUEUE_POSITION: Final = field_line(X_ORCH_QUEUE_POSITION, "%d")
_PREDICTED_START_MS: Final = field_line(X_ORCH_PREDICTED_START_MS, "%d")
_TIMING: Final = field_line(SERVER_TIMING, "%b")
# In lower case, as `field_line` writes names; interpolating text costs half of formatting bytes.
_REQUEST_ID, _CORRELATION_ID, _OWN_ID = (
    name.lower() for name in (X_REQUEST_ID, X_CORRELATION_ID, X_ORCH_REQUEST_ID)
)
_EVENT_STREAM: Final = b"text/event-stream"


class Source(Protocol):
    """What writes the response: an engine's, or one that is made of several."""

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


class ClientWriter:
    """The response to one client: the sink of an engine's response, paused by the transport.

    `keep_alive`: whether the client's connection may serve another request afterwards.
    """

    __slots__ = (
        "_extra",
        "_head",
        "_source",
        "_token_mark",
        "client",
        "dechunk",
        "keep_alive",
        "paused",
        "record",
        "silence_limit_s",
        "started",
        "transport",
    )
    announced: bool = False  # its head went out before the engine had the request

    def __init__(self, http: web.BaseRequest, record: RequestRecord) -> None:
        """Raises CancelledError if the client is gone: aiohttp is about to cancel the handler."""
        transport = http.transport
        if transport is None:
            raise asyncio.CancelledError
        http11 = http.version >= HttpVersion11
        self.transport = transport
        self.client = cast(ClientConnection, http.protocol)
        self.silence_limit_s: SilenceLimit | None = None
        self._extra = b""
        self._head: Head | None = None
        self._source: Source | None = None
        self._token_mark = record.identity.endpoint.token_mark if record.stream else None
        self.record = record
        self.dechunk = not http11
        self.keep_alive = http11 and http.keep_alive
        self.paused = self.started = False

    # Sink of an engine's response

    def attach(self, source: Source, pool: Pool) -> None:
        client = self.client
        self._source = source
        self._extra = response_fields(self.record, pool)
        if pool.admission.draining is not None:
            self.keep_alive = False
        client.response = self
        self.silence_limit_s = pool.silence_limit_s
        if client.writing_paused:
            self.pause()  # full of an earlier response, to a pipelined request

    def detach(self) -> None:
        self.client.response = None
        self.silence_limit_s = None
        self._source = None  # it refers to this: a cycle would wait for the garbage collector

    def begin(self, head: Head) -> None:
        self._head = head

    def write(self, data: bytes) -> None:
        transport = self.transport
        if transport.is_closing():
            assert self._source is not None
            self._source.stop()  # the handler of this request is about to be cancelled
            return
        if not self.started:
            data = self._start() + data
        transport.write(data)
        self.wrote(data)

    def finish(self, outcome: Outcome) -> None:
        if not self.started and not self.transport.is_closing():
            self.transport.write(self._start())

    def fail(self, refusal: Refusal, *, at_event_boundary: bool | None = None) -> None:
        """Ends the response with an error, as visibly as its state permits.

        `at_event_boundary`: given by the engine's response, which ends once. None: by others.
        """
        source, head = self._source, self._head
        if at_event_boundary is None:
            if source is not None:
                source.fail(refusal)  # which comes back here, if anything was sent
        elif self.started and head is not None and not self.transport.is_closing():
            in_stream = at_event_boundary and head.length is None and is_event_stream(head)
            chunked = head.chunked and not self.dechunk
            self.end_with(refusal, in_stream=in_stream, chunked=chunked)

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

    def abort_client(self) -> None:
        """Resets the client's connection: a plain close could look like the end of a response."""
        connection = self.transport.get_extra_info("socket")
        if connection is not None and not self.transport.is_closing():
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.transport.abort()

    # Parts of a response, for subscribers that frame the body themselves

    def wrote(self, data: bytes) -> None:
        """Records when the last token was written. `data`: what has been written of a body.

        An event that is cut in its mark by the engine's connection counts as part of none.
        """
        mark = self._token_mark
        if mark is not None and mark in data:
            self.record.last_token = time.monotonic_ns()

    def head_bytes(self, fields: bytes, status: int, extra: bytes) -> bytes:
        """Returns the head: the engine's fields, ours, and the times known only now."""
        self.started = True
        record = self.record
        record.first_byte = time.monotonic_ns()
        record.status = status
        closing = b"" if self.keep_alive else _CLOSE
        timing = _TIMING % record.server_timing()
        if self.client.origin_fields:
            closing += b"".join(field_line(*each) for each in self.client.origin_fields.items())
        return b"".join((fields, closing, timing, extra, b"\r\n"))

    def end_with(self, refusal: Refusal, *, in_stream: bool, chunked: bool) -> None:
        """Ends a started response with an error event, or by resetting the connection.

        A chunked response ends properly: the client's connection remains usable.
        """
        if not in_stream:
            self.keep_alive = False
            self.abort_client()
            return
        event = self.record.identity.endpoint.error_format.in_stream(refusal)
        if chunked:
            event = b"%x\r\n%b\r\n" % (len(event), event) + LAST_CHUNK
        self.transport.write(event)

    def _start(self) -> bytes:
        head = self._head
        assert head is not None
        fields, framed = filtered_response_head(head, self.dechunk)
        if not framed:
            self.keep_alive = False  # the end of the connection is the end of the body
        return self.head_bytes(fields, head.status, self._extra)


class HeadWriter(ClientWriter):
    """The response to a HEAD: the head of what a GET would get."""

    __slots__ = ()

    def write(self, data: bytes) -> None:
        if not self.started:
            super().write(b"")


def response_fields(record: RequestRecord, pool: Pool) -> bytes:
    """Returns the header lines that this sidecar adds to a response of this pool."""
    identity = record.identity
    ids = (
        f"{_REQUEST_ID}: {identity.request_id}\r\n"
        f"{_CORRELATION_ID}: {identity.correlation_id}\r\n{_OWN_ID}: {identity.id}\r\n"
    ).encode()
    for name, value in record.rate_limits:
        ids += field_line(name, value)
    if record.queued is None:
        return ids + (pool.fields if record.lease is None else pool.fields_at_once)
    queued = _QUEUE_POSITION % record.queue_position
    if record.predicted_start_ms is not None:
        queued += _PREDICTED_START_MS % record.predicted_start_ms
    return ids + pool.fields + queued


def is_event_stream(head: Head) -> bool:
    """Whether the body consists of server-sent events, so that an error can be one of them."""
    content_type = next((value for name, value in head.fields if name == _CONTENT_TYPE), b"")
    return content_type.lower().startswith(_EVENT_STREAM)

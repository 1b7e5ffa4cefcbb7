"""Extends aiohttp's server protocol for responses that are written directly to the transport.

A response from an engine bypasses aiohttp: aiohttp must not write one of its own (`SENT`), and the
transport's flow control must reach the response in progress (`ClientConnection`). A connection
parses its requests itself (`RequestParser`), and serves them in one task, where aiohttp creates one
more for each request. Nothing else overrides parts of aiohttp: pyproject.toml bounds its version,
and `tests/integration` verifies the behaviour.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple, cast

from aiohttp import web

from orch_sidecar.api.endpoints import ENDPOINTS, UNKNOWN, ResourcePath
from orch_sidecar.api.headers import EXPECT
from orch_sidecar.api.refusal import INTERNAL_ERROR, Refusal
from orch_sidecar.wire.client_connections import (
    ActiveResponse,
    ClientConnections,
    undelivered_bytes,
)
from orch_sidecar.wire.client_request import SLICE_BYTES, ClientRequest, RequestParser
from orch_sidecar.wire.turn import Turn
from orch_sidecar.wire.unreadable import UNREADABLE, BodyRefused, refusal_of

# Bodies of pipelined requests on one connection, which the body budget does not cover until they
# are served. A single read, of at most 256 KiB, may exceed it.
_PIPELINED_BYTES: Final = 65_536

Handler = Callable[["ClientRequest"], Awaitable[web.StreamResponse]]

# Stand for a response that is already on the wire. After the second one the connection closes.
SENT: Final = web.StreamResponse()
SENT_CLOSE: Final = web.StreamResponse()


class ClientConnection(web.RequestHandler):
    """One client connection: passes the transport's flow control to the response in progress."""

    __slots__ = (
        "_client",
        "_connections",
        "_full",
        "_handle",
        "_headers",
        "_lingering",
        "_requests",
        "origin_fields",
        "request",
        "response",
        "turn",
    )

    def __init__(
        self,
        *args: Any,
        headers: Mapping[str, str] | None = None,
        connections: ClientConnections | None = None,
        max_line_bytes: int = 16_384,
        **kwargs: Any,
    ) -> None:
        """`headers`: of responses to errors. `connections`: enforces the limit. `max_line_bytes`:
        of the request line and of each field."""
        super().__init__(*args, **kwargs)
        self._parser = None
        self._handle = cast(Handler, self._request_handler)
        self._requests = RequestParser(self, max_line_bytes)
        self._full = False  # reading waits until requests are served
        self._headers = headers
        self._connections = connections
        self.turn = Turn() if connections is None else connections.turn
        # Like `transport`, which aiohttp drops on close even with bytes still to be sent.
        self._client: asyncio.Transport | None = None
        self._lingering: asyncio.Future[None] | None = None
        self.request: ClientRequest | None = None
        self.response: ActiveResponse | None = None
        self.origin_fields: Mapping[str, str] = {}  # for pages of other origins

    async def start(self) -> None:
        """Serves one request after the other; aiohttp runs this as the task of the connection."""
        try:
            while not self._force_close and await self._serve_next():
                self._next_keepalive_close_time = self._loop.time() + self._keepalive_timeout
                if self._keepalive_handle is None:
                    self._keepalive_handle = self._loop.call_at(
                        self._next_keepalive_close_time, self._process_keepalive
                    )
        except asyncio.CancelledError:  # the client is gone, or the server is stopping
            self.force_close()
            raise
        except Exception:
            self.logger.exception("Error serving a connection")
            self.force_close()
        if not self._force_close:
            self._task_handler = None
            if self.transport is not None:
                self.transport.close()

    async def _serve_next(self) -> bool:
        """Serves the next request. Returns whether the connection may serve another one.

        A method of its own, so that an idle connection keeps nothing of the last request.
        """
        ready, turn = self._requests.ready, self.turn
        if ready:
            await asyncio.sleep(0)  # other connections' turn: one read holds thousands of requests
        else:
            waiter = self._waiter = asyncio.Future()
            try:
                await waiter
            except asyncio.CancelledError:
                self._waiter = None
                turn.starting -= waiter.done() and not waiter.cancelled()
                raise
            turn.starting -= 1
            if not ready:
                return False  # its client has left
        request = ready.popleft()
        if self._full:
            self._read_on()
        self._request_in_progress, self.request = True, request
        turn.active += 1
        try:
            response = await self._handle(request)
        except UNREADABLE as error:  # of what aiohttp's request reads
            response = self._error(request, refusal_of(error))
        except Exception:
            self.logger.exception("Error handling request")
            response = self._error(request, INTERNAL_ERROR)
        finally:
            self._request_in_progress, self.request = False, None
            turn.active -= 1
            if turn.unwritten:
                turn.flush()
            if self._handler_waiter is not None:
                self._handler_waiter.set_result(None)  # of `shutdown`
        sent = response is SENT or response is SENT_CLOSE
        self._keepalive = response is SENT if sent else await self._finish(request, response)
        if self._keepalive and not request.complete:
            await self._discard(request)
        goes_on = self._keepalive and not self._close and not self._force_close
        return goes_on or await self._linger(request)

    async def _finish(self, request: ClientRequest, response: web.StreamResponse) -> bool:
        """Has aiohttp send a response. Returns whether it leaves the connection open."""
        # A client that has not been invited to send its body may go on with another request.
        if not request.keep_alive or (EXPECT in request.headers and not request.complete):
            response.force_close()
        _, gone = await self.finish_response(request.for_aiohttp(), response, None)
        if gone:
            self.force_close()
        return bool(response.keep_alive)

    async def _discard(self, request: ClientRequest) -> None:
        """Reads the rest of a body that nobody has read, for a while; then closes."""
        if not self._force_close:
            with contextlib.suppress(TimeoutError, *UNREADABLE):
                async with asyncio.timeout(self._lingering_time):
                    while not request.complete:
                        await request.content.readany()
        if not request.complete and not self._force_close:
            self.close()

    async def _linger(self, last: ClientRequest) -> bool:
        """Ends the connection. For a client that does not expect that, and may be sending, not at
        once: were it unread, the system would reset the connection, and the client could lose the
        response. Returns False."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return False
        if not (last.asks_to_close and last.complete):
            self._close = True  # what arrives is discarded
            with contextlib.suppress(OSError):  # it has left; uvloop's does not say so
                transport.write_eof()
            transport.resume_reading()
            self._lingering = self._loop.create_future()  # ends with the connection
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._lingering_time):
                    await self._lingering
        return False

    def refuse_upload(self, refusal: Refusal) -> None:
        """Refuses the request whose body is arriving; nothing if none is."""
        request = self.request
        if request is not None and not request.complete:
            request.fail(BodyRefused(refusal))

    def pause_reading(self) -> None:
        self._reading_paused = True
        self._pause_transport_reading()

    def resume_reading(self, resume_parser: bool = True) -> None:
        if self._reading_paused:  # aiohttp calls this for each body, paused or not
            self._reading_paused = False
            if not self._full:
                self._resume_transport_reading()

    def data_received(self, data: bytes) -> None:
        if self._force_close or self._close:
            return
        requests = self._requests
        if len(data) <= SLICE_BYTES:
            requests.parse(data)
        else:
            requests.parse_slices(data)
        if ready := requests.ready:
            waiter = self._waiter
            if waiter is not None:
                self._waiter = None  # aiohttp ends connections that have one
                self.turn.starting += 1
                waiter.set_result(None)
            if not self._full and (len(ready) > 1 or self.request is not None):
                self._full = self._is_full()
                if self._full:
                    self._pause_transport_reading()

    def _read_on(self) -> None:
        """Goes on to parse and to read, if there is room for more requests."""
        self._requests.go_on()
        self._full = self._is_full()
        if not self._full and not self._reading_paused:
            self._resume_transport_reading()

    def _is_full(self) -> bool:
        """Whether the requests ahead are as many or as large as may wait."""
        requests = self._requests
        ahead_bytes = sum(each.arrived_bytes for each in requests.ready)
        return requests.is_full or ahead_bytes > _PIPELINED_BYTES

    @property
    def is_idle(self) -> bool:
        """Whether it serves no request and has nothing left to send; also while it waits for its
        client to read the last response."""
        waiter, transport = self._lingering or self._waiter, self.transport
        if waiter is None or waiter.done() or transport is None:
            return False
        return transport.get_write_buffer_size() == 0

    @property
    def unsent_bytes(self) -> int:
        """Bytes of finished responses that the client has not read yet."""
        if self._client is None or self.response is not None:
            return 0
        return undelivered_bytes(self._client)

    def force_close(self) -> None:
        self.turn.flush()
        super().force_close()

    def abort(self) -> None:
        """Closes the connection immediately."""
        if self._client is not None:
            self._client.abort()

    @property
    def reads_ahead(self) -> bool:
        """Whether bytes that arrive now follow the request being served."""
        return self.request is not None and self.request.complete

    def close_after_current(self) -> None:
        """Closes after the current request: whatever else the client sends is discarded."""
        self.close()
        # The head of the response announces it, unless it was sent already.
        if self.response is not None:
            self.response.keep_alive = False
        if self.request is not None:
            self.request.keep_alive = False
        if self.transport is not None:
            self.transport.resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self._connections is not None and not self._connections.enter(self):
            cast(asyncio.Transport, transport).abort()
            return
        self._client = cast(asyncio.Transport, transport)
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._connections is not None:
            self._connections.leave(self)
        self._client = None
        if self._lingering is not None:
            self._lingering.cancel()
        if self.request is not None and not self.request.complete:
            self.request.fail(exc or ConnectionResetError("the client has left"))
        self._requests.close()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self.response is not None:
            self.response.pause()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.response is not None:
            self.response.resume()

    def _error(self, request: ClientRequest, refusal: Refusal) -> web.Response:
        """Returns the response to a broken body or after an error of our own."""
        endpoint = ENDPOINTS.get(request.rel_url.raw_path, UNKNOWN)
        response = web.Response(
            status=refusal.status,
            body=endpoint.error_format.body(refusal),
            content_type="application/json",
            headers={**(self._headers or {}), **refusal.headers()},
        )
        response.force_close()
        return response


class ResourceRequest(NamedTuple):
    """A request for a file, a batch, or all of them, with a method that its path supports.

    `what`, `name`: what its path names. `owner`: the digest of its key, empty without keys.
    `headers`: of a response that is sent where the request is answered.
    """

    http: web.BaseRequest
    what: ResourcePath
    name: str
    owner: str
    headers: Mapping[str, str]

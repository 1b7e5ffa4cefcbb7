"""Extends aiohttp's server protocol for responses that are written directly to the transport.

A response from an engine bypasses aiohttp: aiohttp must not write one of its own
(`AlreadySent`), and the transport's flow control must reach the response in progress
(`ClientConnection`). A connection serves its requests in one task, where aiohttp creates one more
for each request. Nothing else overrides parts of aiohttp: pyproject.toml bounds its version, and
`tests/integration` verifies the behaviour.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final, cast

from aiohttp import StreamReader, web
from aiohttp.http import RawRequestMessage, StreamWriter
from aiohttp.web_protocol import ERROR, _ErrInfo

from orch_sidecar.api.endpoints import ENDPOINTS, UNKNOWN
from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.wire.client_connections import (
    ActiveResponse,
    ClientConnections,
    undelivered_bytes,
)

# Bodies of pipelined requests on one connection, which the body budget does not cover until they
# are served. A single read, of at most 256 KiB, may exceed it.
_PIPELINED_BYTES: Final = 65_536


class AlreadySent(web.StreamResponse):
    """A response that is already on the wire. Stateless: `SENT` and `SENT_CLOSE` are shared."""

    def __init__(self, *, keep_alive: bool) -> None:
        super().__init__()
        self._may_keep_alive = keep_alive

    @property
    def keep_alive(self) -> bool:
        return self._may_keep_alive

    async def prepare(self, request: web.BaseRequest) -> None:
        return

    async def write_eof(self, data: bytes = b"") -> None:
        return


SENT: Final = AlreadySent(keep_alive=True)
SENT_CLOSE: Final = AlreadySent(keep_alive=False)


class ClientConnection(web.RequestHandler):
    """One client connection: passes the transport's flow control to the response in progress."""

    __slots__ = (
        "_client",
        "_connections",
        "_headers",
        "_may_hold_back",
        "origin_fields",
        "response",
    )

    def __init__(
        self,
        *args: Any,
        headers: Mapping[str, str] | None = None,
        connections: ClientConnections | None = None,
        **kwargs: Any,
    ) -> None:
        """`headers`: of the responses to malformed requests. `connections`: enforces the limit."""
        super().__init__(*args, **kwargs)
        self._headers = headers
        self._connections = connections
        # Like `transport`, which aiohttp drops on close even with bytes still to be sent.
        self._client: asyncio.Transport | None = None
        self.response: ActiveResponse | None = None
        self.origin_fields: Mapping[str, str] = {}  # for pages of other origins
        self._may_hold_back = False  # aiohttp's parser may keep unparsed bytes, without notice

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

        A method of its own, so that an idle connection keeps nothing of the last request. Upgrades
        are not supported. aiohttp discards the bytes that follow a request for an unknown upgrade
        (h2c) in the same read: the response therefore announces that the connection closes.
        """
        messages = self._messages
        if not messages and self._may_hold_back:
            self.data_received(b"")
        if not messages:
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        message, payload = messages.popleft()
        if self._parser is not None:
            self._parser.message_consumed()
        if self._buffer_paused and len(messages) <= self._msg_queue_resume_size:
            self._resume_reading_if_drained()
        # No reference to the task: a cancelled one keeps its traceback, which keeps the request.
        task: Any = None
        writer = StreamWriter(self, self._loop)
        malformed: _ErrInfo | None = None
        if isinstance(message, RawRequestMessage):
            head = message._replace(should_close=True) if message.upgrade else message
        else:
            head, malformed = ERROR, message
        request = web.BaseRequest(head, payload, self, writer, task, self._loop)
        response = await self._respond(request, malformed)
        if response is SENT:
            self._keepalive = True
        else:
            _, gone = await self.finish_response(request, response, None)
            if gone:
                return False
            self._keepalive = bool(response.keep_alive)
        if not payload.is_eof():
            await self._discard(payload)
        if len(messages) > 1:
            await asyncio.sleep(0)  # other connections' turn: one read holds thousands of requests
        return self._keepalive and not self._close and not self._force_close

    async def _respond(
        self, request: web.BaseRequest, malformed: _ErrInfo | None
    ) -> web.StreamResponse:
        """Returns the handler's response; an error of the handler becomes one, too. `malformed`:
        what is wrong with the request."""
        if malformed is not None:
            return self.handle_error(request, malformed.status, malformed.exc, malformed.message)
        assert self._request_handler is not None
        self._request_in_progress, self._current_request = True, request
        try:
            return await self._request_handler(request)
        except Exception:
            self.logger.exception("Error handling request")
            return self.handle_error(request)
        finally:
            self._request_in_progress, self._current_request = False, None
            if self._handler_waiter is not None:
                self._handler_waiter.set_result(None)  # of `shutdown`

    async def _discard(self, payload: StreamReader) -> None:
        """Reads the rest of a body that nobody has read, for a while; then closes."""
        if not self._force_close:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._lingering_time):
                    while not payload.is_eof():
                        await payload.readany()
        if not payload.is_eof() and not self._force_close:
            self.close()

    def pause_reading(self) -> None:
        self._may_hold_back = True
        super().pause_reading()

    def resume_reading(self, resume_parser: bool = True) -> None:
        if self._may_hold_back:  # aiohttp calls this for each body, paused or not
            super().resume_reading(resume_parser)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        messages = self._messages
        if len(messages) > 1:
            self._may_hold_back = True
        elif not messages or self._current_request is None:
            return
        # aiohttp limits the number of pipelined requests and each body, but not their total size.
        if not self._buffer_paused:
            ahead_bytes = sum(payload.total_bytes for _, payload in messages)
            if ahead_bytes > _PIPELINED_BYTES:
                self._pause_reading_for_buffer()  # until the next one is served

    @property
    def idle(self) -> bool:
        """Whether it serves no request and has nothing left to send."""
        waiter, transport = self._waiter, self.transport
        if waiter is None or waiter.done() or transport is None:
            return False
        return transport.get_write_buffer_size() == 0

    @property
    def unsent_bytes(self) -> int:
        """Bytes of finished responses that the client has not read yet."""
        if self._client is None or self.response is not None:
            return 0
        return undelivered_bytes(self._client)

    def abort(self) -> None:
        """Closes the connection immediately."""
        if self._client is not None:
            self._client.abort()

    @property
    def reads_ahead(self) -> bool:
        """Whether bytes that arrive now follow the request being served."""
        request = self._current_request
        return request is not None and request.content.is_eof()

    def close_after_current(self) -> None:
        """Closes after the current request: whatever else the client sends is discarded."""
        self.close()
        # The head of the response announces it, unless it was sent already.
        if self.response is not None:
            self.response.keep_alive = False
        request = self._current_request
        if request is not None:
            request._message = request._message._replace(should_close=True)
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
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self.response is not None:
            self.response.pause()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.response is not None:
            self.response.resume()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answers malformed requests and internal errors in the API's error form."""
        if status >= 500:
            refusal = Refusal(Reason.INTERNAL_ERROR, "internal error of the sidecar; see its log")
            endpoint = ENDPOINTS.get(request.rel_url.raw_path, UNKNOWN)
        else:
            endpoint = UNKNOWN
            text = (message or HTTPStatus(status).phrase).split("\n")[0]
            refusal = Refusal(Reason.INVALID_REQUEST, f"not a valid HTTP request: {text}")
        response = web.Response(
            status=status,
            body=endpoint.error_format.body(refusal),
            content_type="application/json",
            headers=self._headers,
        )
        response.force_close()
        return response

"""Extends aiohttp's server protocol for responses that are written directly to the transport.

A response from an engine bypasses aiohttp: aiohttp must not write one of its own (`SENT`), and the
transport's flow control must reach the response in progress (`ClientConnection`). A connection
serves its requests in one task, where aiohttp creates one more for each request, and makes
aiohttp's request only of what aiohttp answers (`ClientRequest`). Nothing else overrides parts of
aiohttp: pyproject.toml bounds its version, and `tests/integration` verifies the behaviour.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, cast

from aiohttp import EMPTY_PAYLOAD, HttpVersion, StreamReader, web
from aiohttp.http import RawRequestMessage, StreamWriter
from multidict import CIMultiDictProxy
from yarl import URL

from orch_sidecar.api import errors
from orch_sidecar.api.endpoints import ENDPOINTS, UNKNOWN, Endpoint
from orch_sidecar.api.headers import CONTENT_LENGTH, EXPECT
from orch_sidecar.api.refusal import INTERNAL_ERROR, Reason, Refusal
from orch_sidecar.wire.client_connections import (
    ActiveResponse,
    ClientConnections,
    undelivered_bytes,
)
from orch_sidecar.wire.unreadable import UNREADABLE, BodyRefused, first_line, not_http, refusal_of

# Bodies of pipelined requests on one connection, which the body budget does not cover until they
# are served. A single read, of at most 256 KiB, may exceed it.
_PIPELINED_BYTES: Final = 65_536

Handler = Callable[["ClientRequest"], Awaitable[web.StreamResponse]]

# Stand for a response that is already on the wire. After the second one the connection closes.
SENT: Final = web.StreamResponse()
SENT_CLOSE: Final = web.StreamResponse()


class ClientRequest:
    """A request of a client: its head, its body, and the connection on which it came.

    `target`: as it was sent, with its query. `content`: the body. `keep_alive`: the connection may
    serve another request afterwards. `malformed`: why it cannot be served, whatever it asks for.
    aiohttp's own request costs several times as much, and is made only for what aiohttp answers
    (`for_aiohttp`).
    """

    __slots__ = (
        "_for_aiohttp",
        "_message",
        "content",
        "headers",
        "keep_alive",
        "malformed",
        "method",
        "protocol",
        "raw_headers",
        "target",
        "version",
    )

    def __init__(
        self,
        message: RawRequestMessage,
        content: StreamReader,
        protocol: ClientConnection,
        malformed: Refusal | None = None,
    ) -> None:
        self._message = message
        self._for_aiohttp: web.BaseRequest | None = None
        self.content = content
        self.protocol = protocol
        self.method: str = message.method
        self.target: str = message.path
        self.version: HttpVersion = message.version
        self.headers: CIMultiDictProxy[str] = message.headers
        self.raw_headers: tuple[tuple[bytes, bytes], ...] = message.raw_headers
        # Upgrades are not supported. aiohttp discards the bytes that follow a request for an
        # unknown one (h2c) in the same read: the response has to announce that it is the last one.
        # Its parser (3.14) takes the last trailer of a chunked body for a field of the next head.
        self.keep_alive = not (message.should_close or message.upgrade or message.chunked)
        self.malformed = malformed
        if content is EMPTY_PAYLOAD and malformed is None and self.content_length:
            # aiohttp takes 2^64 - 1 for no length, and discards whatever follows.
            text = f"{CONTENT_LENGTH} is {self.content_length}, which no body can have"
            self.malformed, self.keep_alive = Refusal(Reason.INVALID_REQUEST, text), False

    @property
    def rel_url(self) -> URL:
        """The target, parsed; without the host that it may name."""
        url: URL = self._message.url
        return url.relative() if url.absolute else url

    @property
    def asks_to_close(self) -> bool:
        """Whether the client expects that the connection ends with the response."""
        return self._message is not UNREADABLE and self._message.should_close

    @property
    def transport(self) -> asyncio.Transport | None:
        """None: the client is gone."""
        return self.protocol.transport

    @property
    def remote(self) -> str | None:
        """The client's address."""
        return self.for_aiohttp().remote

    @property
    def content_length(self) -> int | None:
        length = self.headers.get(CONTENT_LENGTH)
        return None if length is None else int(length)

    def for_aiohttp(self) -> web.BaseRequest:
        """Returns the same request as aiohttp has it."""
        made = self._for_aiohttp
        if made is None:
            loop = asyncio.get_running_loop()
            message = self._message._replace(should_close=not self.keep_alive)
            task: Any = None  # a cancelled one keeps its traceback, which keeps the request
            writer = StreamWriter(self.protocol, loop)
            made = web.BaseRequest(message, self.content, self.protocol, writer, task, loop)
            self._for_aiohttp = made
        return made


class ClientConnection(web.RequestHandler):
    """One client connection: passes the transport's flow control to the response in progress."""

    __slots__ = (
        "_client",
        "_connections",
        "_headers",
        "_lingering",
        "_may_hold_bytes",
        "origin_fields",
        "request",
        "response",
    )

    def __init__(
        self,
        *args: Any,
        headers: Mapping[str, str] | None = None,
        connections: ClientConnections | None = None,
        **kwargs: Any,
    ) -> None:
        """`headers`: of responses to errors. `connections`: enforces the limit."""
        super().__init__(*args, **kwargs)
        self._headers = headers
        self._connections = connections
        # Like `transport`, which aiohttp drops on close even with bytes still to be sent.
        self._client: asyncio.Transport | None = None
        self._lingering: asyncio.Future[None] | None = None
        self.request: ClientRequest | None = None
        self.response: ActiveResponse | None = None
        self.origin_fields: Mapping[str, str] = {}  # for pages of other origins
        self._may_hold_bytes = False  # aiohttp's parser may keep unparsed bytes, without notice

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
        messages = self._messages
        if not messages and self._may_hold_bytes:
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
        if isinstance(message, RawRequestMessage):
            request = ClientRequest(message, payload, self)
        else:
            request = ClientRequest(UNREADABLE, payload, self, not_http(message.message))
        response = await self._respond(request)
        if response is SENT or response is SENT_CLOSE:
            self._keepalive = response is SENT
        else:
            self._keepalive = await self._finish(request, response)
        if self._keepalive and not payload.is_eof():
            await self._discard(payload)
        if len(messages) > 1:
            await asyncio.sleep(0)  # other connections' turn: one read holds thousands of requests
        goes_on = self._keepalive and not self._close and not self._force_close
        return goes_on or await self._linger(request)

    async def _respond(self, request: ClientRequest) -> web.StreamResponse:
        """Returns the handler's response; an error of the handler becomes one, too."""
        handle = cast(Handler, self._request_handler)
        self._request_in_progress, self.request = True, request
        try:
            return await handle(request)
        except web.RequestPayloadError as error:  # of what aiohttp's request reads
            refusal = refusal_of(error)
        except Exception:
            self.logger.exception("Error handling request")
            refusal = INTERNAL_ERROR
        finally:
            self._request_in_progress, self.request = False, None
            if self._handler_waiter is not None:
                self._handler_waiter.set_result(None)  # of `shutdown`
        return self._error(ENDPOINTS.get(request.rel_url.raw_path, UNKNOWN), refusal)

    async def _finish(self, request: ClientRequest, response: web.StreamResponse) -> bool:
        """Has aiohttp send a response. Returns whether it leaves the connection open."""
        # A client that has not been invited to send its body may go on with another request.
        if not request.keep_alive or (EXPECT in request.headers and not request.content.is_eof()):
            response.force_close()
        _, gone = await self.finish_response(request.for_aiohttp(), response, None)
        if gone:
            self.force_close()
        return bool(response.keep_alive)

    async def _discard(self, payload: StreamReader) -> None:
        """Reads the rest of a body that nobody has read, for a while; then closes."""
        if not self._force_close:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._lingering_time):
                    while not payload.is_eof():
                        await payload.readany()
        if not payload.is_eof() and not self._force_close:
            self.close()

    async def _linger(self, last: ClientRequest) -> bool:
        """Ends the connection. For a client that does not expect that, and may be sending, not at
        once: were it unread, the system would reset the connection, and the client could lose the
        response. Returns False."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return False
        if not (last.asks_to_close and last.content.is_eof()):
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
        if request is not None and not request.content.is_eof():
            request.keep_alive = False
            request.content.set_exception(BodyRefused(refusal))

    def pause_reading(self) -> None:
        self._may_hold_bytes = True
        super().pause_reading()

    def resume_reading(self, resume_parser: bool = True) -> None:
        if self._may_hold_bytes:  # aiohttp calls this for each body, paused or not
            super().resume_reading(resume_parser)

    def data_received(self, data: bytes) -> None:
        # `super()` would cost as much as the rest of this.
        web.RequestHandler.data_received(self, data)
        messages = self._messages
        if len(messages) > 1:
            self._may_hold_bytes = True
        elif not messages or self.request is None:
            return
        self._fail_unfinished()
        # aiohttp limits the number of pipelined requests and each body, but not their total size.
        if not self._buffer_paused:
            ahead_bytes = sum(payload.total_bytes for _, payload in messages)
            if ahead_bytes > _PIPELINED_BYTES:
                self._pause_reading_for_buffer()  # until the next one is served

    def _fail_unfinished(self) -> None:
        """Fails the body after which nothing can be parsed: aiohttp leaves its reader waiting."""
        messages, request = self._messages, self.request
        error, _ = messages[-1]
        if isinstance(error, RawRequestMessage):
            return
        if len(messages) > 1:
            content = messages[-2][1]
        else:
            assert request is not None  # else there is no body
            content = request.content
        if not content.is_eof():
            content.set_exception(web.RequestPayloadError(first_line(error.message)))

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

    def abort(self) -> None:
        """Closes the connection immediately."""
        if self._client is not None:
            self._client.abort()

    @property
    def reads_ahead(self) -> bool:
        """Whether bytes that arrive now follow the request being served."""
        return self.request is not None and self.request.content.is_eof()

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
        if self.request is not None:
            self.request.content.set_exception(exc or ConnectionResetError("the client has left"))
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self.response is not None:
            self.response.pause()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.response is not None:
            self.response.resume()

    def _error(self, endpoint: Endpoint, refusal: Refusal) -> web.Response:
        """Returns the response to a broken body or after an error of our own."""
        response = web.Response(
            status=errors.BY_REASON[refusal.reason].status,
            body=endpoint.error_format.body(refusal),
            content_type="application/json",
            headers={**(self._headers or {}), **errors.headers(refusal)},
        )
        response.force_close()
        return response

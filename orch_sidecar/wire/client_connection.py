"""The client's side of a connection: aiohttp's server protocol, and what a relay needs of it.

A relay writes to the client's transport itself. So aiohttp must not write a response of its
own (`Written`), and the transport's back-pressure must reach the relay (`ClientConnection`).
This is the one place that overrides parts of aiohttp: pyproject.toml bounds the versions, and
`tests/integration` holds the behaviour fast.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Mapping
from http import HTTPStatus
from typing import Any, Final, cast

from aiohttp import web

from orch_sidecar.api.endpoints import ENDPOINTS, UNKNOWN
from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.proxy.answering import Answering
from orch_sidecar.wire.client_connections import ClientConnections

# Of the bodies of requests that were sent ahead on one connection: they are outside the budget of
# all bodies until they are served. One read, of 256 KiB at most, may go beyond it.
_AHEAD_BYTES: Final = 65_536


class Written(web.StreamResponse):
    """A response that is already on the wire. Stateless: the two below are all there are."""

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


def handler_loop(loop: asyncio.AbstractEventLoop) -> asyncio.AbstractEventLoop:
    """The event loop that connections are to be given.

    From Python 3.12 on aiohttp's tasks start at once, which saves a turn of the loop, and are made
    of the loop itself: there is nothing to be saved by another.
    """
    if sys.version_info >= (3, 12):
        return loop
    return cast(asyncio.AbstractEventLoop, _HandlerLoop(loop))


class _HandlerLoop:
    """The event loop, as a connection sees it: requests are served in the connection's own task.

    aiohttp makes a task for each request, so that context variables set in one are not seen by
    the next; nothing here sets any. Without it a request saves a task and two turns of the loop,
    and is cancelled with its connection all the same.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.time = loop.time
        self.call_at = loop.call_at
        self.create_future = loop.create_future

    def create_task(self, work: Coroutine[Any, Any, Any]) -> Any:
        """What is awaited for `work`."""
        serving = work.cr_code is _SERVING  # type: ignore[attr-defined]
        return work if serving else self._loop.create_task(work)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)


_SERVING = web.RequestHandler._handle_request.__code__


def request_factory(loop: asyncio.AbstractEventLoop) -> Callable[..., web.BaseRequest]:
    """Makes the requests of a server.

    No upgrade is taken here. aiohttp drops what comes in the same read after a request for one
    that it does not know (h2c): so that nothing is lost without the client's knowing, the answer
    says that the connection is closed, and it is.
    """

    def make(
        message: Any, payload: Any, protocol: Any, writer: Any, task: asyncio.Task[None]
    ) -> web.BaseRequest:
        if message.upgrade:
            message = message._replace(should_close=True)
        return web.BaseRequest(message, payload, protocol, writer, task, loop)

    return make


class ClientConnection(web.RequestHandler):
    """Passes its transport's back-pressure on to the relay that writes to it."""

    __slots__ = ("_client", "_connections", "_headers", "relay")

    def __init__(
        self,
        *args: Any,
        headers: Mapping[str, str] | None = None,
        connections: ClientConnections | None = None,
        **kwargs: Any,
    ) -> None:
        """`headers`: what the answers to unreadable requests carry, too. `connections`: the
        limited ones, of which it is one."""
        super().__init__(*args, **kwargs)
        self._headers = headers
        self._connections = connections
        # As `transport`, which aiohttp forgets when it closes it, whatever is yet to be sent.
        self._client: asyncio.Transport | None = None
        self.relay: Answering | None = None

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # aiohttp bounds the requests that are sent ahead, and each body, but not all together.
        messages = self._messages
        if not messages or self._buffer_paused:
            return
        if len(messages) > 1 or self._current_request is not None:
            ahead_bytes = sum(payload.total_bytes for _, payload in messages)
            if ahead_bytes > _AHEAD_BYTES:
                self._pause_reading_for_buffer()  # until the next of them is served

    @property
    def idle(self) -> bool:
        """Whether it serves no request and has no answer on its way."""
        waiter, transport = self._waiter, self.transport
        if waiter is None or waiter.done() or transport is None:
            return False
        return transport.get_write_buffer_size() == 0

    @property
    def unsent_bytes(self) -> int:
        """Of answers that the client has yet to take, and that no relay writes."""
        if self._client is None or self.relay is not None:
            return 0
        return self._client.get_write_buffer_size()

    def abort(self) -> None:
        """Ends it at once."""
        if self._client is not None:
            self._client.abort()

    @property
    def reads_ahead(self) -> bool:
        """Whether what comes now is behind the request that is being served."""
        request = self._current_request
        return request is not None and request.content.is_eof()

    def drop_what_follows(self) -> None:
        """Serves nothing after this request: what the client sends is read and dropped."""
        self.close()
        # The head of its answer says so, if that has yet to go out.
        if self.relay is not None:
            self.relay.keep_alive = False
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
        if self.relay is not None:
            self.relay.pause()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.relay is not None:
            self.relay.resume()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answers what cannot be parsed, and what our own fault broke, in the API's error form."""
        if status >= 500:
            self.log_exception("Error handling request", exc_info=exc)
            refusal = Refusal(Reason.INTERNAL_ERROR, "an error of the sidecar; its log has it")
            endpoint = ENDPOINTS.get(request.rel_url.raw_path, UNKNOWN)
        else:
            endpoint = UNKNOWN
            text = (message or HTTPStatus(status).phrase).split("\n")[0]
            refusal = Refusal(Reason.INVALID_REQUEST, f"not an HTTP request: {text}")
        response = web.Response(
            status=status,
            body=endpoint.error_format.body(refusal),
            content_type="application/json",
            headers=self._headers,
        )
        response.force_close()
        return response

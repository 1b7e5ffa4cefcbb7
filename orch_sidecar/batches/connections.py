"""Sends rows to this sidecar as requests of HTTP, on connections that only this process has.

Each is a pair of sockets. So a row goes the way of every request, with the rules of its key, its
record and its trace, and nothing that listens could be called by anybody else.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, cast

import aiohttp
from aiohttp import web
from aiohttp.client_proto import ResponseHandler

from orch_sidecar.api.headers import (
    ACCEPT_ENCODING,
    AUTHORIZATION,
    CONTENT_TYPE,
    RETRY_AFTER_MS,
    X_CORRELATION_ID,
    X_ORCH_CLASS,
    X_ORCH_REQUEST_ID,
    X_REQUEST_ID,
)
from orch_sidecar.wire.client_connection import ClientConnection, Handler
from orch_sidecar.wire.client_connections import ClientConnections
from vllm_plugin.contracts.profile import ServiceClass

# The class of all rows.
ROW_CLASS: Final = ServiceClass.IDLE

_NO_LIMIT: Final = 1_000_000  # admission decides how many rows there are at once


class Answer(NamedTuple):
    """The answer to a row. `retry_after_s`: of a refusal that says it."""

    status: int
    body: bytes
    retry_after_s: float | None


class RowConnections:
    """The client and the server of all rows. Must be created on the event loop; `close` it."""

    def __init__(
        self,
        handle: Handler,
        common_headers: Mapping[str, str],
    ) -> None:
        """`handle`: serves a row, whose `Authorization` is the digest of its key."""
        self._server = web.Server(cast(Any, handle), handler_cancellation=True)
        self._headers = common_headers
        self.connections = ClientConnections(_NO_LIMIT, "batches")
        self._session = aiohttp.ClientSession(
            "http://rows",
            connector=_Pairs(self._accept),
            timeout=aiohttp.ClientTimeout(total=None),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        )

    async def send(
        self, request_id: str, owner: str, batch_id: str, custom_id: str, url: str, body: bytes
    ) -> Answer:
        """Sends a row, and returns its answer. Raises aiohttp.ClientError if it was cut short.

        Its `custom_id` and its batch are the ids of the client, on its record, in logs and spans.
        """
        headers = {
            ACCEPT_ENCODING: "identity",  # an engine, or a proxy before it, may compress
            CONTENT_TYPE: "application/json",
            X_ORCH_CLASS: ROW_CLASS.value,
            X_ORCH_REQUEST_ID: request_id,
            X_CORRELATION_ID: batch_id,
        }
        if custom_id.isascii() and custom_id.isprintable():
            headers[X_REQUEST_ID] = custom_id
        if owner:
            headers[AUTHORIZATION] = owner
        async with self._session.post(url, data=body, headers=headers) as response:
            wait_ms = response.headers.get(RETRY_AFTER_MS)
            answer = await response.read()
            return Answer(response.status, answer, float(wait_ms) / 1000 if wait_ms else None)

    async def close(self) -> None:
        """Closes all connections: the rows on them are cancelled."""
        await self._session.close()
        self._server.pre_shutdown()
        await self._server.shutdown(1.0)

    def _accept(self) -> ClientConnection:
        return ClientConnection(
            self._server,
            headers=self._headers,
            connections=self.connections,
            loop=asyncio.get_running_loop(),
            access_log=None,
            auto_decompress=False,
        )


class _Pairs(aiohttp.BaseConnector):
    """Connects by pairs of sockets. To be overridden is `_create_connection`, by aiohttp's
    documentation (Client Reference, BaseConnector)."""

    def __init__(self, accept: Callable[[], ClientConnection]) -> None:
        super().__init__(limit=0)
        self._accept = accept

    async def _create_connection(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Any],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 (aiohttp's name)
    ) -> ResponseHandler:
        loop = asyncio.get_running_loop()
        near, far = socket.socketpair()
        near.setblocking(False)
        far.setblocking(False)
        try:
            await loop.connect_accepted_socket(self._accept, far)
        except BaseException:  # a row that is cancelled
            near.close()
            raise
        _, protocol = await loop.create_unix_connection(self._factory, sock=near)
        return protocol

"""The operators' own listener: on the loopback unless told otherwise, so that whoever may send
requests may not also stop them from being served."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from aiohttp import web

from orch_sidecar.config.settings import SidecarSettings
from orch_sidecar.wire.client_connection import ClientConnection, request_factory
from orch_sidecar.wire.client_connections import ClientConnections

logger = logging.getLogger("orch.sidecar")

# Above the port of the sidecar where nothing is set: two sidecars of one machine have two.
_ABOVE_PORT: Final = 1000
_LAST_PORT: Final = 65_535
# Of the descriptors that are no client's.
_MOST_CONNECTIONS: Final = 64


class AdminListener:
    """Listens for operators. Lives on one event loop."""

    def __init__(
        self,
        handle: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        settings: SidecarSettings,
        common_headers: Mapping[str, str],
    ) -> None:
        self._settings = settings
        self._headers = common_headers
        loop = asyncio.get_running_loop()
        self._server = web.Server(handle, request_factory=request_factory(loop))
        self._connections = ClientConnections(_MOST_CONNECTIONS, "operators")
        self._listener: asyncio.Server | None = None

    async def start(self) -> int:
        """Listens. Returns the port. Raises OSError if the one that was asked for is taken."""
        host, wanted = self._settings.admin_host, self._settings.admin_port
        if wanted is not None:
            port = await self._listen(host, wanted)
        else:
            usual = self._settings.port + _ABOVE_PORT
            if not self._settings.port or usual > _LAST_PORT:
                usual = 0
            try:
                port = await self._listen(host, usual)
            except OSError as error:
                logger.warning("%s; taking a free one", error.strerror)
                port = await self._listen(host, 0)
        logger.info("listening for operators on %s:%d", host, port)
        return port

    async def stop(self) -> None:
        if self._listener is not None:
            self._listener.close()
        self._server.pre_shutdown()
        await self._server.shutdown(1.0)

    async def _listen(self, host: str, port: int) -> int:
        loop = asyncio.get_running_loop()
        try:
            self._listener = await loop.create_server(
                lambda: ClientConnection(
                    self._server,
                    headers=self._headers,
                    connections=self._connections,
                    loop=loop,
                    access_log=None,
                ),
                host,
                port,
            )
        except OSError as error:
            text = (
                f"the operators' address {host}:{port} (admin_host, admin_port) cannot be taken: "
                f"{error.strerror or error}"
            )
            raise OSError(error.errno, text) from error
        bound: int = self._listener.sockets[0].getsockname()[1]
        return bound

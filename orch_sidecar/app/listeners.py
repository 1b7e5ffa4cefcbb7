"""The operators' listener.

It is on the loopback unless configured otherwise: a client that may send requests may not also
drain pools.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, cast

from aiohttp import web

from orch_sidecar.api.refusal import error_text
from orch_sidecar.config.pool_settings import authority
from orch_sidecar.config.settings import SidecarSettings
from orch_sidecar.wire.client_connection import ClientConnection, Handler
from orch_sidecar.wire.client_connections import ClientConnections

logger = logging.getLogger("orch.sidecar")

# Added to the port of the clients' listener, so that sidecars of one machine do not conflict.
_ABOVE_PORT: Final = 1000
_LAST_PORT: Final = 65_535
# They are not counted among the connections of clients.
_MAX_CONNECTIONS: Final = 64


@contextmanager
def explained(who: str, host: str, port: int, settings: str) -> Iterator[None]:
    """Adds to the OSError of a listener where it is, for whom, and which settings say so."""
    try:
        yield
    except OSError as error:
        text = f"cannot listen for {who} on {authority(host, port)} ({settings}): "
        text += error_text(error)
        raise OSError(error.errno, text) from error


class AdminListener:
    """The listener for operators. For one event loop."""

    def __init__(
        self,
        handle: Handler,
        settings: SidecarSettings,
        common_headers: Mapping[str, str],
    ) -> None:
        self._settings = settings
        self._headers = common_headers
        self._server = web.Server(cast(Any, handle))
        self.connections = ClientConnections(_MAX_CONNECTIONS, "operators")
        self._listener: asyncio.Server | None = None

    async def start(self) -> int:
        """Starts to listen. Returns the port. Raises OSError if a configured port is in use."""
        host, configured = self._settings.admin_host, self._settings.admin_port
        if configured is not None:
            port = await self._listen(host, configured)
        else:
            default = self._settings.port + _ABOVE_PORT
            if not self._settings.port or default > _LAST_PORT:
                default = 0
            try:
                port = await self._listen(host, default)
            except OSError as error:
                logger.warning("%s; listening on a free port instead", error.strerror)
                port = await self._listen(host, 0)
        logger.info("listening for operators on %s", authority(host, port))
        return port

    async def stop(self) -> None:
        if self._listener is not None:
            self._listener.close()
        self._server.pre_shutdown()
        await self._server.shutdown(1.0)

    async def _listen(self, host: str, port: int) -> int:
        loop = asyncio.get_running_loop()
        with explained("operators", host, port, "admin_host, admin_port"):
            self._listener = await loop.create_server(
                lambda: ClientConnection(
                    self._server,
                    headers=self._headers,
                    connections=self.connections,
                    loop=loop,
                    access_log=None,
                ),
                host,
                port,
            )
        bound: int = self._listener.sockets[0].getsockname()[1]
        return bound

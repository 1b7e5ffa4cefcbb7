"""Marks the requests that sidecars send, and removes their key: nothing behind this sees it."""

from __future__ import annotations

from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from vllm_plugin.contracts.senders import SIDECAR_KEY_HEADER, SidecarKeys

# The key of a request's scope; true: a sidecar of this engine sent it.
FROM_SIDECAR: Final = "orch_from_sidecar"


class SidecarMiddleware:
    """Decides once for each request whether a sidecar sent it."""

    def __init__(self, app: ASGIApp, keys: SidecarKeys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            scope[FROM_SIDECAR] = self._keys.know(scope)
            scope["headers"] = [
                field for field in scope["headers"] if field[0] != SIDECAR_KEY_HEADER
            ]
        await self._app(scope, receive, send)

"""A server that publishes pools to sidecars above."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from aiohttp import web

from orch_sidecar.api.refusal import Refusal
from orch_sidecar.control.state_stream import Publisher
from tests.orch_sidecar.above import US, ledger, view

STREAM = f"/v1/capabilities/stream?instance={US}"


class Tier:
    """A server that publishes pools, and what its pools are told to call."""

    def __init__(self, *pools: str) -> None:
        self.slots = ledger()
        self.views = {name: view(self.slots, name=name) for name in pools}
        self.attached: list[bool] = []
        self.changed: Callable[[], None] | None = None
        self.publisher = Publisher(
            lambda: {
                name: lambda name=name: self.views[name]  # type: ignore[misc]
                for name in pools
            },
            self.attach,
            {"Server": "orch-sidecar"},
        )
        self.leases = self.publisher.leases
        self.url = ""
        self.port = 0

    def attach(self, changed: Callable[[], None] | None) -> None:
        self.attached.append(changed is not None)
        self.changed = changed

    async def handle(self, http: web.BaseRequest) -> web.StreamResponse:
        if http.method == "DELETE":
            answer: Any = self.publisher.revoke(http.path.rpartition("/")[2])
        else:
            answer = await self.publisher.stream(http, http.query.get("client"))
        if isinstance(answer, Refusal):
            return web.json_response({"reason": answer.reason, "param": answer.param}, status=400)
        assert isinstance(answer, web.StreamResponse)
        return answer

    async def start(self) -> web.Server:
        server = web.Server(self.handle, handler_cancellation=True)
        loop = asyncio.get_running_loop()
        self.listener = await loop.create_server(server, "127.0.0.1", 0)
        self.port = self.listener.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        return server

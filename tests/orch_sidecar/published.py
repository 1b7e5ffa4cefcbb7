"""A server that publishes pools to parent sidecars."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, cast

from aiohttp import web

from orch_sidecar.api.refusal import Refusal
from orch_sidecar.auth.authorizer import Authorizer
from orch_sidecar.auth.keys import ApiKey
from orch_sidecar.control.state_stream import Publisher
from orch_sidecar.pools.parent_leases import ParentLeases
from orch_sidecar.pools.registry import PoolRegistry
from orch_sidecar.wire.client_connection import ClientConnection
from orch_sidecar.wire.client_request import ClientRequest
from tests.orch_sidecar.parents import US, FakePool, ledger

STREAM = f"/v1/capabilities/stream?instance={US}"


class Tier:
    """A server that publishes pools, and their registry."""

    def __init__(self, *names: str) -> None:
        self.slots = ledger()
        self.pools = {name: FakePool(self.slots, name) for name in names}
        self.attached: list[bool] = []
        self.changed: Callable[[], None] | None = None
        authorizer = Authorizer(None, parents="open")
        self.publisher = Publisher(cast(PoolRegistry, self), authorizer, {"Server": "orch-sidecar"})
        self.leases = self.publisher.leases
        self.url = ""
        self.port = 0

    def __iter__(self) -> Iterator[FakePool]:
        return iter(self.pools.values())

    def report_changes(self, leases: ParentLeases | None) -> None:
        self.attached.append(leases is not None)
        self.changed = None if leases is None else leases.changed

    async def handle(self, http: web.BaseRequest) -> web.StreamResponse:
        if http.method == "DELETE":
            answer: Any = self.publisher.revoke(http.path.rpartition("/")[2], None)
        else:
            client = http.query.get("client")
            key = None if client is None else ApiKey(client, client.encode())
            answer = await self.publisher.stream(http, key)
        if isinstance(answer, Refusal):
            return web.json_response({"reason": answer.reason, "param": answer.param}, status=400)
        assert isinstance(answer, web.StreamResponse)
        return answer

    async def start(self) -> web.Server:
        def handle(request: ClientRequest) -> Awaitable[web.StreamResponse]:
            return self.handle(request.for_aiohttp())

        server = web.Server(cast(Any, handle), handler_cancellation=True)
        loop = asyncio.get_running_loop()
        self.listener = await loop.create_server(
            lambda: ClientConnection(server, loop=loop, access_log=None), "127.0.0.1", 0
        )
        self.port = self.listener.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        return server

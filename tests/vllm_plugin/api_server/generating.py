"""An application that generates, behind the middleware that tracks leases."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from starlette.types import ASGIApp

from tests.vllm_plugin.asgi import Call
from tests.vllm_plugin.examples import FACTS, LEASE, US
from vllm_plugin.api_server.lease_middleware import ABORT_TURNS, LeaseMiddleware, SidecarMiddleware
from vllm_plugin.contracts.senders import SidecarKeys
from vllm_plugin.contracts.slot_claims import Subscriber
from vllm_plugin.state.engine_state import EngineState


def tracked(
    app: ASGIApp, engine_state: EngineState, is_alive: Callable[[], bool] = lambda: True
) -> SidecarMiddleware:
    """An application whose requests are tracked, of an engine without keys."""
    leases = LeaseMiddleware(app, engine_state, is_alive, lambda: None)
    return SidecarMiddleware(leases, SidecarKeys({}))


class GeneratingApp:
    """An application that finishes its response once `go_on` is set."""

    def __init__(self) -> None:
        self.engine_state = EngineState(FACTS)
        self.go_on = asyncio.Event()
        self.entered = asyncio.Event()
        self.fails = False
        self.status = 200
        self.order: list[str] = []
        self.lives = True
        self.app = tracked(self.generate, self.engine_state, lambda: self.lives)
        self.subscriber = Subscriber(US, lambda: self.order.append("reported"))
        self.engine_state.subscribe(self.subscriber)

    async def generate(self, scope: Any, receive: Any, send: Any) -> None:
        self.entered.set()
        engine_side = asyncio.ensure_future(self.output())
        client_side = asyncio.ensure_future(self.listen(receive))
        try:
            await send({"type": "http.response.start", "status": self.status, "headers": []})
            await send({"type": "http.response.body", "body": b"a", "more_body": True})
            await self.go_on.wait()
            if self.fails:
                raise RuntimeError("the handler failed")
            await send({"type": "http.response.body", "body": b"b", "more_body": False})
            self.order.append("sent")
        finally:
            client_side.cancel()
            engine_side.cancel()  # as vLLM does: cancelled, not awaited

    async def listen(self, receive: Any) -> None:
        """As vLLM does, to cancel what it generates for a client that is gone."""
        while (await receive())["type"] != "http.disconnect":
            pass

    async def output(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.order.append("aborted in the engine")

    def call(
        self,
        path: str = "/v1/completions",
        lease: str | None = LEASE,
        traceparent: str | None = None,
        root_path: str = "",
    ) -> Call:
        headers = {} if lease is None else {"X-Orch-Lease": lease}
        if traceparent is not None:
            headers["traceparent"] = traceparent
        return Call(self.app, "POST", path, headers, root_path=root_path)

    async def begun(self) -> Call:
        """A call that has entered."""
        call = self.call()
        await self.entered.wait()
        return call

    async def settled(self) -> None:
        for _ in range(ABORT_TURNS + 2):
            await asyncio.sleep(0)

    def assert_no_request_left(self) -> None:
        assert self.engine_state.leases.leased() == 0
        assert self.engine_state.leases.foreign_to(US) == 0

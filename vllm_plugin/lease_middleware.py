"""Tracks which generating requests are in the engine, as ASGI middleware."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Final

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vllm_plugin.engine_state import EngineState
from vllm_plugin.routes import generates

# After a disconnect vLLM cancels the generating task and answers without waiting for it, so the
# end of a call does not mean that the engine has let go. The abort is in the engine's ordered
# channel once that task has run, a handful of turns of the event loop later; what is admitted
# after that is queued behind it.
ABORT_TURNS: Final = 16

LEASE_HEADER: Final = b"x-orch-lease"
TRACE_HEADER: Final = b"traceparent"

# The type of the error by which a sidecar knows that the engine has started no part of a request.
ENGINE_GONE: Final = "engine_gone"
RETRY_AFTER_S: Final = 1  # the smallest value of `Retry-After`


class LeaseMiddleware:
    """Adds generating requests to the engine's state, and removes them when they have ended.

    An engine core that has died takes its API server with it, but some milliseconds later:
    requests that arrive in between are rejected untouched, so that they can be retried elsewhere.
    `refresh` is called after all other requests: an operator's call may have changed something.
    """

    def __init__(
        self,
        app: ASGIApp,
        engine_state: EngineState,
        is_alive: Callable[[], bool],
        refresh: Callable[[], None],
    ) -> None:
        self._app = app
        self._engine_state = engine_state
        self._is_alive = is_alive
        self._refresh = refresh

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not _generates(scope):
            await self._app(scope, receive, send)
            self._refresh()
            return
        if scope["type"] == "http" and not self._is_alive():
            error = {
                "message": "the engine is shutting down and accepts no more requests",
                "type": ENGINE_GONE,
                "param": None,
                "code": 503,
                "retriable": True,
                "retry_after_ms": RETRY_AFTER_S * 1000,
            }
            fields = {"Retry-After": str(RETRY_AFTER_S)}
            await JSONResponse({"error": error}, 503, fields)(scope, receive, send)
            return
        headers = scope["headers"]
        key = self._engine_state.enter(_first(headers, LEASE_HEADER), _first(headers, TRACE_HEADER))
        if key is None:
            error = {
                "message": "this X-Orch-Lease was used or revoked before; send each lease once",
                "type": "lease_spent",
                "param": None,
                "code": 409,
            }
            await JSONResponse({"error": error}, status_code=409)(scope, receive, send)
            return

        async def receiving() -> Message:
            message = await receive()
            if message["type"] == "http.request" and not message.get("more_body", False):
                self._engine_state.body_received(key, time.time())
            return message

        try:
            await self._app(scope, receiving, send)
        finally:
            _call_after_turns(ABORT_TURNS, lambda: self._engine_state.leave(key))


def _first(headers: Iterable[tuple[bytes, bytes]], wanted: bytes) -> str:
    """Returns a header's first value, as vLLM does; an empty text without one."""
    return next((value.decode("latin-1") for name, value in headers if name == wanted), "")


def _call_after_turns(turns: int, call: Callable[[], object]) -> None:
    """Schedules a call after so many turns of the event loop.

    Not awaited: this runs in a cancelled task, and cancellation may be repeated (a cancel scope of
    anyio repeats it at each turn), which would leave the request in the state for ever.
    """
    if turns:
        asyncio.get_running_loop().call_soon(_call_after_turns, turns - 1, call)
    else:
        call()


def _generates(scope: Scope) -> bool:
    if scope["type"] == "http":
        return generates(scope["method"], scope["path"])
    return bool(scope["type"] == "websocket")

"""What the engine says over HTTP: its state, the stream of its changes, and revocation.

    GET    /v1/capabilities                    the state, once
    GET    /v1/capabilities/stream?instance=I  the state as seen by sidecar instance I, then its
                                               changes, as server-sent events: `state` first,
                                               then `change`, `ended` and `heartbeat`, which
                                               has what grew or (`state`) turned since the last
    DELETE /v1/capabilities/leases/{lease}     spends a lease: {"ended": true} says that no
                                               request carries it and none ever will

and the middleware that knows which generating requests are in the engine.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from vllm_plugin.allowlist import NAME
from vllm_plugin.board import API_VERSION, Board, Listener, State
from vllm_plugin.kv_cache import KvCache
from vllm_plugin.operators import (
    ASGIApp,
    HoldMiddleware,
    Message,
    Receive,
    Scope,
    Send,
    follow_duty,
    woken_within,
)
from vllm_plugin.routes import generates
from vllm_plugin.workloads import workloads_of

CHANGES_EVERY_S: Final = 0.020
HEARTBEAT_EVERY_S: Final = 1.0
# An open response holds up the engine's shutdown: it looks this often whether to end itself.
LOOK_EVERY_S: Final = 0.5
# After a disconnect vLLM cancels the task that generates and answers without waiting for it, so
# the end of a call says nothing yet. The abort is in the engine's ordered channel once that task
# has run: a handful of turns of the event loop. What is admitted after that comes behind it.
LET_GO_TURNS: Final = 16

LEASE_HEADER: Final = b"x-orch-lease"

# The type of the error that tells a sidecar that the engine took nothing of a request.
ENGINE_GONE: Final = "engine_gone"
RETRY_AFTER_S: Final = 1  # the least that `Retry-After` can say

_LEASES: Final = "/v1/capabilities/leases/"
# Of a lease in a log line: what names it, not what makes it unguessable.
_SHOWN_CHARACTERS: Final = 24


class ShortLeases(logging.Filter):
    """Cuts the leases in the server's access log short: client, method, path, version, status."""

    def filter(self, record: logging.LogRecord) -> bool:
        match record.args:
            case (client, method, str(path), *rest) if path.startswith(_LEASES):
                record.args = (client, method, path[: len(_LEASES) + _SHOWN_CHARACTERS], *rest)
        return True


def now_text() -> str:
    """The time in RFC 3339, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def event(name: str, data: State) -> bytes:
    """One server-sent event."""
    return f"event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


class LeaseMiddleware:
    """Counts generating requests in and out of the engine, by the lease they carry.

    An engine core that has died takes its API server with it, but some milliseconds later: what
    comes in between is turned away untouched, so that it can be served by whoever comes next.
    """

    def __init__(
        self, app: ASGIApp, board: Board, lives: Callable[[], bool], look: Callable[[], None]
    ) -> None:
        self._app = app
        self._board = board
        self._lives = lives
        self._look = look  # at what an operator's call may have changed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not _generates(scope):
            await self._app(scope, receive, send)
            self._look()
            return
        if scope["type"] == "http" and not self._lives():
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
        lease = next((value for name, value in scope["headers"] if name == LEASE_HEADER), b"")
        key = self._board.entered(lease.decode("latin-1"))
        if key is None:
            error = {
                "message": "this X-Orch-Lease is spent: it was used or revoked before",
                "type": "lease_spent",
                "param": None,
                "code": 409,
            }
            await JSONResponse({"error": error}, status_code=409)(scope, receive, send)
            return

        async def receiving() -> Message:
            message = await receive()
            if message["type"] == "http.request" and not message.get("more_body", False):
                self._board.submitted(key, time.time())
            return message

        try:
            await self._app(scope, receiving, send)
        finally:
            _after_turns(LET_GO_TURNS, lambda: self._board.left(key))


def _after_turns(turns: int, call: Callable[[], object]) -> None:
    """Calls after so many turns of the event loop.

    Not awaited: this runs in a cancelled task, and cancellation may come again (a cancel scope
    of anyio repeats it at each turn), which would leave the request in the books for ever.
    """
    if turns:
        asyncio.get_running_loop().call_soon(_after_turns, turns - 1, call)
    else:
        call()


def _generates(scope: Scope) -> bool:
    if scope["type"] == "http":
        return generates(scope["method"], scope["path"])
    return bool(scope["type"] == "websocket")


class CapabilitiesEndpoint:
    """The endpoint plugin. Inert while there is no board (no profile selected)."""

    name = NAME
    required_tasks = None

    def __init__(
        self,
        board_of: Callable[[], Board | None],
        kv_cache_of: Callable[[Any], Awaitable[KvCache]],
    ) -> None:
        self._board_of = board_of
        self._kv_cache_of = kv_cache_of
        self._engine: Any = None
        self._app: Any = None
        self._ask = asyncio.Event()
        self._duty: asyncio.Task[None] | None = None
        self._models: Any = None  # vLLM's list of what it serves

    def attach_router(self, app: Any) -> None:
        board = self._board_of()
        if board is None:
            return
        self._app = app
        paths = {getattr(route, "path", "") for route in app.routes}
        board.workloads = workloads_of(paths)
        app.add_middleware(
            LeaseMiddleware, board=board, lives=self._engine_lives, look=self._look_at_models
        )
        app.add_middleware(HoldMiddleware, board=board, paths=paths, ask=self._ask.set)
        app.add_api_route("/v1/capabilities", self._capabilities, methods=["GET"])
        app.add_api_route("/v1/capabilities/stream", self._stream, methods=["GET"])
        app.add_api_route(f"{_LEASES}{{lease}}", self._revoke, methods=["DELETE"])
        logging.getLogger("uvicorn.access").addFilter(ShortLeases())

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:
        self._engine = engine_client
        board = self._board_of()
        if board is None:
            return
        self._models = state.openai_serving_models
        self._look_at_models()
        if engine_client is not None:
            board.kv_cache = await self._kv_cache_of(engine_client)
            self._duty = asyncio.create_task(
                follow_duty(board, engine_client.is_sleeping, self._engine_lives, self._ask)
            )

    def _board(self) -> Board:
        board = self._board_of()
        assert board is not None  # the routes exist only with a board
        return board

    def _look_at_models(self) -> None:
        """Reports the names under which requests are served now. The configuration knows only
        the first; adapters come and go by calls, and by requests that a resolver finds one for."""
        if self._models is not None:
            aliases = (base.name for base in self._models.base_model_paths)
            self._board().serves((*aliases, *self._models.lora_requests))

    async def _capabilities(self, request: Request) -> Response:
        self._look_at_models()
        state = self._board().state(request.query_params.get("instance"), time.time())
        state |= {"observed_at": now_text(), "age_ms": 0}
        return JSONResponse({"api_version": API_VERSION, "engines": [state]})

    async def _revoke(self, lease: str) -> Response:
        try:
            ended = self._board().leases.revoke(lease)
        except ValueError as error:
            body = {"message": str(error), "type": "invalid_request_error", "code": 400}
            return JSONResponse({"error": body}, status_code=400)
        return JSONResponse({"ended": ended})

    async def _stream(self, request: Request) -> Response:
        return StreamingResponse(
            self._events(request.query_params.get("instance")),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store"},
        )

    def _engine_lives(self) -> bool:
        if self._engine is not None and (self._engine.errored or not self._engine.is_running):
            return False
        server = getattr(self._app.state, "server", None)
        return not (server is not None and server.should_exit)

    async def _events(self, instance: str | None) -> AsyncIterator[bytes]:
        board = self._board()
        woken = asyncio.Event()
        listener = Listener(instance, woken.set)
        board.listen(listener)
        try:
            sent, hold = board.moving(instance), board.duty.hold
            slow = board.slow(time.time())
            first = (
                board.state(instance, time.time())
                | slow
                | {"leases": sorted(board.leases.of(instance))}
            )
            yield event("state", first | {"observed_at": now_text()})
            changed_at = beat_at = time.monotonic()
            dirty = False
            while self._engine_lives():
                self._look_at_models()
                if woken.is_set():
                    woken.clear()
                    dirty = True
                if listener.ended:
                    ended, listener.ended = listener.ended, []
                    yield event("ended", {"leases": ended})
                now = time.monotonic()
                if now - beat_at >= HEARTBEAT_EVERY_S or hold != board.duty.hold:
                    hold = board.duty.hold
                    beat_at, before, slow = now, slow, board.slow(time.time())
                    grown = {k: v for k, v in slow.items() if before[k] != v}
                    yield event("heartbeat", grown | {"observed_at": now_text()})
                if dirty and now - changed_at >= CHANGES_EVERY_S:
                    moving = board.moving(instance)
                    change = {k: v for k, v in moving.items() if sent[k] != v}
                    changed_at, sent, dirty = now, moving, False
                    if change:
                        yield event("change", change | {"observed_at": now_text()})
                rest_s = changed_at + CHANGES_EVERY_S - now if dirty else LOOK_EVERY_S
                rest_s = min(rest_s, beat_at + HEARTBEAT_EVERY_S - now)
                await woken_within(woken, rest_s)
        finally:
            board.unlisten(listener)

"""Tracks which generating requests are in the engine, and refuses others, as ASGI middleware.

`SidecarMiddleware` comes first: it decides once for each request whether a sidecar sent it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vllm_plugin.api_server.routes import generates, route_path
from vllm_plugin.contracts.lease_protocol import (
    ADAPTER_HEADER,
    ENGINE_GONE,
    NO_ADAPTER,
    NO_SLOT,
    parse_adapter,
    parse_lease,
)
from vllm_plugin.contracts.profile import ServiceClass
from vllm_plugin.contracts.senders import (
    SIDECAR_KEY_HEADER,
    EngineKeys,
    SidecarKeys,
    Unleased,
)
from vllm_plugin.state.engine_state import EngineState
from vllm_plugin.state.leases import Rejected

# A response that was completed for its client ends the request: vLLM has nothing of it left, so its
# slots are free before its sidecar learns of the end. So does a rejection (4xx) of a request for
# one sequence: of several, vLLM may have begun the others.
#
# After a disconnect vLLM cancels the generating task and answers without waiting for it, so the
# end of a call does not mean that the engine has let go. The abort is in the engine's ordered
# channel once that task has run, a handful of turns of the event loop later; what is admitted
# after that is queued behind it.
ABORT_TURNS: Final = 16
# A stream that fails has the status 200, and ends like any other; what is left of it in the engine
# is aborted later, as after a disconnect. These events of the streams of vLLM report a failure.
_FAILURES: Final = (b'data: {"error"', b"event: error")

LEASE_HEADER: Final = b"x-orch-lease"
CLASS_HEADER: Final = b"x-orch-class"
_ADAPTER_HEADER: Final = ADAPTER_HEADER.lower().encode()
TRACE_HEADER: Final = b"traceparent"
AUTHORIZATION: Final = b"authorization"

# The key of a request's scope; true: a sidecar of this engine sent it.
FROM_SIDECAR: Final = "orch_from_sidecar"

RETRY_AFTER_S: Final = 1  # the smallest value of `Retry-After`


class SidecarMiddleware:
    """Marks the requests that sidecars send, and removes their key: nothing behind this sees it."""

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


class LeaseMiddleware:
    """Adds generating requests to the engine's state, and removes them when they have ended.

    An engine core that has died takes its API server with it, but some milliseconds later:
    requests that arrive in between are rejected untouched, so that they can be retried elsewhere.
    Only leases of requests that `SidecarMiddleware` knows as a sidecar's count.
    `refresh` is called after all other requests: an operator's call may have changed something.
    """

    def __init__(
        self,
        app: ASGIApp,
        engine_state: EngineState,
        is_alive: Callable[[], bool],
        refresh: Callable[[], None],
        keys: Callable[[], EngineKeys] = EngineKeys,
        *,
        sidecars_have_keys: bool = False,
    ) -> None:
        self._app = app
        self._engine_state = engine_state
        self._is_alive = is_alive
        self._refresh = refresh
        self._keys = keys
        self._refuses = engine_state.facts.unleased is Unleased.REFUSE
        self._sidecars_have_keys = sidecars_have_keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not _generates(scope):
            await self._app(scope, receive, send)
            self._refresh()
            return
        if scope["type"] == "http" and not self._is_alive():
            await refusal(*_GONE, retriable=True)(scope, receive, send)
            return
        entered = self._enter(scope)
        if isinstance(entered, Rejected):
            answer = _REJECTIONS[entered]
            retriable = answer[0] in (429, 503)
            await refusal(*answer, retriable=retriable)(scope, receive, send)
            return
        await self._run(entered, scope, receive, send)

    def _enter(self, scope: Scope) -> int | Rejected:
        headers = scope["headers"]
        lease = _first(headers, LEASE_HEADER)
        counts = scope[FROM_SIDECAR] or self._is_of_a_reader(lease)
        if self._refuses:
            if not self._keys().know(_first(headers, AUTHORIZATION)):
                return Rejected.UNKNOWN
            if not counts or parse_lease(lease) is None:
                return Rejected.UNLEASED
        return self._engine_state.enter(
            lease if counts else None,
            _first(headers, TRACE_HEADER),
            urgent=_first(headers, CLASS_HEADER) != ServiceClass.BULK.value,
            adapter=parse_adapter(_first(headers, _ADAPTER_HEADER))
            if self._engine_state.adapters
            else None,
        )

    def _is_of_a_reader(self, lease: str) -> bool:
        """Whether a sidecar reads the state as the instance of this lease. Sidecars that know no
        key send on what a proxy has added to their clients' requests, and look like that proxy."""
        parsed = None if self._sidecars_have_keys else parse_lease(lease)
        return parsed is not None and self._engine_state.claims.reads(parsed.instance)

    async def _run(self, key: int, scope: Scope, receive: Receive, send: Send) -> None:
        """Runs a request that has entered, until it has left."""
        engine_state, disconnected, succeeded, left = self._engine_state, False, False, False
        # Read only where it may name an adapter.
        body = bytearray() if engine_state.adapters else None

        async def receiving() -> Message:
            nonlocal disconnected
            message = await receive()
            if message["type"] == "http.disconnect":
                disconnected = True
            elif message["type"] == "http.request":
                if body is not None:
                    body.extend(message.get("body", b""))
                if not message.get("more_body", False):
                    engine_state.body_received(key, time.time())
                    # A form is of a model that its sidecar has read.
                    if body is not None and not body.startswith(b"--"):
                        engine_state.model_received(key, _model_of(body))
            return message

        async def sending(message: Message) -> None:
            nonlocal succeeded, left
            if message["type"] == "http.response.body":
                if message.get("more_body", False):
                    if message["body"].startswith(_FAILURES):
                        succeeded = False
                elif succeeded and not disconnected and not left:
                    left = True
                    engine_state.leave(key)
            elif message["type"] == "http.response.start":
                status = message["status"]
                succeeded = status == 200 or (
                    400 <= status < 500 and engine_state.leases.cost(key) == 1
                )
            await send(message)

        try:
            await self._app(scope, receiving, sending)
        finally:
            if not left:
                _call_after_turns(ABORT_TURNS, lambda: engine_state.leave(key))


# Status, type and message.
_GONE: Final = (503, ENGINE_GONE, "the engine is shutting down and accepts no more requests")
_REJECTIONS: Final[Mapping[Rejected, tuple[int, str, str]]] = {
    Rejected.SPENT: (
        409,
        "lease_spent",
        "this X-Orch-Lease was used or revoked before; send each lease once",
    ),
    Rejected.NO_SLOT: (
        429,
        NO_SLOT,
        "the slots of this engine are taken, or others are before this request",
    ),
    Rejected.NO_ADAPTER: (
        429,
        NO_ADAPTER,
        "this engine runs as many LoRA adapters as it can, and none of this request",
    ),
    # As sidecars of older releases know it; so a newer one whose stream has just broken retries.
    Rejected.BUSY: (503, ENGINE_GONE, "the slots of this engine are taken: retry soon"),
    Rejected.UNLEASED: (
        403,
        "lease_required",
        "this engine takes requests by its orch sidecar only: send the request to the sidecar's "
        "address (the engine's profile has `unleased: refuse`). It knows its sidecars by "
        "ORCH_SIDECAR_KEY, or without that on its own host",
    ),
    Rejected.UNKNOWN: (
        401,
        "invalid_api_key",
        "this engine requires its API key: send Authorization: Bearer KEY",
    ),
    Rejected.TOO_LARGE: (
        400,
        "invalid_request_error",
        "this X-Orch-Lease is for more sequences than the engine has slots",
    ),
}


def refusal(status: int, kind: str, message: str, *, retriable: bool = False) -> JSONResponse:
    """Returns an error as vLLM formats them. `retriable`: soon, or at once elsewhere."""
    error: dict[str, Any] = {"message": message, "type": kind, "param": None, "code": status}
    if not retriable:
        return JSONResponse({"error": error}, status)
    error |= {"retriable": True, "retry_after_ms": RETRY_AFTER_S * 1000}
    return JSONResponse({"error": error}, status, {"Retry-After": str(RETRY_AFTER_S)})


def _first(headers: Iterable[tuple[bytes, bytes]], wanted: bytes) -> str:
    """Returns a header's first value, as vLLM does; an empty text without one."""
    return next((value.decode("latin-1") for name, value in headers if name == wanted), "")


def _model_of(body: bytearray) -> str:
    """Returns the model that a body names; an empty text if it names none."""
    try:
        model = json.loads(body)["model"]
    except (ValueError, RecursionError, KeyError, TypeError):
        return ""  # vLLM will reject it, or take its base model
    return model if isinstance(model, str) else ""


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
        return generates(scope["method"], route_path(scope))
    return bool(scope["type"] == "websocket")

"""Tracks what operators do to the engine: a pause, a sleep, an update of the weights.

The middleware sees calls over HTTP as they begin. In addition the engine is asked each second,
and at the end of each such call, whether it is asleep or paused.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vllm_plugin.api_server.routes import BEGIN_UPDATE, END_UPDATE, SLEEP, SUSPENDING, route_path
from vllm_plugin.state.engine_state import EngineState

ASK_EVERY_S: Final = 1.0

logger = logging.getLogger("vllm.orch")


class AdminCallMiddleware:
    """Reports the engine as not ready from the beginning of a call that suspends it.

    `paths`: of the application's routes; most of those that suspend the engine exist in vLLM's
    development mode only. `ask`: triggers a query of the engine.
    """

    def __init__(
        self,
        app: ASGIApp,
        engine_state: EngineState,
        paths: Collection[str],
        ask: Callable[[], None],
    ) -> None:
        self._app = app
        self._engine_state = engine_state
        self._suspending = {path: SUSPENDING[path] for path in paths if path in SUSPENDING}
        self._ask = ask

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = route_path(scope) if scope["type"] == "http" else ""
        reason = self._suspending.get(path)
        if reason is None or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        readiness = self._engine_state.readiness
        key = readiness.call_began(reason)
        self._engine_state.readiness_changed(time.time())
        status = 0

        async def sending(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self._app(scope, receive, sending)
        finally:
            done = 200 <= status < 300
            if done and path in BEGIN_UPDATE:
                readiness.update_began(key)
            else:
                readiness.call_ended(key)
            if done and path == END_UPDATE:
                readiness.update_ended()
            if done and path in SLEEP:
                readiness.sleep_called()
            self._ask()


async def watch_readiness(
    engine_state: EngineState,
    is_sleeping: Callable[[], Awaitable[bool]],
    is_alive: Callable[[], bool],
    ask: asyncio.Event,
) -> None:
    """Asks the engine whether it is asleep or paused, each second and when `ask` is set.

    Sends one query at a time: an engine in a long step answers after it. Returns when the engine
    is no longer alive.
    """
    while is_alive():
        ask.clear()
        ended = engine_state.readiness.query_began()
        try:
            sleeping = await is_sleeping()
        except Exception:
            # vLLM raises failures of the engine core as bare Exceptions: no narrower type fits.
            # A dying engine fails too, which is no error of its own.
            level = logging.ERROR if is_alive() else logging.DEBUG
            message = "orch: the engine did not answer whether it is asleep or paused; asking again"
            logger.log(level, message, exc_info=True)
        else:
            engine_state.readiness.query_answered(ended, sleeping=bool(sleeping))
            engine_state.readiness_changed(time.time())
        await set_within(ask, ASK_EVERY_S)


async def set_within(event: asyncio.Event, timeout_s: float) -> None:
    """Returns when the event is set, or after `timeout_s`."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return

"""What operators do to the engine, followed: a pause, a sleep, new weights.

The middleware sees the calls that come by HTTP as they begin; the engine is asked each second,
and at the end of each such call, whether it takes work.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any, Final

from vllm_plugin.board import Board
from vllm_plugin.routes import BEGIN_UPDATE, END_UPDATE, HOLDING, SLEEP

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

ASK_EVERY_S: Final = 1.0

logger = logging.getLogger("vllm.orch")


class HoldMiddleware:
    """Reports the engine as held up from the begin of a call that holds it up.

    `paths`: of the routes that the application has; most of these come with vLLM's development
    mode only. `ask`: has the engine asked whether it takes work.
    """

    def __init__(
        self, app: ASGIApp, board: Board, paths: Collection[str], ask: Callable[[], None]
    ) -> None:
        self._app = app
        self._board = board
        self._holding = {path: hold for path, hold in HOLDING.items() if path in paths}
        self._ask = ask

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        hold = self._holding.get(scope["path"]) if scope["type"] == "http" else None
        if hold is None or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        duty, path = self._board.duty, scope["path"]
        key = duty.began(hold)
        self._board.held_up(time.time())
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
                duty.updating(key)
            else:
                duty.ended(key)
            if done and path == END_UPDATE:
                duty.updated()
            if done and path in SLEEP:
                duty.slept()
            self._ask()


async def follow_duty(
    board: Board,
    is_sleeping: Callable[[], Awaitable[bool]],
    lives: Callable[[], bool],
    ask: asyncio.Event,
) -> None:
    """Asks the engine whether it takes work, each second and when `ask` is set, while it lives.

    One question at a time: an engine in a long step answers after it.
    """
    while lives():
        ask.clear()
        asked = board.duty.asking()
        try:
            sleeping = await is_sleeping()
        except Exception:
            if lives():
                logger.exception("orch: the engine does not say whether it takes work")
        else:
            board.duty.answered(asked, sleeping=bool(sleeping))
            board.held_up(time.time())
        await woken_within(ask, ASK_EVERY_S)


async def woken_within(woken: asyncio.Event, timeout_s: float) -> None:
    """Returns when woken, or when the time has passed."""
    try:
        async with asyncio.timeout(timeout_s):
            await woken.wait()
    except TimeoutError:
        return

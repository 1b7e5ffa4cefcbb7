"""Requests that no pool can take now, while one is expected back: they wait here for it.

Each is placed again when a pool takes requests, in the order in which they came. What waits for
slots waits in the queue of its pool; a pool that is away has none where others may serve instead.
"""

from __future__ import annotations

import asyncio

from orch_sidecar.api.refusal import Refusal


class WaitingRoom:
    """Lives on one event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[str, asyncio.Future[bool]] = {}
        self._entered = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def open(self) -> None:
        """A pool takes requests."""
        for each in self._waiting.values():
            _end(each, True)

    def refuse(self, ticket: str, refusal: Refusal) -> bool:
        """Ends the wait of a request that was cancelled. False: it does not wait."""
        if ticket not in self._waiting:
            return False
        _end(self._waiting[ticket], False)
        return True

    def enter(self) -> str:
        """Returns a ticket, to be followed by `wait`."""
        self._entered += 1
        ticket = str(self._entered)
        self._waiting[ticket] = self._loop.create_future()
        return ticket

    async def wait(self, ticket: str, longest_s: float) -> bool:
        """Waits until a pool takes requests. False: none does within that time."""
        waiting = self._waiting[ticket]
        timer = self._loop.call_later(longest_s, _end, waiting, False)
        try:
            is_open: bool = await waiting
            return is_open
        finally:
            timer.cancel()
            del self._waiting[ticket]


def _end(waiting: asyncio.Future[bool], is_open: bool) -> None:
    if not waiting.done():
        waiting.set_result(is_open)

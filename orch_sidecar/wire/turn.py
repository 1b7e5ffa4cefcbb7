"""Decides what happens in one turn of the event loop: which requests start, when bytes are written.

Of many requests that arrive at once a few start in each turn: the answers to these are relayed
before the others are looked at. What several connections write in one turn is written at its end:
a receiver on this host that sleeps is woken for the first write, which takes longer than the write
itself, and is still awake for the others. A request that is alone does not come here.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Final

logger = logging.getLogger("orch.sidecar")

# Enough that waking the engine once for all of them saves most of what waking it costs.
STARTS_PER_TURN: Final = 16
# Of more that wait, this part: those that have started lengthen the turns for which the last wait.
_PART_STARTED: Final = 2
# All that is unwritten: a transport says that it is full only when it is written to.
_MOST_UNWRITTEN_BYTES: Final = 65_536


class Turn:
    """The turns of the event loop, as the connections of one listener share them.

    `active`: requests that are being served. `starting`: tasks that are woken for a request, and
    have not run yet; 1 where only `waiting` ones are to be woken next, by what they wait for.
    `unwritten`: what is written at the end of this turn.
    """

    __slots__ = ("_unwritten_bytes", "active", "starting", "unwritten", "waiting")

    def __init__(self) -> None:
        self.active = self.starting = 0
        self.waiting: deque[asyncio.Future[None]] = deque()
        self.unwritten: deque[tuple[asyncio.Transport, bytes]] = deque()
        self._unwritten_bytes = 0

    def start(self, waiter: asyncio.Future[None]) -> None:
        """Wakes the task that waits for a request, when it is its turn."""
        if self.starting < STARTS_PER_TURN and not self.waiting:
            self.starting += 1
            waiter.set_result(None)
        else:
            self.waiting.append(waiter)

    def go_on(self) -> None:
        """Has others start once the event loop has read, if all that were woken have run."""
        if not self.starting and self.waiting:
            self.starting = 1  # those that come meanwhile wait behind them
            asyncio.get_running_loop().call_soon(self._start_others)

    def _start_others(self) -> None:
        waiting, self.starting = self.waiting, 0
        most = max(STARTS_PER_TURN, len(waiting) // _PART_STARTED)
        while waiting and self.starting < most:
            waiter = waiting.popleft()
            if not waiter.done():  # its client is still there
                self.starting += 1
                waiter.set_result(None)

    def write(self, transport: asyncio.Transport, data: bytes) -> None:
        """Writes at the end of this turn, or now with all others if that is much."""
        unwritten = self.unwritten
        if not unwritten:
            asyncio.get_running_loop().call_soon(self.flush)
        unwritten.append((transport, data))
        self._unwritten_bytes += len(data)
        if self._unwritten_bytes >= _MOST_UNWRITTEN_BYTES:
            self.flush()

    def flush(self) -> None:
        """Writes now what is not written yet. To be called before a connection that may have such
        bytes is closed, or is written to in another way; also within a write."""
        unwritten, self._unwritten_bytes = self.unwritten, 0
        while unwritten:
            transport, data = unwritten.popleft()
            if not transport.is_closing():
                try:
                    transport.write(data)
                except Exception:  # the bytes of others are still written
                    logger.exception("cannot write to a connection")
                    transport.abort()

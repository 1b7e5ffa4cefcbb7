"""Decides when bytes are written: what several connections write in one turn of the event loop goes
out at its end.

A receiver on this host that sleeps is woken for the first write, which takes longer than the write
itself, and is still awake for the others. A request that is alone does not come here.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Final

logger = logging.getLogger("orch.sidecar")

# All that is unwritten: a transport says that it is full only when it is written to.
_MOST_UNWRITTEN_BYTES: Final = 65_536


class Turn:
    """The turns of the event loop, as the connections of one listener share them.

    `active`: requests that are being served. `starting`: tasks that are woken for a request, and
    have not run yet. `unwritten`: what is written at the end of this turn.
    """

    __slots__ = ("_unwritten_bytes", "active", "starting", "unwritten")

    def __init__(self) -> None:
        self.active = self.starting = 0
        self.unwritten: deque[tuple[asyncio.Transport, bytes]] = deque()
        self._unwritten_bytes = 0

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

"""Has who waits at one address of a headless pool go to another that has room.

Each address has a queue of its own. So that a sidecar that joins takes load at once, and none
idles while requests wait for its neighbour, those who wait are placed anew when a neighbour has
free slots and nobody waits for them. A request moves once: what it then waits for is no slot.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.pools.pool import Pool
from orch_sidecar.pools.registry import PoolRegistry
from vllm_plugin.profile import ServiceClass

logger = logging.getLogger("orch.sidecar")

LOOK_EVERY_S: Final = 0.05

# Ends a wait, and is never told to a client: the request is placed anew.
MOVED: Final = Refusal(Reason.QUEUE_FULL, "another address of its pool has room")


async def spread_again(pools: PoolRegistry) -> None:
    """Looks at times, until cancelled."""
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        try:
            spread(pools)
        # Without it requests wait a little longer; it must not end the sidecar.
        except Exception:
            logger.exception("moving waiting requests to another address failed")


def spread(pools: PoolRegistry) -> None:
    """Moves who waits, as far as there is room."""
    rooms = {pool: _room(pool) for pool in pools}
    for donor in sorted(rooms, key=lambda pool: -pool.gate.core.queue_depth):
        if not donor.movable:
            continue
        for taker in pools:
            if taker.group == donor.group and rooms[taker]:
                # Who goes there is placed in a later turn of the event loop.
                rooms[taker] = _move(donor, rooms[taker])


def _room(pool: Pool) -> int:
    """Sequences that nobody waits for there."""
    core = pool.gate.core
    taken = pool.unavailable is not None or core.queue_depth
    return 0 if taken else max(0, core.ledger.room)


def _move(donor: Pool, room: int) -> int:
    """Interactive first; each class in the order in which it came. Returns what room is left."""
    for service_class in ServiceClass:
        for ticket, (of_class, cost) in list(donor.movable.items()):
            if of_class is service_class and cost <= room and donor.gate.refuse(ticket, MOVED):
                room -= cost
    return room

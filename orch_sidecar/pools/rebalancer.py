"""Moves queued requests between the addresses of a headless pool, to where slots are free.

Each address has its own queue. So that a new sidecar takes load at once, and none is idle while
requests are queued for its neighbour, queued requests are placed again when a neighbour has free
slots and an empty queue. A request moves once: what it waits for after that is not a slot.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.pools.pool import Pool
from orch_sidecar.pools.registry import PoolRegistry
from vllm_plugin.contracts.profile import ServiceClass

logger = logging.getLogger("orch.sidecar")

REBALANCE_EVERY_S: Final = 0.05

# Ends the wait in a queue. No client sees it: the request is placed again.
REBALANCED: Final = Refusal(
    Reason.QUEUE_FULL, "another address of the pool has free slots", moved=True
)


async def rebalance_forever(pools: PoolRegistry) -> None:
    """Rebalances at intervals, until cancelled."""
    while True:
        await asyncio.sleep(REBALANCE_EVERY_S)
        try:
            rebalance(pools)
        # Without it requests only wait longer: it must not end the sidecar.
        except Exception:
            logger.exception("moving queued requests to another address failed")


def rebalance(pools: PoolRegistry) -> None:
    """Moves queued requests to the free slots of other addresses, the longest queue first."""
    donors = [pool for pool in pools if pool.queues.depth and pool.group != pool.name]
    if not donors:
        return
    # By group: the free slots of each address that has some.
    free: dict[str, dict[Pool, int]] = {}
    for pool in pools:
        if slots := _free(pool):
            free.setdefault(pool.group, {})[pool] = slots
    for donor in sorted(donors, key=lambda pool: -pool.queues.depth):
        takers = free.get(donor.group, {})
        for taker, slots in list(takers.items()):
            # Its requests are placed there in a later turn of the event loop.
            left = _move(donor, slots)
            if left:
                takers[taker] = left
            else:
                del takers[taker]


def _free(pool: Pool) -> int:
    """Returns the free slots that no queued request waits for."""
    taken = pool.unavailable is not None or pool.queues.urgent
    return 0 if taken else max(0, pool.ledger.slots_total - pool.ledger.non_idle)


def _move(donor: Pool, free: int) -> int:
    """Moves requests, interactive ones first, each class in order. Returns the slots left."""
    movable = [each for each in donor.gate.waiting.values() if each.movable]
    for service_class in ServiceClass:
        for ticket in movable:
            cost, fits = ticket.request.cost, ticket.request.cost <= free
            if ticket.request.service_class is service_class and fits and ticket.refuse(REBALANCED):
                free -= cost
    return free

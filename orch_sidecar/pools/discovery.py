"""Runs the tasks of the pools: their engine watchers, and those of headless pools' addresses.

A headless pool's name is looked up every second. The records of Kubernetes' own name server are
valid for 5 s, so a new address is used within 6 s. A sidecar that is about to stop reports that,
long before its address is removed; so an address that is only missing from an answer is kept for a
while: the restart of a name server must not cost the pool.

Each address has its own queue. So that a new sidecar takes load at once, and none is idle while
requests are queued for its neighbour, queued requests are placed again when a neighbour has free
slots and an empty queue. A request moves once: what it waits for after that is not a slot.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.config.pool_settings import PoolSettings
from orch_sidecar.engine_state.states import ANSWERING_STATES
from orch_sidecar.pools.pool import Pool
from orch_sidecar.pools.registry import PoolRegistry
from vllm_plugin.contracts.profile import ServiceClass

logger = logging.getLogger("orch.sidecar")

LOOK_UP_EVERY_S: Final = 1.0
# Longer than a name server takes to restart and to learn of all endpoints.
MISSING_FOR_S: Final = 10.0
REBALANCE_EVERY_S: Final = 0.05

# The name has no address. After any other error the addresses are unknown.
_NO_ADDRESS: Final = frozenset({socket.EAI_NONAME, socket.EAI_NODATA})

# Ends the wait in a queue. No client sees it: the request is placed again.
REBALANCED: Final = Refusal(
    Reason.QUEUE_FULL, "another address of the pool has free slots", moved=True
)


class Discovery:
    """The tasks of all pools, and of the addresses of headless ones. Belongs to one event loop."""

    def __init__(self, pools: PoolRegistry) -> None:
        self._pools = pools
        self._loop = asyncio.get_running_loop()
        self._failure: asyncio.Future[None] = self._loop.create_future()
        self._of_addresses: list[asyncio.Task[None]] = []
        self._watchers: dict[Pool, list[asyncio.Task[None]]] = {}

    async def run(self) -> None:
        """Starts the tasks, and raises the error of the first that fails. The others go on until
        `stop`: requests that are running still need them."""
        for pool in self._pools:
            self._watch(pool)
        headless = [each for each in self._pools.settings if each.headless]
        self._of_addresses = [
            self._loop.create_task(
                self._look_up(each), name=f"look up the addresses of {each.name}"
            )
            for each in headless
        ]
        if headless:
            task = self._loop.create_task(self._rebalance(), name="rebalance queues")
            self._of_addresses.append(task)
        for task in self._of_addresses:
            task.add_done_callback(self._task_ended)
        await self._failure

    async def stop(self) -> None:
        """Ends all tasks."""
        tasks = self._of_addresses + [task for tasks in self._watchers.values() for task in tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) and not self._failure.done():
            error.add_note(f"in the task: {task.get_name()}")
            self._failure.set_exception(error)

    def _watch(self, pool: Pool) -> None:
        logger.info(
            "pool %s: the %s at %s, profile %s (%s)",
            pool.name,
            "sidecar" if pool.tier else "engine",
            pool.url,
            pool.profile.name,
            pool.profile.measurement_type,
        )
        watcher, name = pool.watcher, pool.name
        self._watchers[pool] = [
            self._loop.create_task(watcher.watch(), name=f"watch the engine of {name}"),
            self._loop.create_task(watcher.reconcile(), name=f"reconcile the leases of {name}"),
            self._loop.create_task(watcher.claim_sender.run(), name=f"claim slots of {name}"),
        ]
        for task in self._watchers[pool]:
            task.add_done_callback(self._task_ended)

    async def _look_up(self, settings: PoolSettings) -> None:
        members = Members()
        pools: dict[Member, Pool] = {}
        while True:
            addresses = await self._addresses(settings)
            if addresses is not None:
                self._update(settings, addresses, members, pools)
            await asyncio.sleep(LOOK_UP_EVERY_S)

    async def _rebalance(self) -> None:
        while True:
            await asyncio.sleep(REBALANCE_EVERY_S)
            try:
                rebalance(self._pools)
            # Without it requests only wait longer: it must not end the sidecar.
            except Exception:
                logger.exception("moving queued requests to another address failed")

    def _update(
        self,
        settings: PoolSettings,
        addresses: frozenset[str],
        members: Members,
        pools: dict[Member, Pool],
    ) -> None:
        """Adds and removes the pools of addresses, after a look-up found `addresses`."""
        answering = {member for member, pool in pools.items() if pool.state in ANSWERING_STATES}
        changes = members.update(addresses, answering, self._loop.time())
        for member in changes.removed:
            pool = pools.pop(member)
            logger.info(
                "pool %s: %s is no longer an address of %s", pool.name, member.address, settings.url
            )
            for task in self._watchers.pop(pool):
                task.cancel()
            self._pools.remove_address(
                pool, f"the name of the pool {settings.name} no longer has this address"
            )
        for member in changes.added:
            pool = self._pools.add_address(settings.name, member.number, member.address)
            pools[member] = pool
            self._watch(pool)
        if changes.added:
            gc.freeze()  # as at the start: the collector, which would stop the event loop for
            # tens of milliseconds with hundreds of pools, skips what lives on
        if settings.name in self._pools.without_address:
            self._note(settings, f"the name of the pool {settings.name} has no address")

    async def _addresses(self, settings: PoolSettings) -> frozenset[str] | None:
        """Returns the addresses of the pool's name; None if the look-up failed, and the addresses
        that are known stay in use."""
        try:
            return await addresses_of(urlsplit(settings.url).hostname or "")
        except socket.gaierror as error:
            if error.errno in _NO_ADDRESS:
                return frozenset()
            text = f"the addresses of the pool {settings.name} are unknown: {error.strerror}"
            if settings.name in self._pools.without_address:
                self._note(settings, text)
            else:
                logger.warning("%s: %s", settings.url, text)
            return None

    def _note(self, settings: PoolSettings, why: str) -> None:
        """Notes, and logs once, why a pool has no address."""
        if self._pools.without_address[settings.name].message != why:
            logger.warning("%s: %s", settings.url, why)
            self._pools.without_address[settings.name] = Refusal(Reason.ENGINE_DOWN, why)


async def addresses_of(host: str) -> frozenset[str]:
    """Returns the addresses that the system's resolver finds. Raises socket.gaierror."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return frozenset(str(address[0]) for *_, address in found)


@dataclass(frozen=True, slots=True)
class Member:
    """An address. `number`: from 1, the lowest that was free when the address was added."""

    number: int
    address: str


@dataclass(frozen=True, slots=True)
class Changes:
    """The difference that a look-up made."""

    added: tuple[Member, ...] = ()
    removed: tuple[Member, ...] = ()


@dataclass(slots=True)
class Members:
    """The addresses of one name. Times are seconds of one clock."""

    _present: dict[str, Member] = field(default_factory=dict)
    _missing_since: dict[str, float] = field(default_factory=dict)

    def update(
        self, addresses: Collection[str], answering: Collection[Member], now: float
    ) -> Changes:
        """Takes the result of a look-up, and returns what it changes.

        A missing address is removed after MISSING_FOR_S, or at once unless its member is one of
        those `answering`.
        """
        removed = []
        for address, member in list(self._present.items()):
            if address in addresses:
                self._missing_since.pop(address, None)
                continue
            since = self._missing_since.setdefault(address, now)
            if member not in answering or now - since >= MISSING_FOR_S:
                del self._present[address], self._missing_since[address]
                removed.append(member)
        added = [self._add(each) for each in sorted(addresses) if each not in self._present]
        return Changes(tuple(added), tuple(removed))

    def _add(self, address: str) -> Member:
        taken = {member.number for member in self._present.values()}
        number = next(each for each in range(1, len(taken) + 2) if each not in taken)
        self._present[address] = Member(number, address)
        return self._present[address]


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

"""Runs the tasks of the pools: their engine watchers, and the look-ups of headless pools.

A headless pool's name is looked up every second. The records of Kubernetes' own name server are
valid for 5 s, so a new address is used within 6 s.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
from typing import Final
from urllib.parse import urlsplit

from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.config.pool_settings import PoolSettings
from orch_sidecar.engine_state.states import ANSWERING_STATES
from orch_sidecar.pools.membership import Member, Members
from orch_sidecar.pools.pool import Pool
from orch_sidecar.pools.registry import PoolRegistry

logger = logging.getLogger("orch.sidecar")

LOOK_UP_EVERY_S: Final = 1.0

# The name has no address. After any other error the addresses are unknown.
_NO_ADDRESS: Final = frozenset({socket.EAI_NONAME, socket.EAI_NODATA})


class Discovery:
    """The tasks of all pools, and of the addresses of headless ones. Belongs to one event loop."""

    def __init__(self, pools: PoolRegistry) -> None:
        self._pools = pools
        self._loop = asyncio.get_running_loop()
        self._failure: asyncio.Future[None] = self._loop.create_future()
        self._look_ups: list[asyncio.Task[None]] = []
        self._watchers: dict[Pool, list[asyncio.Task[None]]] = {}

    async def run(self) -> None:
        """Starts the tasks, and raises the error of the first that fails. The others go on until
        `stop`: requests that are running still need them."""
        for pool in self._pools:
            self._watch(pool)
        for settings in self._pools.settings:
            if settings.headless:
                name = f"look up the addresses of {settings.name}"
                task = self._loop.create_task(self._look_up(settings), name=name)
                task.add_done_callback(self._task_ended)
                self._look_ups.append(task)
        await self._failure

    async def stop(self) -> None:
        """Ends all tasks."""
        tasks = self._look_ups + [task for tasks in self._watchers.values() for task in tasks]
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

"""Follows pools: the state of each, and the addresses of those that are headless.

A headless pool is looked up every second. The records of Kubernetes' own name server are good
for 5 s, so a sidecar that comes is known within 6.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.config.settings import PoolSettings
from orch_sidecar.engine_state.states import ANSWERING
from orch_sidecar.pools.membership import Member, Members
from orch_sidecar.pools.pool import Pool
from orch_sidecar.pools.registry import PoolRegistry

logger = logging.getLogger("orch.sidecar")

LOOK_EVERY_S: Final = 1.0

# The name has no address: that is an answer. Any other error of a look-up is none.
_NO_ADDRESS: Final = frozenset({socket.EAI_NONAME, socket.EAI_NODATA})


class Discovery:
    """The tasks that follow pools. Lives on one event loop."""

    def __init__(
        self,
        pools: PoolRegistry,
        joined: Callable[[Pool], None],
        ended: Callable[[asyncio.Task[None]], None],
    ) -> None:
        """`joined` is told of each pool that comes. `ended` is called with a task that has."""
        self._pools = pools
        self._joined = joined
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._names: list[asyncio.Task[None]] = []
        self._states: dict[Pool, list[asyncio.Task[None]]] = {}

    def start(self) -> None:
        """Begins."""
        for pool in self._pools:
            self._follow(pool)
        for told in self._pools.told:
            if told.headless:
                task = self._loop.create_task(
                    self._look_again(told), name=f"look up the addresses of {told.name}"
                )
                task.add_done_callback(self._ended)
                self._names.append(task)

    async def stop(self) -> None:
        """Ends all of it."""
        tasks = self._names + [task for tasks in self._states.values() for task in tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _follow(self, pool: Pool) -> None:
        logger.info(
            "pool %s: the %s at %s, profile %s (%s)",
            pool.name,
            "sidecar" if pool.tier else "engine",
            pool.url,
            pool.profile.name,
            pool.profile.measurement_type,
        )
        follower, name = pool.follower, pool.name
        self._states[pool] = [
            self._loop.create_task(follower.follow(), name=f"follow the engine of {name}"),
            self._loop.create_task(follower.confirm(), name=f"confirm leases of {name}"),
        ]
        for task in self._states[pool]:
            task.add_done_callback(self._ended)

    async def _look_again(self, told: PoolSettings) -> None:
        members = Members()
        pools: dict[Member, Pool] = {}
        while True:
            addresses = await self._addresses(told)
            if addresses is not None:
                self._found(told, addresses, members, pools)
            await asyncio.sleep(LOOK_EVERY_S)

    def _found(
        self,
        told: PoolSettings,
        addresses: frozenset[str],
        members: Members,
        pools: dict[Member, Pool],
    ) -> None:
        changes = members.found(
            addresses, self._loop.time(), lambda member: pools[member].state in ANSWERING
        )
        for member in changes.left:
            pool = pools.pop(member)
            logger.info(
                "pool %s: %s is no longer an address of %s", pool.name, member.address, told.url
            )
            for task in self._states.pop(pool):
                task.cancel()
            self._pools.part(pool, f"the name of the pool {told.name} has lost this address")
        for member in changes.joined:
            pool = pools[member] = self._pools.join(told.name, member.number, member.address)
            self._joined(pool)
            self._follow(pool)
        if told.name in self._pools.missing:
            self._miss(told, f"the name of the pool {told.name} has no address")

    async def _addresses(self, told: PoolSettings) -> frozenset[str] | None:
        """Those that the name has. None: it could not be learnt, and what is known holds."""
        try:
            return await addresses_of(urlsplit(told.url).hostname or "")
        except socket.gaierror as error:
            if error.errno in _NO_ADDRESS:
                return frozenset()
            text = f"the addresses of the pool {told.name} are not known: {error.strerror}"
            if told.name in self._pools.missing:
                self._miss(told, text)
            else:
                logger.warning("%s: %s", told.url, text)
            return None

    def _miss(self, told: PoolSettings, why: str) -> None:
        """It has no address that is known."""
        if self._pools.missing[told.name].message != why:
            logger.warning("%s: %s", told.url, why)
            self._pools.missing[told.name] = Refusal(Reason.ENGINE_DOWN, why)


async def addresses_of(host: str) -> frozenset[str]:
    """What the system's resolver finds for a name. Raises socket.gaierror."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return frozenset(str(address[0]) for *_, address in found)

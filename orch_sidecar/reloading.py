"""Reads settings and profiles again while requests are being served, and has the changes hold."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import cast

from orch_sidecar.pools import Pools, configuration, configured
from orch_sidecar.reload import Configuration, Plan, Reloads
from orch_sidecar.serving import Serving
from orch_sidecar.settings import SidecarSettings
from orch_sidecar.watch import RelayWatch

logger = logging.getLogger("orch.sidecar")


class Reloading:
    """Performs reloads, one at a time."""

    def __init__(
        self,
        reloads: Reloads,
        read: Callable[[], SidecarSettings],
        pools: Pools,
        serving: Serving,
        watch: RelayWatch,
    ) -> None:
        """`read` reads the settings, in a thread; it raises ValueError for what is wrong."""
        self._reloads = reloads
        self._read = read
        self._pools = pools
        self._serving = serving
        self._watch = watch
        self.due = asyncio.Event()  # set when there may be something new

    async def run(self) -> None:
        """Reloads whenever that is due, until cancelled."""
        while True:
            await self.due.wait()
            self.due.clear()
            await self.once()

    async def once(self) -> None:
        """What is wrong with what is read changes nothing."""
        loop = asyncio.get_running_loop()
        try:
            new = await loop.run_in_executor(None, self._configuration)
        except (OSError, ValueError) as wrong:
            self._reloads.failed(str(wrong))
            logger.error("nothing is reloaded: %s", wrong)
            return
        plan = self._reloads.read(new)
        for change in plan.changes:
            logger.info("reloaded: %s", change)
        for change in plan.needs_restart:
            logger.warning("this needs a restart: %s", change)
        self._apply(plan)
        logger.info("configuration %d holds", self._reloads.generation)

    def _configuration(self) -> Configuration:
        settings = self._read()
        return configuration(configured(settings), settings)

    def _apply(self, plan: Plan) -> None:
        """All at once, for what comes; what waits or runs goes on."""
        settings = cast(SidecarSettings, plan.after.settings)
        if any(change.name == "log_level" for change in plan.changes):
            logging.getLogger().setLevel(settings.log_level)
        self._serving.configure(settings)
        self._watch.configure(settings.engine_silence_s, settings.client_stall_s)
        for pool in self._pools:
            pool.connections.connect_timeout_s = settings.connect_timeout_s
        for name, rules in plan.rules.items():
            self._pools[name].gate.reload(rules)

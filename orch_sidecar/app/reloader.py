"""Reads settings, profiles and API keys again while requests are being served, and has the
changes hold. Keys by themselves, too, as soon as their file is another one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final, cast

from orch_sidecar.auth.authorizer import Authorizer
from orch_sidecar.auth.key_file import KeyFile
from orch_sidecar.auth.keys import InvalidKeyFile, Keys, differences
from orch_sidecar.config.changes import Configuration, Plan, Reloads
from orch_sidecar.config.file_reader import FileReader
from orch_sidecar.config.resolve import configuration, load_pools
from orch_sidecar.config.settings import SidecarSettings
from orch_sidecar.pools.registry import PoolRegistry
from orch_sidecar.proxy.frontend import Frontend
from orch_sidecar.proxy.stall_watchdog import StallWatchdog

logger = logging.getLogger("orch.sidecar")

# A kubelet takes up to a minute to lay out a Secret that changed; this adds little.
LOOK_EVERY_S: Final = 2.0


class Reloader:
    """Performs reloads, one at a time."""

    def __init__(
        self,
        reloads: Reloads,
        read: Callable[[], SidecarSettings],
        pools: PoolRegistry,
        serving: Frontend,
        watch: StallWatchdog,
        guard: Authorizer,
        key_file: KeyFile | None,
    ) -> None:
        """`read` reads the settings, in a thread; it raises ValueError for what is wrong.

        `key_file`: None where there is none to look for.
        """
        self._reloads = reloads
        self._read = read
        self._pools = pools
        self._serving = serving
        self._watch = watch
        self._guard = guard
        self._key_file = key_file
        self._reader = FileReader("settings and profiles")
        self.due = asyncio.Event()  # set when there may be something new

    async def run(self) -> None:
        """Reloads whenever that is due, until cancelled."""
        every_s = None if self._key_file is None else LOOK_EVERY_S
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(every_s):
                    await self.due.wait()
            if self.due.is_set():
                self.due.clear()
                await self.once()
            else:
                await self.look()

    async def once(self) -> None:
        """What is wrong with what is read changes nothing."""
        try:
            new = await self._reader.read(self._configuration)
            keys = None if self._key_file is None else await self._key_file.read()
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
        self._hold(keys)
        logger.info("configuration %d holds", self._reloads.generation)

    async def look(self) -> None:
        """Reads the keys if their file is another one. One that is wrong changes nothing."""
        if self._key_file is None:
            return
        try:
            keys = await self._key_file.read_if_changed()
        except InvalidKeyFile as wrong:
            if self._reloads.keys_failed(str(wrong)):
                logger.error("the API keys stay as they are: %s", wrong)
            return
        if keys is not None:
            self._reloads.keys_read()
            self._hold(keys)

    def _configuration(self) -> Configuration:
        settings = self._read()
        return configuration(load_pools(settings), settings)

    def _hold(self, keys: Keys | None) -> None:
        """None: there are none, and have been none."""
        if keys is None:
            return
        if told := differences(self._guard.keys, keys):
            logger.info("API keys: %s", told)
        self._guard.hold(keys)

    def _apply(self, plan: Plan) -> None:
        """All at once, for what comes; what waits or runs goes on."""
        settings = cast(SidecarSettings, plan.after.settings)
        if any(change.name == "log_level" for change in plan.changes):
            logging.getLogger().setLevel(settings.log_level)
        self._serving.configure(settings)
        self._watch.configure(settings.engine_silence_s, settings.client_stall_s)
        self._pools.configure(settings.connect_timeout_s, plan.rules)

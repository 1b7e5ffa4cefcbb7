"""Applies changed settings, profiles and API keys while requests are being served.

Settings and profiles are reloaded on request (SIGHUP), the keys also as soon as their file changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Final, cast

from orch_sidecar.auth.authorizer import Authorizer
from orch_sidecar.auth.key_file import KeyFile
from orch_sidecar.auth.keys import InvalidKeyFile, Keys, differences
from orch_sidecar.config.configuration import Configuration, ReloadPlan, ReloadState, load_pools
from orch_sidecar.config.file_reader import FileReader
from orch_sidecar.config.settings import SidecarSettings
from orch_sidecar.pools.registry import PoolRegistry
from orch_sidecar.proxy.frontend import Frontend
from orch_sidecar.wire.client_connections import StallWatchdog

logger = logging.getLogger("orch.sidecar")

# A kubelet takes up to a minute to update the file of a changed Secret; this adds little.
CHECK_EVERY_S: Final = 2.0


class Reloader:
    """Performs reloads, one at a time."""

    def __init__(
        self,
        state: ReloadState,
        read: Callable[[], SidecarSettings],
        pools: PoolRegistry,
        frontend: Frontend,
        watchdog: StallWatchdog,
        authorizer: Authorizer,
        key_file: KeyFile | None,
    ) -> None:
        """`read` reads the settings, in a thread; it raises ValueError if they are invalid.

        `key_file`: None if none is configured.
        """
        self._state = state
        self._read = read
        self._pools = pools
        self._frontend = frontend
        self._watchdog = watchdog
        self._authorizer = authorizer
        self._key_file = key_file
        self._reader = FileReader("settings and profiles")
        self.due = asyncio.Event()  # set to request a reload

    async def run(self) -> None:
        """Reloads whenever `due` is set, and keys when they have changed, until cancelled."""
        every_s = None if self._key_file is None else CHECK_EVERY_S
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(every_s):
                    await self.due.wait()
            if self.due.is_set():
                self.due.clear()
                await self.reload()
            else:
                await self.reload_keys()

    async def reload(self) -> None:
        """Reloads settings, profiles and keys. An error in any of them changes nothing."""
        try:
            new = await self._reader.read(self._configuration)
            keys = None if self._key_file is None else await self._key_file.read()
        except (OSError, ValueError) as error:
            if isinstance(error, InvalidKeyFile):
                self._state.keys_failed(str(error))
            self._state.failed(str(error))
            logger.error("the configuration is not reloaded: %s", error)
            return
        plan = self._state.accept(new)
        for change in plan.changes:
            logger.info("reloaded: %s", change)
        for change in plan.needs_restart:
            logger.warning("not reloaded, because it needs a restart: %s", change)
        self._apply(plan)
        self._apply_keys(keys)
        logger.info("configuration %d is in effect", self._state.generation)

    async def reload_keys(self) -> None:
        """Reloads the keys if their file has changed. An invalid file changes nothing."""
        if self._key_file is None:
            return
        try:
            keys = await self._key_file.read_if_changed()
        except InvalidKeyFile as invalid:
            if self._state.keys_failed(str(invalid)):
                logger.error("the API keys are not reloaded: %s", invalid)
            return
        if keys is not None:
            self._state.accept_keys()
            self._apply_keys(keys)

    def _configuration(self) -> Configuration:
        settings = self._read()
        return Configuration.of(load_pools(settings), settings)

    def _apply_keys(self, keys: Keys | None) -> None:
        """`keys`: None if there is no key file and never was."""
        if keys is None:
            return
        if changes := differences(self._authorizer.keys, keys):
            logger.info("reloaded API keys: %s", changes)
        self._authorizer.set_keys(keys, time.monotonic())

    def _apply(self, plan: ReloadPlan) -> None:
        """Applies a plan to new requests. Queued and running requests are not affected."""
        settings = cast(SidecarSettings, plan.after.settings)
        if any(change.name == "log_level" for change in plan.changes):
            logging.getLogger().setLevel(settings.log_level)
        self._frontend.configure(settings)
        self._watchdog.configure(settings.engine_silence_s, settings.client_stall_s)
        self._pools.configure(settings.connect_timeout_s, plan.rules)

"""The composition root of the sidecar, and its lifecycle."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
from collections.abc import Awaitable, Callable
from typing import Final, cast

import aiohttp
from aiohttp import web

from orch_sidecar.admission.refusals import shutting_down
from orch_sidecar.api.headers import SERVER, X_MEASUREMENT_TYPE
from orch_sidecar.app import pipeline
from orch_sidecar.app.listeners import AdminListener
from orch_sidecar.app.reloader import Reloader
from orch_sidecar.auth.admin_hosts import AdminHosts
from orch_sidecar.auth.authorizer import Authorizer
from orch_sidecar.auth.key_file import KeyFile
from orch_sidecar.config.changes import ReloadState
from orch_sidecar.config.resolve import common_labels, configuration, load_pools, unplaced_labels
from orch_sidecar.config.settings import SidecarSettings
from orch_sidecar.control.endpoints import Control
from orch_sidecar.control.pages import Pages
from orch_sidecar.control.state_stream import Publisher
from orch_sidecar.engine_state.states import EngineState
from orch_sidecar.observability.metrics import Metrics
from orch_sidecar.observability.otel import tracing_from_environment
from orch_sidecar.pools.discovery import Discovery
from orch_sidecar.pools.rebalancer import rebalance_forever
from orch_sidecar.pools.registry import PoolRegistry
from orch_sidecar.proxy.in_flight import InFlight
from orch_sidecar.proxy.stall_watchdog import StallWatchdog
from orch_sidecar.wire.client_connection import ClientConnection, request_factory
from orch_sidecar.wire.client_connections import (
    ClientConnections,
    most_connections,
    raise_descriptor_limit,
)

logger = logging.getLogger("orch.sidecar")

CHECK_EVERY_S: Final = 1.0

# An idle connection, or one whose request head does not come, is closed after that.
KEEP_ALIVE_S: Final = 75.0

# Requests make no cycles to speak of; the defaults (700) would look for some every few requests.
_GC_THRESHOLDS: Final = (20_000, 20, 20)


class Sidecar:
    """One sidecar in front of its engines. Build it on the event loop it runs on."""

    def __init__(
        self, settings: SidecarSettings, read: Callable[[], SidecarSettings] | None = None
    ) -> None:
        """`read` reads the settings again, in a thread; what is wrong with them it raises as
        ValueError. Without it a reload reads the profiles only.

        Raises ProfileError, InvalidKeyFile, and ValueError for unusable OTEL_* variables.
        """
        configured = load_pools(settings)
        self.reloads = ReloadState(configuration(configured, settings))
        key_file = None if settings.api_keys_file is None else KeyFile(settings.api_keys_file)
        guard = Authorizer(None if key_file is None else key_file.read_at_start())
        common = common_labels(configured)
        unplaced = unplaced_labels(common)
        self.tracing = tracing_from_environment(common, unplaced)
        # From here on nothing fails: a session must be closed.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), cookie_jar=aiohttp.DummyCookieJar()
        )
        self.pools = PoolRegistry(configured, settings, self._session)
        self.discovery = Discovery(self.pools)
        self.watch = StallWatchdog(settings.engine_silence_s, settings.client_stall_s)
        self.metrics = Metrics(self.pools, lambda pool: pool.state)
        self.connections = ClientConnections(most_connections(settings.max_connections), "clients")
        self.metrics.registry.register(self.connections)
        self._headers: dict[str, str] = {
            SERVER: "orch-sidecar",
            X_MEASUREMENT_TYPE: unplaced["measurement_type"],
        }
        self.publisher = Publisher(self.pools, self._headers)
        in_flight = InFlight()
        pages = Pages(self.pools, self.metrics, self.reloads)
        hosts = AdminHosts((settings.admin_host, *settings.admin_allowed_hosts))
        control = Control(self.pools, pages, in_flight, self.publisher, hosts, self._headers)
        self.admin = AdminListener(control.administer, settings, self._headers)
        self.admin_port = 0  # once it listens
        built = pipeline.build(
            settings,
            self.pools,
            self.watch,
            self.metrics,
            self.tracing,
            control,
            guard,
            in_flight,
            self.publisher.leases,
            self._headers,
        )
        self.serving, self.coalesce = built.frontend, built.coalesce
        self.reloading = Reloader(
            self.reloads,
            read or (lambda: settings),
            self.pools,
            self.serving,
            self.watch,
            guard,
            key_file,
        )
        self.leave = asyncio.Event()  # set when it is time to stop
        self.failed = False
        self._hurried = False
        self._tasks: list[asyncio.Task[None]] = []
        self._listener: asyncio.Server | None = None
        self._server = web.Server(
            cast(Callable[[web.BaseRequest], Awaitable[web.StreamResponse]], built.entry.handle),
            handler_cancellation=True,
            request_factory=request_factory(asyncio.get_running_loop()),
        )

    @property
    def settings(self) -> SidecarSettings:
        """Those that hold now."""
        return self.serving.settings

    @property
    def state(self) -> EngineState:
        """Ready if any pool is; else that of the first."""
        return self.pools.state

    async def start(self) -> int:
        """Listens and follows the engine. Returns the port. Raises OSError if one is taken."""
        settings, loop = self.settings, asyncio.get_running_loop()
        try:
            self._listener = await loop.create_server(
                lambda: ClientConnection(
                    self._server,
                    headers=self._headers,
                    connections=self.connections,
                    loop=loop,
                    access_log=None,
                    auto_decompress=False,
                    keepalive_timeout=KEEP_ALIVE_S,
                    max_line_size=self.settings.max_header_bytes,
                    max_field_size=self.settings.max_header_bytes,
                ),
                settings.host,
                settings.port,
                backlog=1024,
            )
            self.admin_port = await self.admin.start()
        except OSError:  # nothing has begun that `stop` would end
            if self._listener is not None:
                self._listener.close()
            await self._session.close()
            raise
        self._tasks = [
            loop.create_task(self._check(), name="check relays"),
            loop.create_task(self.reloading.run(), name="reload"),
            loop.create_task(rebalance_forever(self.pools), name="rebalance queues"),
            loop.create_task(self.discovery.run(), name="watch the pools"),
        ]
        for task in self._tasks:
            task.add_done_callback(self._task_ended)
        gc.collect()
        gc.freeze()  # what is alive now stays: the collector need not look at it again
        gc.set_threshold(*_GC_THRESHOLDS)
        port: int = self._listener.sockets[0].getsockname()[1]
        logger.info("listening on %s:%d", settings.host, port)
        return port

    async def stop(self) -> None:
        """Refuses what comes, finishes what runs (up to the limit), and leaves."""
        pools, serving = self.pools, self.serving
        pools.shut_down()
        queued = sum(pool.gate.queue_depth for pool in pools)
        logger.info("draining: %d running, %d queued", len(self.watch), queued)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.drain_timeout_s):
                while serving.active and not self._hurried:
                    await serving.one_less.wait()
                    serving.one_less.clear()
        if serving.active:
            logger.warning("drain limit reached with %d requests left", serving.active)
        for pool in pools:
            pool.gate.refuse_queued(shutting_down())
        self.watch.end_all(shutting_down())
        await asyncio.sleep(0)  # their handlers answer and release
        self.publisher.close()
        assert self._listener is not None
        self._listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, self.discovery.stop(), return_exceptions=True)
        self._server.pre_shutdown()  # ends idle connections, which `shutdown` would wait for
        await self._server.shutdown(1.0)
        await self.coalesce.close()
        await self.admin.stop()
        for pool in pools:
            pool.connections.close()
        await self._session.close()
        await asyncio.get_running_loop().run_in_executor(None, self.tracing.shutdown)

    def hurry(self) -> None:
        """Ends a drain that is under way."""
        self._hurried = True
        self.serving.one_less.set()

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.critical("%s: failed; leaving", task.get_name(), exc_info=error)
            self.failed = True
            self.pools.shut_down()  # fails closed
            self.leave.set()

    async def _check(self) -> None:
        while True:
            await asyncio.sleep(CHECK_EVERY_S)
            self.watch.check(CHECK_EVERY_S)
            self.connections.end_abandoned()
            self.connections.end_stalled(CHECK_EVERY_S, self.settings.client_stall_s)
            for pool in self.pools:
                pool.connections.prune()


async def serve(
    settings: SidecarSettings, read: Callable[[], SidecarSettings] | None = None
) -> int:
    """Runs a sidecar until SIGTERM or SIGINT; a second one ends the drain. Returns exit code.

    SIGHUP reloads it; `read` as for Sidecar.
    """
    raise_descriptor_limit()
    sidecar = Sidecar(settings, read)

    def on_signal() -> None:
        if sidecar.leave.is_set():
            sidecar.hurry()
        sidecar.leave.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    loop.add_signal_handler(signal.SIGHUP, sidecar.reloading.due.set)
    await sidecar.start()
    await sidecar.leave.wait()
    await sidecar.stop()
    return int(sidecar.failed)

"""The composition root of the sidecar, and its lifecycle."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import aiohttp
from aiohttp import web

from orch_sidecar.admission.refusals import shutting_down
from orch_sidecar.api.cache_salt import CacheSalts
from orch_sidecar.api.headers import AUTHORIZATION, SERVER, X_MEASUREMENT_TYPE
from orch_sidecar.app import pipeline
from orch_sidecar.app.listeners import AdminListener, explained
from orch_sidecar.app.reloader import Reloader
from orch_sidecar.auth.authorizer import Authorizer
from orch_sidecar.auth.browsers import AllowedHosts, is_loopback
from orch_sidecar.auth.key_file import KeyFile, read_secret
from orch_sidecar.config.configuration import (
    Configuration,
    ReloadState,
    common_labels,
    load_pools,
    unplaced_labels,
)
from orch_sidecar.config.pool_settings import authority
from orch_sidecar.config.settings import SidecarSettings
from orch_sidecar.control.endpoints import Control
from orch_sidecar.control.live_stream import LiveSource, LiveStream
from orch_sidecar.control.pages import Pages
from orch_sidecar.control.recorder import Recorder
from orch_sidecar.control.state_stream import Publisher
from orch_sidecar.engine_state.states import PoolState
from orch_sidecar.observability.metrics import Metrics
from orch_sidecar.observability.otlp.environment import tracing_from_environment
from orch_sidecar.observability.request_log import LineWriter, RequestLog
from orch_sidecar.pools.discovery import Discovery
from orch_sidecar.pools.registry import PoolRegistry
from orch_sidecar.proxy.in_flight import InFlight
from orch_sidecar.wire.client_connection import ClientConnection
from orch_sidecar.wire.client_connections import (
    KEEP_ALIVE_S,
    ClientConnections,
    StallWatchdog,
    connection_limit,
    raise_descriptor_limit,
)

if TYPE_CHECKING:
    from orch_sidecar.batches.service import Batches
    from orch_sidecar.batches.storage import Storage

logger = logging.getLogger("orch.sidecar")

CHECK_EVERY_S: Final = 1.0

# Requests create hardly any reference cycles; the default (700) would collect every few requests.
_GC_THRESHOLDS: Final = (20_000, 20, 20)

_ANY_NAME: Final = (
    "without API keys on %s: a web page that is open anywhere on this network can use this sidecar "
    "by a name of its own; set allowed_hosts (ORCH_ALLOWED_HOSTS) to the names it is called by"
)
_NO_ENGINE_URL: Final = (
    "no engine_url is given: waiting for an engine at %s, which `orch engine --profile %s MODEL` "
    "starts; `orch up` starts both"
)


class Sidecar:
    """A sidecar in front of its engines. Must be created on the event loop on which it runs."""

    def __init__(
        self, settings: SidecarSettings, read: Callable[[], SidecarSettings] | None = None
    ) -> None:
        """`read` reads the settings again, in a thread; it raises ValueError if they are invalid.
        None: a reload reads only the profiles.

        Raises ProfileError, InvalidKeyFile, OSError for a request log that cannot be opened, and
        ValueError for unusable OTEL_* variables or a storage of batches that cannot be used.
        """
        configured = load_pools(settings)
        self.reloads = ReloadState(Configuration.of(configured, settings))
        key_file = keys = None
        if settings.api_keys_file is not None:
            key_file = KeyFile(settings.api_keys_file, required=settings.api_keys_required)
            keys = key_file.read_at_start()
        authorizer = Authorizer(
            keys,
            entries=settings.entries,
            host=settings.host,
            allowed_hosts=settings.allowed_hosts,
            gateways=settings.gateways,
            parents=settings.parents,
        )
        if keys is None and not settings.allowed_hosts and not is_loopback(settings.host):
            logger.warning(_ANY_NAME, settings.host)
        salts = CacheSalts(read_secret(settings.cache_salt_file, keys=key_file is not None))
        common = common_labels(configured)
        unplaced = unplaced_labels(common)
        self.tracing = tracing_from_environment(common, unplaced)
        lines = None if settings.request_log is None else LineWriter(settings.request_log)
        storage = _open_storage(settings)
        # Nothing may fail from here on: the session would stay open.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), cookie_jar=aiohttp.DummyCookieJar()
        )
        self.pools = PoolRegistry(configured, settings, self._session)
        self.discovery = Discovery(self.pools)
        self.watchdog = StallWatchdog(settings.engine_silence_s, settings.client_stall_s)
        self.metrics = Metrics(self.pools, self.tracing.spans, authorizer.names)
        if key_file is not None:
            self.metrics.watch_key_file(lambda: self.reloads.keys_error)
        self.connections = ClientConnections(connection_limit(settings.max_connections), "clients")
        self.metrics.registry.register(self.connections)
        self.request_log = None if lines is None else RequestLog(lines, self.pools, self.metrics)
        self._headers: dict[str, str] = {
            SERVER: "orch-sidecar",
            X_MEASUREMENT_TYPE: unplaced["measurement_type"],
        }
        self.publisher = Publisher(self.pools, authorizer, self._headers)
        in_flight = InFlight()
        pages = Pages(self.pools, self.metrics, self.reloads, authorizer)
        source = LiveSource(self.pools, self.metrics, authorizer)
        self.live = LiveStream(source, settings.trace_url, self._headers)
        hosts = AllowedHosts(
            "admin_allowed_hosts", (settings.admin_host, *settings.admin_allowed_hosts)
        )
        recorder = Recorder(self.metrics, self.tracing)
        control = Control(
            self.pools, pages, in_flight, self.publisher, self.live, hosts, recorder, self._headers
        )
        built = pipeline.build(
            settings,
            self.pools,
            self.watchdog,
            self.metrics,
            self.tracing,
            control,
            authorizer,
            in_flight,
            self.publisher.leases,
            self._headers,
            salts,
        )
        self.batches: Batches | None = None
        if storage is not None:
            from orch_sidecar.batches.service import Batches

            self.batches = Batches(
                settings,
                storage,
                built.entry.serve_row,
                partial(_has_slots, in_flight),
                self._headers,
            )
            control.serve_batches(self.batches)
            self.live.source.batches = self.batches.runner.progress.rows
            self.metrics.registry.register(self.batches.runner.progress)
            self.watchdog.watch(self.batches.rows.connections)
        self.admin = AdminListener(built.entry.administer, settings, self._headers)
        self.watchdog.watch(self.connections)
        self.watchdog.watch(self.admin.connections)
        self.admin_port = 0  # known once `start` has returned
        self.frontend, self.coalesce = built.frontend, built.coalesce
        self.watchers = built.watchers
        self.waiting_room = built.waiting_room
        self.reloader = Reloader(
            self.reloads,
            read or (lambda: settings),
            self.pools,
            self.frontend,
            self.watchdog,
            authorizer,
            key_file,
        )
        self.stop_requested = asyncio.Event()
        self.failed = False
        self._drain_aborted = False
        self._tasks: list[asyncio.Task[None]] = []
        self._listener: asyncio.Server | None = None
        self._server = web.Server(cast(Any, built.entry.handle), handler_cancellation=True)

    @property
    def settings(self) -> SidecarSettings:
        """Current settings."""
        return self.frontend.settings

    @property
    def state(self) -> PoolState:
        """READY if any pool is; otherwise the state of the first pool."""
        return self.pools.state

    async def start(self) -> int:
        """Starts to listen and to watch the engines. Returns the port.

        Raises OSError if a port is in use.
        """
        settings, loop = self.settings, asyncio.get_running_loop()
        try:
            with explained("clients", settings.host, settings.port, "host, port"):
                self._listener = await loop.create_server(
                    lambda: ClientConnection(
                        self._server,
                        headers=self._headers,
                        connections=self.connections,
                        loop=loop,
                        access_log=None,
                        auto_decompress=False,
                        keepalive_timeout=KEEP_ALIVE_S,
                        max_line_bytes=self.settings.max_header_bytes,
                    ),
                    settings.host,
                    settings.port,
                    backlog=1024,
                )
            self.admin_port = await self.admin.start()
        except OSError:  # `stop` cannot run yet: no tasks
            if self._listener is not None:
                self._listener.close()
            await self._session.close()
            raise
        self._tasks = [
            loop.create_task(self._check(), name="check responses and connections"),
            loop.create_task(self.reloader.run(), name="reload"),
            loop.create_task(self.discovery.run(), name="discover engines"),
        ]
        if self.batches is not None:
            self._tasks += self.batches.start()
        if self.request_log is not None:
            self._tasks.append(loop.create_task(self.request_log.run(), name="log requests"))
        for task in self._tasks:
            task.add_done_callback(self._task_ended)
        gc.collect()
        gc.freeze()  # objects alive now live on: the collector skips them
        gc.set_threshold(*_GC_THRESHOLDS)
        port: int = self._listener.sockets[0].getsockname()[1]
        logger.info("listening on %s", authority(settings.host, port))
        if not settings.model_fields_set & {"engine_url", "pools"}:
            logger.info(_NO_ENGINE_URL, settings.engine_url, settings.profile)
        return port

    async def stop(self) -> None:
        """Rejects new requests, finishes the others (within `drain_timeout_s`), and closes down."""
        pools, frontend = self.pools, self.frontend
        if self.batches is not None:
            await self.batches.stop()
        pools.shut_down()
        queued = sum(pool.queues.depth for pool in pools)
        logger.info("draining: %d running, %d queued", len(self.watchdog.responses()), queued)
        ended = frontend.request_ended = asyncio.Event()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.drain_timeout_s):
                while frontend.active and not self._drain_aborted:
                    await ended.wait()
                    ended.clear()
        if frontend.active:
            logger.warning("draining ends with %d unfinished requests", frontend.active)
        for pool in pools:
            pool.gate.refuse_queued(shutting_down())
        self.watchdog.end_all(shutting_down())
        self.connections.refuse_uploads(shutting_down())
        await asyncio.sleep(0)  # lets their handlers respond and release their slots
        self.publisher.streams.close()
        self.live.streams.close()
        assert self._listener is not None
        self._listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, self.discovery.stop(), return_exceptions=True)
        self._server.pre_shutdown()  # closes idle connections, for which `shutdown` would wait
        await self._server.shutdown(1.0)
        await self.coalesce.close()
        await self.watchers.close()
        await self.admin.stop()
        for pool in pools:
            pool.connections.close()
        await self._session.close()
        if self.batches is not None:
            await self.batches.close()
        if self.request_log is not None:
            await self.request_log.close()
        await self.tracing.shutdown()

    def abort_drain(self) -> None:
        """Makes `stop` end the remaining requests immediately."""
        self._drain_aborted = True
        if self.frontend.request_ended is not None:
            self.frontend.request_ended.set()

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.critical(
                'the task "%s" failed; the sidecar shuts down', task.get_name(), exc_info=error
            )
            self.failed = True
            self.pools.shut_down()  # fails closed
            self.stop_requested.set()

    async def _check(self) -> None:
        while True:
            await asyncio.sleep(CHECK_EVERY_S)
            for _ in self.watchdog.check(CHECK_EVERY_S):
                await asyncio.sleep(0)
            for _ in self.connections.check(CHECK_EVERY_S, self.settings.client_stall_s):
                await asyncio.sleep(0)
            for pool in self.pools:
                pool.connections.prune()


def _has_slots(in_flight: InFlight, request_id: str, credential: str) -> bool:
    """Whether a request in flight with this id, and this in `Authorization`, has its slots."""
    headers: dict[str, str] = {AUTHORIZATION: credential} if credential else {}
    found = in_flight.find(request_id, headers) or []
    return any(each.record.admitted is not None for each in found)


def _open_storage(settings: SidecarSettings) -> Storage | None:
    """Opens the storage of batches. None: they are off. Raises ValueError if it cannot be used."""
    if settings.batches is None:
        if settings.batches_database is not None:
            raise ValueError(
                "batches_database is set, and batches (ORCH_BATCHES) is not: set the directory or "
                "URL of the files, too"
            )
        return None
    logging.getLogger("alembic").setLevel(logging.WARNING)  # it tells of its parts, and each start
    try:
        from orch_sidecar.batches.storage import open_storage
    except ImportError as error:
        raise ValueError(
            f"batches (ORCH_BATCHES) is {settings.batches!r}, which needs the extra `batch`: "
            f"pip install '.[batch]' in a checkout ({error})"
        ) from error
    return open_storage(settings)


async def serve(
    settings: SidecarSettings, read: Callable[[], SidecarSettings] | None = None
) -> int:
    """Runs a sidecar until SIGTERM or SIGINT, and returns its exit code.

    A second signal aborts the drain; SIGHUP reloads. `read`: see Sidecar.
    """
    raise_descriptor_limit()
    sidecar = Sidecar(settings, read)

    def on_signal() -> None:
        if sidecar.stop_requested.is_set():
            sidecar.abort_drain()
        sidecar.stop_requested.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    loop.add_signal_handler(signal.SIGHUP, sidecar.reloader.due.set)
    await sidecar.start()
    await sidecar.stop_requested.wait()
    await sidecar.stop()
    return int(sidecar.failed)

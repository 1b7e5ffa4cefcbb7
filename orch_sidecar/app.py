"""The composition root of the sidecar, and its lifecycle."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Final, cast

import aiohttp
from aiohttp import web

from orch_sidecar import capabilities
from orch_sidecar.admission.core import Admission
from orch_sidecar.admission.gate import Gate
from orch_sidecar.engine import EngineFollower, EngineState
from orch_sidecar.metrics import CONTENT_TYPE, Metrics
from orch_sidecar.reasons import Reason, Refusal
from orch_sidecar.server import ClientConnection
from orch_sidecar.serving import Serving
from orch_sidecar.settings import SidecarSettings
from orch_sidecar.telemetry import tracing_from_environment
from orch_sidecar.upstream import EnginePool
from orch_sidecar.watch import RelayWatch
from vllm_plugin import profile as profiles

logger = logging.getLogger("orch.sidecar")

CHECK_EVERY_S: Final = 1.0

# An idle connection, or one whose request head does not come, is closed after that.
KEEP_ALIVE_S: Final = 75.0

# Requests make no cycles to speak of; the defaults (700) would look for some every few requests.
_GC_THRESHOLDS: Final = (20_000, 20, 20)


class Sidecar:
    """One sidecar in front of one engine. Build it on the event loop it runs on."""

    def __init__(self, settings: SidecarSettings) -> None:
        self.settings = settings
        self.profile = profiles.load(settings.profile)
        rules = self.profile.admission
        capacity, timeout_s = settings.queue_capacity, settings.queue_timeout_s
        self.gate = Gate(
            Admission(
                rules.queue_capacity if capacity is None else capacity,
                rules.queue_timeout_s if timeout_s is None else timeout_s,
            )
        )
        measurement_type = self.profile.measurement_type.value
        self.tracing = tracing_from_environment(
            {
                "measurement_type": measurement_type,
                "orch.profile": self.profile.name,
                "orch.batching": self.profile.batching,
            }
        )
        self.pool = EnginePool(settings.engine_url, settings.connect_timeout_s)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), cookie_jar=aiohttp.DummyCookieJar()
        )
        key = settings.engine_api_key
        self.engine = EngineFollower(
            self._session,
            settings.engine_url,
            {} if key is None else {"Authorization": f"Bearer {key.get_secret_value()}"},
            self.gate,
            self.profile,
        )
        self.watch = RelayWatch(settings.engine_silence_s, settings.client_stall_s)
        self.metrics = Metrics(
            self.gate.core, lambda: self.state.value, EngineState, measurement_type
        )
        # Until classes come there is one queue: of interactive requests, or of bulk ones.
        offline = self.profile.measurement_type is profiles.MeasurementType.OFFLINE
        self._class_name = "bulk" if offline else "interactive"
        self._version = version("orch-sidecar")
        self._headers = {"Server": "orch-sidecar", "X-Measurement-Type": measurement_type}
        self.serving = Serving(
            settings,
            self.gate,
            self.pool,
            self.engine,
            self.watch,
            self.metrics,
            self.tracing,
            {
                "/v1/capabilities": self._capabilities,
                "/metrics": self._metrics_page,
                "/livez": lambda: web.json_response({"live": True}),
                "/readyz": self._readyz,
                "/healthz": self._readyz,
            },
            self._headers,
        )
        self.leave = asyncio.Event()  # set when it is time to stop
        self.failed = False
        self._hurried = False
        self._tasks: list[asyncio.Task[None]] = []
        self._listener: asyncio.Server | None = None
        loop = asyncio.get_running_loop()
        self._server = web.Server(
            cast(Callable[[web.BaseRequest], Awaitable[web.StreamResponse]], self.serving.handle),
            handler_cancellation=True,
            # A limit above ours: the refusal is worded by us, not by aiohttp.
            request_factory=lambda message, payload, protocol, writer, task: web.BaseRequest(
                message,
                payload,
                protocol,
                writer,
                task,
                loop,
                client_max_size=settings.max_body_bytes + 1,
            ),
        )

    @property
    def state(self) -> EngineState:
        return EngineState.DRAINING if self.gate.core.draining else self.engine.state

    async def start(self) -> int:
        """Listens and follows the engine. Returns the port. Raises OSError if it is taken."""
        settings, loop = self.settings, asyncio.get_running_loop()
        try:
            self._listener = await loop.create_server(
                lambda: ClientConnection(
                    self._server,
                    headers=self._headers,
                    loop=loop,
                    access_log=None,
                    auto_decompress=False,
                    keepalive_timeout=KEEP_ALIVE_S,
                    max_line_size=settings.max_header_bytes,
                    max_field_size=settings.max_header_bytes,
                ),
                settings.host,
                settings.port,
                backlog=1024,
            )
        except OSError:  # nothing has begun that `stop` would end
            await self._session.close()
            raise
        self._tasks = [
            loop.create_task(self.engine.follow(), name="follow the engine"),
            loop.create_task(self.engine.confirm(), name="confirm leases"),
            loop.create_task(self._check(), name="check relays"),
        ]
        for task in self._tasks:
            task.add_done_callback(self._task_ended)
        gc.collect()
        gc.freeze()  # what is alive now stays: the collector need not look at it again
        gc.set_threshold(*_GC_THRESHOLDS)
        port: int = self._listener.sockets[0].getsockname()[1]
        logger.info(
            "listening on %s:%d for the engine at %s, profile %s (%s)",
            settings.host,
            port,
            settings.engine_url,
            self.profile.name,
            self.profile.measurement_type,
        )
        return port

    async def stop(self) -> None:
        """Refuses what comes, finishes what runs (up to the limit), and leaves."""
        core, serving = self.gate.core, self.serving
        core.drain()
        logger.info("draining: %d running, %d queued", len(self.watch), core.queue_depth)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.drain_timeout_s):
                while serving.active and not self._hurried:
                    await serving.one_less.wait()
                    serving.one_less.clear()
        if serving.active:
            logger.warning("drain limit reached with %d requests left", serving.active)
        self.gate.dismiss()
        self.watch.end_all(Refusal(Reason.DRAINING, "this sidecar is shutting down"))
        await asyncio.sleep(0)  # their handlers answer and release
        assert self._listener is not None
        self._listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._server.pre_shutdown()  # ends idle connections, which `shutdown` would wait for
        await self._server.shutdown(1.0)
        self.pool.close()
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
            self.gate.core.drain()  # fails closed
            self.leave.set()

    async def _check(self) -> None:
        while True:
            await asyncio.sleep(CHECK_EVERY_S)
            try:
                self.watch.check(CHECK_EVERY_S)
                self.pool.prune()
            # One relay that cannot be ended must not keep the others from being looked at.
            except Exception:
                logger.exception("a relay could not be checked")

    # Pages.

    def _capabilities(self) -> web.Response:
        document = capabilities.document(
            self.engine.document,
            self.gate.core,
            state=self.state.value,
            class_name=self._class_name,
            age_ms=self.engine.age_ms,
            sidecar_version=self._version,
        )
        return web.json_response(document)

    def _metrics_page(self) -> web.Response:
        return web.Response(body=self.metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    def _readyz(self) -> web.Response:
        draining = self.gate.core.draining
        ready = self.engine.ready and not draining
        body = {
            "live": True,
            "ready": ready,
            "draining": draining,
            "state": self.state.value,
            "last_error": self.engine.message or None,
        }
        return web.json_response(body, status=200 if ready else 503)


async def serve(settings: SidecarSettings) -> int:
    """Runs a sidecar until SIGTERM or SIGINT; a second one ends the drain. Returns exit code."""
    sidecar = Sidecar(settings)

    def on_signal() -> None:
        if sidecar.leave.is_set():
            sidecar.hurry()
        sidecar.leave.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    await sidecar.start()
    await sidecar.leave.wait()
    await sidecar.stop()
    return int(sidecar.failed)

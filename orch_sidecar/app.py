"""Routes and lifecycle: the composition root of the sidecar.

A request's way: `_handle` (route) -> `_generate` (body, cost) -> `Gate.admit` (slot) ->
`_relay` (engine connection, answer) -> one `finally` (lease, metrics, spans).
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Final, cast

import aiohttp
from aiohttp import web

from orch_sidecar import capabilities, errors, openai, usage
from orch_sidecar.admission.core import Admission
from orch_sidecar.admission.gate import Gate
from orch_sidecar.admission.ledger import Lease
from orch_sidecar.engine import EngineFollower, EngineState
from orch_sidecar.exchange import Ending, Exchange, accept_id, new_id
from orch_sidecar.metrics import CONTENT_TYPE, Metrics
from orch_sidecar.openai import Api
from orch_sidecar.reasons import Reason, Refusal
from orch_sidecar.relay import HOP_BY_HOP, Relay, RelayWatch
from orch_sidecar.server import ClientConnection, Written
from orch_sidecar.settings import SidecarSettings
from orch_sidecar.telemetry import TRACE_HEADERS, Headers, Trace, tracing_from_environment
from orch_sidecar.upstream import EnginePool
from vllm_plugin import profile as profiles

logger = logging.getLogger("orch.sidecar")

CHECK_EVERY_S: Final = 1.0

# Requests make no cycles to speak of; the defaults (700) would look for some every few requests.
_GC_THRESHOLDS: Final = (20_000, 20, 20)

# Request headers that end here: connection matters, what would steer the engine past us, and
# what we set ourselves.
_NOT_FORWARDED: Final = HOP_BY_HOP | {
    b"host",
    b"content-length",
    b"expect",
    b"x-orch-lease",
    b"x-vllm-priority",
    b"x-data-parallel-rank",
    b"x-session-id",
    b"x-request-id",
    b"x-correlation-id",
    *TRACE_HEADERS,
}


class _Stopped(Exception):
    """A refusal on its way to the client."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


@dataclass(frozen=True, slots=True)
class Route:
    """A path of this sidecar. The engine is asked for `upstream`, never for client bytes."""

    path: str
    method: str
    api: Api
    upstream: str | None = None
    admitted: bool = False


def _routes(*routes: Route) -> dict[str, Route]:
    return {route.path: route for route in routes}


ROUTES: Final = _routes(
    Route("/v1/chat/completions", "POST", Api.CHAT, "/v1/chat/completions", admitted=True),
    Route("/v1/completions", "POST", Api.COMPLETIONS, "/v1/completions", admitted=True),
    Route("/v1/responses", "POST", Api.RESPONSES, "/v1/responses", admitted=True),
    Route("/v1/messages", "POST", Api.MESSAGES, "/v1/messages", admitted=True),
    Route("/v1/messages/count_tokens", "POST", Api.MESSAGES, "/v1/messages/count_tokens"),
    Route("/tokenize", "POST", Api.OTHER, "/tokenize"),
    Route("/detokenize", "POST", Api.OTHER, "/detokenize"),
    Route("/v1/models", "GET", Api.OTHER, "/v1/models"),
    Route("/version", "GET", Api.OTHER, "/version"),
    Route("/metrics/engine", "GET", Api.OTHER, "/metrics"),
    Route("/v1/capabilities", "GET", Api.OTHER),
    Route("/metrics", "GET", Api.OTHER),
    Route("/livez", "GET", Api.OTHER),
    Route("/readyz", "GET", Api.OTHER),
    Route("/healthz", "GET", Api.OTHER),
)

_KEEP: Final = Written(keep_alive=True)
_CLOSE: Final = Written(keep_alive=False)


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
        key = settings.engine_api_key
        self._authorization = (
            None if key is None else f"Bearer {key.get_secret_value()}".encode("latin-1")
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
        self.engine = EngineFollower(
            self._session,
            settings.engine_url,
            {}
            if self._authorization is None
            else {"Authorization": self._authorization.decode("latin-1")},
            self.gate,
            self.profile,
        )
        self.watch = RelayWatch(settings.engine_silence_s, settings.client_stall_s)
        self.metrics = Metrics(
            self.gate.core, lambda: self.state.value, EngineState, measurement_type
        )
        self._measurement_type = f"x-measurement-type: {measurement_type}\r\n".encode()
        # Until classes come there is one queue: of interactive requests, or of bulk ones.
        offline = self.profile.measurement_type is profiles.MeasurementType.OFFLINE
        self._class_name = "bulk" if offline else "interactive"
        self._version = version("orch-sidecar")
        self._tasks: list[asyncio.Task[None]] = []
        self._listener: asyncio.Server | None = None
        self._server: web.Server | None = None
        self._active = 0
        self._one_less = asyncio.Event()
        self._own: dict[str, Callable[[], web.Response]] = {
            "/v1/capabilities": self._capabilities,
            "/metrics": lambda: web.Response(
                body=self.metrics.text(), headers={"Content-Type": CONTENT_TYPE}
            ),
            "/livez": lambda: web.json_response({"live": True}),
            "/readyz": self._readyz,
            "/healthz": self._readyz,
        }

    # Lifecycle.

    async def start(self) -> int:
        """Listens and follows the engine. Returns the port."""
        settings, loop = self.settings, asyncio.get_running_loop()
        # A limit above ours: the refusal is worded here, not by aiohttp.
        self._server = server = web.Server(
            cast(Callable[[web.BaseRequest], Awaitable[web.StreamResponse]], self._handle),
            handler_cancellation=True,
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
        try:
            self._listener = await loop.create_server(
                lambda: ClientConnection(
                    server,
                    headers={
                        "Server": "orch-sidecar",
                        "X-Measurement-Type": self.profile.measurement_type.value,
                    },
                    loop=loop,
                    access_log=None,
                    auto_decompress=False,
                    max_line_size=settings.max_header_bytes,
                    max_field_size=settings.max_header_bytes,
                ),
                settings.host,
                settings.port,
                backlog=1024,
            )
        except OSError:  # the port is taken: nothing has begun that `stop` would end
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
        loop = asyncio.get_running_loop()
        core = self.gate.core
        core.drain()
        logger.info("draining: %d running, %d queued", len(self.watch), core.queue_depth)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.drain_timeout_s):
                while self._active:
                    await self._one_less.wait()
                    self._one_less.clear()
        if self._active:
            logger.warning("drain limit reached with %d requests left", self._active)
        self.gate.dismiss()
        self.watch.end_all(Refusal(Reason.DRAINING, "this sidecar is shutting down"))
        await asyncio.sleep(0)  # their handlers answer and release
        assert self._listener is not None
        assert self._server is not None
        self._listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._server.pre_shutdown()  # ends idle connections, which `shutdown` would wait for
        await self._server.shutdown(1.0)
        self.pool.close()
        await self._session.close()
        await loop.run_in_executor(None, self.tracing.shutdown)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.critical("%s: failed", task.get_name(), exc_info=error)
            self.gate.engine_unavailable(
                Refusal(Reason.INTERNAL_ERROR, f"the sidecar's task {task.get_name()!r} failed")
            )

    async def _check(self) -> None:
        while True:
            await asyncio.sleep(CHECK_EVERY_S)
            self.watch.check(CHECK_EVERY_S)
            self.pool.prune()

    @property
    def state(self) -> EngineState:
        return EngineState.DRAINING if self.gate.core.draining else self.engine.state

    # Requests.

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.rel_url.raw_path
        route = ROUTES.get(path)
        if route is not None and route.method == request.method and route.upstream is None:
            response = self._own[path]()
            response.headers["X-Measurement-Type"] = self.profile.measurement_type.value
            response.headers["Server"] = "orch-sidecar"
            return response
        headers = request.headers
        own_id = new_id()
        request_id = accept_id(headers.get("X-Request-Id")) or own_id
        exchange = Exchange(
            api=route.api if route is not None else Api.OTHER,
            route=route.path if route is not None else "(none)",
            id=own_id,
            request_id=request_id,
            correlation_id=accept_id(headers.get("X-Correlation-Id")) or request_id,
            method=request.method,
        )
        trace = self.tracing.begin(exchange, headers)
        self._active += 1
        try:
            if route is None:
                raise _Stopped(Refusal(Reason.NOT_FOUND, f"there is no {path[:200]} here"))
            if route.method != request.method:
                raise _Stopped(
                    Refusal(
                        Reason.METHOD_NOT_ALLOWED,
                        f"{path} takes {route.method}, not {request.method[:20]}",
                    )
                )
            body = b"" if route.method == "GET" else await self._body(request)
            if route.admitted:
                return await self._generate(request, route, exchange, trace, body)
            return await self._relay(request, route, exchange, trace, body, None)
        except _Stopped as stopped:
            return self._refuse(exchange, stopped.refusal, route)
        except Exception:
            exchange.outcome, exchange.status = Reason.INTERNAL_ERROR, 500
            raise  # ClientConnection.handle_error logs it and answers
        finally:
            self._active -= 1
            self._one_less.set()
            self.metrics.finished(exchange)
            trace.ended()

    async def _body(self, request: web.BaseRequest) -> bytes:
        limit = self.settings.max_body_bytes
        length = request.content_length
        encoding = request.headers.get("Content-Encoding", "identity")
        framing = request.headers.get("Transfer-Encoding", "chunked")
        if framing.lower() != "chunked":
            encoding = framing  # `gzip, chunked`: what the chunks hold is compressed
        if encoding.lower() != "identity":
            raise _Stopped(
                Refusal(
                    Reason.UNSUPPORTED_ENCODING,
                    f"encoding {encoding[:40]!r} is not accepted; send the body as it is",
                )
            )
        if length is not None and length > limit:
            raise _Stopped(_too_large(f"{length} bytes", limit))
        if request.headers.get("Expect", "").lower() == "100-continue":
            transport = request.transport
            if transport is not None:
                transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        try:
            if request.content.is_eof():
                body = request.content.read_nowait()  # it came together with the head
            else:
                async with asyncio.timeout(self.settings.body_timeout_s):
                    body = await request.read()
        except web.HTTPRequestEntityTooLarge:
            raise _Stopped(_too_large("larger", limit)) from None
        except TimeoutError:
            raise _Stopped(
                Refusal(
                    Reason.BODY_TIMEOUT,
                    f"the body did not arrive within {self.settings.body_timeout_s:g} s",
                )
            ) from None
        except web.RequestPayloadError as error:
            raise _Stopped(Refusal(Reason.INVALID_REQUEST, f"the body: {error}")) from None
        if len(body) > limit:
            raise _Stopped(_too_large(f"{len(body)} bytes", limit))
        return body

    async def _generate(
        self,
        request: web.BaseRequest,
        route: Route,
        exchange: Exchange,
        trace: Trace,
        body: bytes,
    ) -> web.StreamResponse:
        demand = openai.read(
            route.api,
            body,
            max_depth=self.settings.max_json_depth,
            ctx_max=self.engine.ctx_max,
        )
        if isinstance(demand, Refusal):
            raise _Stopped(demand)
        exchange.model = demand.model
        exchange.cost = demand.cost
        exchange.stream = demand.stream
        exchange.max_tokens = demand.max_tokens
        lease = await self.gate.admit(demand.cost)
        if isinstance(lease, Refusal):
            exchange.outcome = lease.reason
            raise _Stopped(lease)
        exchange.admitted = time.monotonic_ns()
        exchange.lease = lease.id
        return await self._relay(request, route, exchange, trace, body, lease)

    async def _relay(
        self,
        request: web.BaseRequest,
        route: Route,
        exchange: Exchange,
        trace: Trace,
        body: bytes,
        lease: Lease | None,
    ) -> web.StreamResponse:
        """Sends the request to the engine and its answer to the client; gives the lease back."""
        relay: Relay | None = None
        client = cast(ClientConnection, request.protocol)
        written = complete = False
        try:
            head = self._head(request, route, exchange, trace.dispatched(), body, lease)
            try:
                connection = await self.pool.acquire()
            except (OSError, TimeoutError) as error:
                text = f"no connection to the engine: {error or type(error).__name__}"
                raise _Stopped(
                    self.gate.core.unavailable or Refusal(Reason.ENGINE_DOWN, text)
                ) from None
            transport = request.transport
            if transport is None:
                connection.close()
                raise asyncio.CancelledError
            relay = Relay(
                transport,
                self.pool,
                exchange,
                self._extra_headers(exchange),
                http10=request.version < aiohttp.HttpVersion11,
                keep_alive=request.keep_alive and not self.gate.core.draining,
            )
            client.relay = relay
            self.watch.add(relay)
            written = True
            relay.start(connection, head + body)
            if client.writing_paused:
                relay.pause()  # it is full of an earlier answer, to a request sent ahead
            ending = await relay.done
            complete = ending.failure is None
            if ending.failure is not None:
                exchange.outcome = ending.failure.reason
                if not ending.answered:
                    raise _Stopped(ending.failure)
            else:
                exchange.outcome = Ending.OK if exchange.status < 400 else Ending.ENGINE_ERROR
                if self.tracing.wants_usage and lease is not None:
                    exchange.input_tokens, exchange.output_tokens = usage.read(*relay.sent)
            return _KEEP if relay.keep_alive else _CLOSE
        finally:
            if relay is not None:
                client.relay = None
                self.watch.discard(relay)
                relay.stop()
            if lease is not None:
                if complete or not written:
                    self.gate.release(lease.id)
                else:
                    self.gate.abandon(lease.id)

    def _head(
        self,
        request: web.BaseRequest,
        route: Route,
        exchange: Exchange,
        trace_headers: Headers,
        body: bytes,
        lease: Lease | None,
    ) -> bytes:
        """The request head for the engine: the client's, less what must not pass, plus ours."""
        assert route.upstream is not None
        dropped: frozenset[bytes] | set[bytes] = _NOT_FORWARDED
        if self._authorization is not None:
            dropped = dropped | {b"authorization", b"x-api-key"}
        for connection in request.headers.getall("Connection", ()):
            named = connection.lower().encode("utf-8", "surrogateescape").split(b",")
            dropped = dropped | {name.strip() for name in named}
        lines = [
            f"{route.method} {route.upstream} HTTP/1.1".encode(),
            b"host: " + self.pool.authority,
        ]
        lines += [
            name + b": " + value
            for name, value in request.raw_headers
            if name.lower() not in dropped
        ]
        lines += [name + b": " + value for name, value in trace_headers]
        if self._authorization is not None:
            lines.append(b"authorization: " + self._authorization)
        if route.method == "POST":
            lines.append(b"content-length: %d" % len(body))
        lines.append(b"x-request-id: " + exchange.request_id.encode())
        if lease is not None:
            lines.append(b"x-orch-lease: " + lease.id.encode())
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def _extra_headers(self, exchange: Exchange) -> bytes:
        ids = (
            f"x-request-id: {exchange.request_id}\r\n"
            f"x-correlation-id: {exchange.correlation_id}\r\n"
            f"x-orch-request-id: {exchange.id}\r\n"
        )
        return ids.encode() + self._measurement_type

    def _refuse(self, exchange: Exchange, refusal: Refusal, route: Route | None) -> web.Response:
        exchange.outcome = refusal.reason
        form = errors.FORMS[refusal.reason]
        exchange.status = form.status
        response = web.Response(
            status=form.status,
            body=errors.body(exchange.api, refusal),
            content_type="application/json",
            headers={
                "Server": "orch-sidecar",
                "X-Request-Id": exchange.request_id,
                "X-Correlation-Id": exchange.correlation_id,
                "X-Orch-Request-Id": exchange.id,
                "X-Measurement-Type": self.profile.measurement_type.value,
                "Server-Timing": exchange.server_timing(),
                **errors.headers(refusal),
            },
        )
        if refusal.reason is Reason.METHOD_NOT_ALLOWED and route is not None:
            response.headers["Allow"] = route.method
        if refusal.reason in (Reason.DRAINING, Reason.BODY_TOO_LARGE, Reason.BODY_TIMEOUT):
            response.force_close()
        return response

    # Answers of our own.

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
        return web.Response(
            status=200 if ready else 503,
            body=json.dumps(body).encode(),
            content_type="application/json",
        )


def _too_large(size: str, limit: int) -> Refusal:
    return Refusal(Reason.BODY_TOO_LARGE, f"the body is {size}, the limit is {limit} bytes")


async def serve(settings: SidecarSettings) -> None:
    """Runs a sidecar until SIGTERM or SIGINT."""
    import signal

    sidecar = Sidecar(settings)
    leave = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, leave.set)
    await sidecar.start()
    with contextlib.suppress(asyncio.CancelledError):
        await leave.wait()
    await sidecar.stop()

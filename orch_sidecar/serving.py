"""A request's way through the sidecar.

`handle` (route) -> `_body` -> `_generate` (cost, slot) -> `_relay` (engine connection, answer)
-> one `finally` each for the lease and for metrics and spans. Knows no lifecycle.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, cast

import aiohttp
from aiohttp import hdrs, web
from multidict import istr

from orch_sidecar import errors, openai, usage
from orch_sidecar.admission.gate import Gate
from orch_sidecar.admission.ledger import Lease
from orch_sidecar.engine import EngineFollower
from orch_sidecar.exchange import Ending, Exchange, accept_id, new_id
from orch_sidecar.heads import request_head
from orch_sidecar.metrics import Metrics
from orch_sidecar.openai import Api
from orch_sidecar.reasons import Reason, Refusal
from orch_sidecar.relay import Relay
from orch_sidecar.routes import ROUTES, Route
from orch_sidecar.server import ClientConnection, Written
from orch_sidecar.settings import SidecarSettings
from orch_sidecar.telemetry import Trace, Tracing
from orch_sidecar.upstream import EngineConnection, EnginePool
from orch_sidecar.watch import RelayWatch

# Looked up for every request: these need not be folded to one case each time.
_X_REQUEST_ID: Final = istr("X-Request-Id")
_X_CORRELATION_ID: Final = istr("X-Correlation-Id")

_KEEP: Final = Written(keep_alive=True)
_CLOSE: Final = Written(keep_alive=False)

# After these the rest of the request may still be on its way, or the client should go elsewhere.
_CLOSING: Final = frozenset({Reason.DRAINING, Reason.BODY_TOO_LARGE, Reason.BODY_TIMEOUT})


class _Stopped(Exception):
    """A refusal on its way to the client."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


@dataclass(slots=True)
class _Request:
    """A request that is being served."""

    http: web.BaseRequest
    route: Route
    exchange: Exchange
    trace: Trace
    body: bytes = b""


class Serving:
    """Serves requests to one engine."""

    def __init__(
        self,
        settings: SidecarSettings,
        gate: Gate,
        pool: EnginePool,
        engine: EngineFollower,
        watch: RelayWatch,
        metrics: Metrics,
        tracing: Tracing,
        pages: Mapping[str, Callable[[], web.Response]],
        common_headers: Mapping[str, str],
    ) -> None:
        """`pages`: answers of our own, by path. `common_headers`: on every one of our answers."""
        self._settings = settings
        self._gate = gate
        self._pool = pool
        self._engine = engine
        self._watch = watch
        self._metrics = metrics
        self._tracing = tracing
        self._pages = pages
        self._common_headers = common_headers
        key = settings.engine_api_key
        self._authorization = (
            None if key is None else f"Bearer {key.get_secret_value()}".encode("ascii")
        )
        measurement_type = common_headers["X-Measurement-Type"]
        self._measurement_type = f"x-measurement-type: {measurement_type}\r\n".encode()
        self._waiting_bytes = 0
        self.active = 0
        self.one_less = asyncio.Event()

    async def handle(self, http: web.BaseRequest) -> web.StreamResponse:
        """Serves one request; aiohttp calls this."""
        path = http.rel_url.raw_path
        route = ROUTES.get(path)
        if route is not None and route.upstream is None and route.method == http.method:
            response = self._pages[path]()
            response.headers.update(self._common_headers)
            return response
        headers = http.headers
        own_id = new_id()
        request_id = accept_id(headers.get(_X_REQUEST_ID)) or own_id
        exchange = Exchange(
            api=route.api if route is not None else Api.OTHER,
            route=route.path if route is not None else "(none)",
            id=own_id,
            request_id=request_id,
            correlation_id=accept_id(headers.get(_X_CORRELATION_ID)) or request_id,
            method=http.method,
        )
        trace = self._tracing.begin(exchange, headers)
        self.active += 1
        try:
            if route is None:
                raise _Stopped(Refusal(Reason.NOT_FOUND, f"there is no {path[:200]} here"))
            if route.method != http.method:
                text = f"{path} takes {route.method}, not {http.method[:20]}"
                raise _Stopped(Refusal(Reason.METHOD_NOT_ALLOWED, text))
            request = _Request(http, route, exchange, trace)
            if route.method == "POST":
                request.body = await self._body(http)
            if route.admitted:
                return await self._generate(request)
            return await self._relay(request, None)
        except _Stopped as stopped:
            return self._refuse(exchange, stopped.refusal, route)
        except Exception:
            exchange.outcome, exchange.status = Reason.INTERNAL_ERROR, 500
            raise  # ClientConnection.handle_error logs it and answers
        finally:
            self.active -= 1
            self.one_less.set()
            self._metrics.finished(exchange)
            trace.ended()

    async def _body(self, http: web.BaseRequest) -> bytes:
        limit = self._settings.max_body_bytes
        length = http.content_length
        headers = http.headers
        encoding = headers.get(hdrs.CONTENT_ENCODING, "identity")
        framing = headers.get(hdrs.TRANSFER_ENCODING, "chunked")
        if framing.lower() != "chunked":
            encoding = framing  # `gzip, chunked`: what the chunks hold is compressed
        if encoding.lower() != "identity":
            text = f"encoding {encoding[:40]!r} is not accepted; send the body as it is"
            raise _Stopped(Refusal(Reason.UNSUPPORTED_ENCODING, text))
        if length is not None and length > limit:
            raise _Stopped(_too_large(f"{length} bytes", limit))
        if headers.get(hdrs.EXPECT, "").lower() == "100-continue":
            transport = http.transport
            if transport is not None and http.version >= aiohttp.HttpVersion11:
                transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        try:
            if http.content.is_eof():
                body = http.content.read_nowait()  # it came together with the head
            else:
                async with asyncio.timeout(self._settings.body_timeout_s):
                    body = await http.read()
        except web.HTTPRequestEntityTooLarge:
            raise _Stopped(_too_large("larger", limit)) from None
        except TimeoutError:
            text = f"the body did not arrive within {self._settings.body_timeout_s:g} s"
            raise _Stopped(Refusal(Reason.BODY_TIMEOUT, text)) from None
        except web.RequestPayloadError as error:
            raise _Stopped(Refusal(Reason.INVALID_REQUEST, f"the body: {error}")) from None
        if len(body) > limit:
            raise _Stopped(_too_large(f"{len(body)} bytes", limit))
        return body

    async def _generate(self, request: _Request) -> web.StreamResponse:
        """Reads what it costs, waits for the slots, and relays."""
        exchange = request.exchange
        demand = openai.read(
            request.route.api,
            request.body,
            max_depth=self._settings.max_json_depth,
            ctx_max=self._engine.ctx_max,
        )
        if isinstance(demand, Refusal):
            raise _Stopped(demand)
        exchange.model = demand.model
        exchange.cost = demand.cost
        exchange.stream = demand.stream
        exchange.max_tokens = demand.max_tokens
        lease = await self._admit(request, demand.cost)
        if isinstance(lease, Refusal):
            exchange.outcome = lease.reason
            raise _Stopped(lease)
        exchange.admitted = time.monotonic_ns()
        exchange.lease = lease.id
        return await self._relay(request, lease)

    async def _admit(self, request: _Request, cost: int) -> Lease | Refusal:
        """Waits for the slots, if there is room for the body meanwhile."""
        size = len(request.body)
        if self._waiting_bytes + size > self._settings.max_queue_bytes:
            return Refusal(
                Reason.QUEUE_FULL,
                f"the bodies of the waiting requests fill {self._settings.max_queue_bytes} bytes",
            )
        self._waiting_bytes += size
        try:
            return await self._gate.admit(cost)
        finally:
            self._waiting_bytes -= size

    async def _relay(self, request: _Request, lease: Lease | None) -> web.StreamResponse:
        """Sends the request to the engine and its answer to the client; gives the lease back."""
        http, exchange = request.http, request.exchange
        client = cast(ClientConnection, http.protocol)
        relay: Relay | None = None
        written = complete = False
        try:
            head = self._head(request, lease)
            connection = await self._connect(lease)
            transport = http.transport
            if transport is None:
                connection.close()
                raise asyncio.CancelledError
            relay = Relay(
                transport,
                self._pool,
                exchange,
                self._ids(exchange),
                http10=http.version < aiohttp.HttpVersion11,
                keep_alive=(
                    http.keep_alive
                    and http.version >= aiohttp.HttpVersion11
                    and not self._gate.core.draining
                ),
            )
            client.relay = relay
            self._watch.add(relay)
            written = True
            relay.start(connection, head + request.body)
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
                if self._tracing.wants_usage and lease is not None:
                    exchange.input_tokens, exchange.output_tokens = usage.read(*relay.sent)
            return _KEEP if relay.keep_alive else _CLOSE
        finally:
            if relay is not None:
                client.relay = None
                self._watch.discard(relay)
                relay.stop()
            if lease is not None:
                if complete or not written:
                    self._gate.release(lease.id)
                else:
                    self._gate.abandon(lease.id)

    async def _connect(self, lease: Lease | None) -> EngineConnection:
        """A connection to the engine that the lease is for."""
        core = self._gate.core
        try:
            connection = await self._pool.acquire()
        except (OSError, TimeoutError) as error:
            text = f"no connection to the engine: {error or type(error).__name__}"
            raise _Stopped(core.unavailable or Refusal(Reason.ENGINE_DOWN, text)) from None
        if lease is not None and (core.unavailable or not core.ledger.holds(lease.id)):
            connection.close()  # the engine went while we connected; this may be its successor
            gone = Refusal(Reason.ENGINE_DOWN, "the engine was restarted")
            raise _Stopped(core.unavailable or gone)
        return connection

    def _head(self, request: _Request, lease: Lease | None) -> bytes:
        route = request.route
        ours = [(b"host", self._pool.authority), *request.trace.dispatched()]
        if route.method == "POST":
            ours.append((b"content-length", b"%d" % len(request.body)))
        ours.append((b"x-request-id", request.exchange.request_id.encode()))
        if lease is not None:
            ours.append((b"x-orch-lease", lease.id.encode()))
        return request_head(
            f"{route.method} {route.upstream} HTTP/1.1".encode(),
            request.http.raw_headers,
            ours,
            authorization=self._authorization,
        )

    def _ids(self, exchange: Exchange) -> bytes:
        ids = (
            f"x-request-id: {exchange.request_id}\r\n"
            f"x-correlation-id: {exchange.correlation_id}\r\n"
            f"x-orch-request-id: {exchange.id}\r\n"
        )
        return ids.encode() + self._measurement_type

    def _refuse(self, exchange: Exchange, refusal: Refusal, route: Route | None) -> web.Response:
        exchange.outcome = refusal.reason
        exchange.status = errors.FORMS[refusal.reason].status
        response = web.Response(
            status=exchange.status,
            body=errors.body(exchange.api, refusal),
            content_type="application/json",
            headers={
                **self._common_headers,
                "X-Request-Id": exchange.request_id,
                "X-Correlation-Id": exchange.correlation_id,
                "X-Orch-Request-Id": exchange.id,
                "Server-Timing": exchange.server_timing(),
                **errors.headers(refusal),
            },
        )
        if refusal.reason is Reason.METHOD_NOT_ALLOWED and route is not None:
            response.headers["Allow"] = route.method
        if refusal.reason in _CLOSING:
            response.force_close()
        return response


def _too_large(size: str, limit: int) -> Refusal:
    return Refusal(Reason.BODY_TOO_LARGE, f"the body is {size}, the limit is {limit} bytes")

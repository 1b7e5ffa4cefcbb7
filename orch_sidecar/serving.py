"""A request's way through the sidecar.

`handle` (route, body) -> `_generate` (cost, class, wishes; then pool after pool, as long as
another may serve what one could not) -> an attempt at one pool -> the answer, or the refusal,
and one `finally` for metrics and spans. Knows no lifecycle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from aiohttp import web
from multidict import istr

from orch_sidecar import directives, errors, openai, reading
from orch_sidecar.admission.ask import Ask
from orch_sidecar.attempt import Attempts, Failed, TurnedAway
from orch_sidecar.control import Control
from orch_sidecar.exchange import Exchange, accept_id, new_ids
from orch_sidecar.inflight import InFlight
from orch_sidecar.metrics import Metrics
from orch_sidecar.openai import Api
from orch_sidecar.placement import Why
from orch_sidecar.pool import Pool, Wanted
from orch_sidecar.pools import Pools
from orch_sidecar.reasons import Reason, Refusal
from orch_sidecar.request import Request
from orch_sidecar.routes import ROUTES, Route
from orch_sidecar.settings import SidecarSettings
from orch_sidecar.sharing import Sharing
from orch_sidecar.tracing import Tracing
from orch_sidecar.upper import UpperLeases
from orch_sidecar.watch import RelayWatch

# Looked up for every request: these need not be folded to one case each time.
_X_REQUEST_ID: Final = istr("X-Request-Id")
_X_CORRELATION_ID: Final = istr("X-Correlation-Id")
_X_ORCH_REQUEST_ID: Final = istr("X-Orch-Request-Id")
_X_ORCH_LEASE: Final = istr("X-Orch-Lease")

# After these the rest of the request may still be on its way, or the client should go elsewhere.
_CLOSING: Final = frozenset({Reason.DRAINING, Reason.BODY_TOO_LARGE, Reason.BODY_TIMEOUT})


class Serving:
    """Serves requests to the engines."""

    def __init__(
        self,
        settings: SidecarSettings,
        pools: Pools,
        watch: RelayWatch,
        metrics: Metrics,
        tracing: Tracing,
        control: Control,
        in_flight: InFlight,
        leases: UpperLeases,
        common_headers: Mapping[str, str],
    ) -> None:
        """`leases`: those of sidecars above. `common_headers`: on every one of our answers."""
        self.settings = settings
        self._pools = pools
        self._metrics = metrics
        self._tracing = tracing
        self._control = control
        self._in_flight = in_flight
        self._leases = leases
        self._common_headers = common_headers
        self._attempts = Attempts(settings, watch, leases)
        self.sharing = Sharing(pools, watch, metrics, self._generate)
        self._ids = new_ids()
        self.active = 0
        self.one_less = asyncio.Event()

    def configure(self, settings: SidecarSettings) -> None:
        """Other settings, for what comes."""
        self.settings = self._attempts.settings = settings

    async def handle(self, http: web.BaseRequest) -> web.StreamResponse:
        """Serves one request; aiohttp calls this."""
        path = http.rel_url.raw_path
        route = ROUTES.get(path)
        if route is None or not route.admitted:
            own = await self._control.answer(http, path)
            if own is not None:
                return own
        headers = http.headers
        own_id = next(self._ids)
        objection: Refusal | None = None
        if (given := headers.get(_X_ORCH_REQUEST_ID)) is not None:
            objection = self._in_flight.objection(given)
            if objection is None:
                own_id = given
        request_id = own_id
        if (given := headers.get(_X_REQUEST_ID)) is not None:
            request_id = accept_id(given) or own_id
        correlation_id = request_id
        if (given := headers.get(_X_CORRELATION_ID)) is not None:
            correlation_id = accept_id(given) or request_id
        exchange = Exchange(
            api=route.api if route is not None else Api.OTHER,
            route=route.path if route is not None else "(none)",
            id=own_id,
            request_id=request_id,
            correlation_id=correlation_id,
            method=http.method,
        )
        trace = self._tracing.begin(exchange, headers)
        self.active += 1
        request: Request | None = None
        try:
            answer: web.StreamResponse | Refusal
            if route is None:
                answer = Refusal(Reason.NOT_FOUND, f"there is no {path[:200]} here")
            elif route.method != http.method:
                text = f"{path} takes {route.method}, not {http.method[:20]}"
                answer = Refusal(Reason.METHOD_NOT_ALLOWED, text)
            elif objection is not None:
                answer = objection
            else:
                request = Request(http, route, exchange, trace)
                self._in_flight.begin(own_id, request)
                answer = await self._serve(request)
            if isinstance(answer, Refusal):
                return self._refuse(exchange, answer, route)
            return answer
        except Exception:
            exchange.outcome, exchange.status = Reason.INTERNAL_ERROR, 500
            raise  # ClientConnection.handle_error logs it and answers
        finally:
            if request is not None:
                self._in_flight.end(own_id)
                if request.presence is not None:
                    self._leases.leave(request.presence)
            self.active -= 1
            self.one_less.set()
            self._metrics.finished(exchange)
            trace.ended()

    async def _serve(self, request: Request) -> web.StreamResponse | Refusal:
        """Reads its body, and serves it with or without admission."""
        http, settings = request.http, self.settings
        if request.route.admitted and (lease := http.headers.get(_X_ORCH_LEASE)) is not None:
            request.presence = self._leases.enter(lease)
            if request.presence is None:
                text = "this X-Orch-Lease is spent: it was used or revoked before"
                return Refusal(Reason.LEASE_SPENT, text)
        if request.route.method == "POST":
            body = reading.at_once(http, settings.max_body_bytes)
            if body is None:
                limit, timeout_s = settings.max_body_bytes, settings.body_timeout_s
                body = await reading.rest_of(http, limit, timeout_s)
            if isinstance(body, Refusal):
                return body
            if request.cancelled is not None:
                return request.cancelled
            request.body = body
        given = directives.read(http.headers)
        if isinstance(given, Refusal):
            return given
        request.directives = given
        if not request.route.admitted:
            return await self._pass_on(request)
        exchange = request.exchange
        demand = openai.read(
            exchange.api,
            request.body,
            max_depth=settings.max_json_depth,
            ctx_max=self._pools.ctx_max,
            coalesce=self._pools.coalescing and not given.no_coalesce,
        )
        if isinstance(demand, Refusal):
            return demand
        exchange.model = demand.model
        exchange.cost = demand.cost
        exchange.stream = demand.stream
        exchange.max_tokens = demand.max_tokens
        service_class = directives.service_class(given, demand.service_tier, demand.priority)
        wanted = Wanted(demand, given, service_class, len(request.body))
        serve = self._generate if demand.coalescing is None else self.sharing.serve
        outcome = await serve(request, wanted)
        return outcome.refusal if isinstance(outcome, Failed) else outcome

    async def _generate(self, request: Request, wanted: Wanted) -> web.StreamResponse | Failed:
        """Serves what takes slots."""
        pool = self._pools.one
        if pool is None or wanted.directives is not directives.NONE:
            return await self._place(request, wanted)
        ask = pool.ask(*wanted, 0.0)
        _note(request.exchange, pool, ask, Why.ONLY)
        return await self._attempts.run(request, pool, ask)

    async def _place(self, request: Request, wanted: Wanted) -> web.StreamResponse | Failed:
        """Places it, and anew as long as it fails where another pool may serve it."""
        exchange, pools = request.exchange, self._pools
        tried = set(request.barred)
        chosen = pools.choose(wanted, exchange.spent_ms(), tried or None)
        if isinstance(chosen, Refusal):
            return Failed(chosen)
        told: Refusal | None = None
        while True:
            pool, ask, why = chosen
            _note(exchange, pool, ask, why)
            outcome = await self._attempts.run(request, pool, ask)
            if not isinstance(outcome, Failed):
                return outcome
            if request.cancelled is not None:
                return Failed(request.cancelled)
            if told is None or errors.FORMS[told.reason].status != 429:
                told = outcome.refusal  # that a better pool was busy stays the answer
            if not outcome.elsewhere or pools.one is not None:
                return Failed(told)
            if outcome.tried:
                tried.add(pool.name)
            again = pools.choose(wanted, exchange.spent_ms(), tried)
            if isinstance(again, Refusal):
                return Failed(told, elsewhere=True)
            chosen = again
            request.trace.retried(outcome.refusal.reason)
            exchange.begin_again()

    async def _pass_on(self, request: Request) -> web.StreamResponse | Refusal:
        """Serves what takes no slot."""
        model = ""
        if self._pools.one is None and request.route.method == "POST":
            model = reading.model_of(request.body)
        pool = self._pools.choose_unadmitted(model, request.directives)
        if isinstance(pool, Refusal):
            return pool
        request.exchange.pool, request.exchange.labels = pool.name, pool.labels
        outcome = await self._attempts.relay(request, pool, None)
        assert not isinstance(outcome, TurnedAway)  # nothing is held back without a lease
        return outcome.refusal if isinstance(outcome, Failed) else outcome

    def _refuse(self, exchange: Exchange, refusal: Refusal, route: Route | None) -> web.Response:
        exchange.outcome = refusal.reason
        exchange.status = errors.FORMS[refusal.reason].status
        headers = {
            **self._common_headers,
            "X-Request-Id": exchange.request_id,
            "X-Correlation-Id": exchange.correlation_id,
            "X-Orch-Request-Id": exchange.id,
            "Server-Timing": exchange.server_timing(),
            **errors.headers(refusal),
        }
        if exchange.labels is not None:
            headers["X-Measurement-Type"] = str(exchange.labels["measurement_type"])
        if refusal.queue_position is not None:
            headers["X-Orch-Queue-Position"] = str(refusal.queue_position)
        if refusal.predicted_start_ms is not None:
            headers["X-Orch-Predicted-Start-Ms"] = str(refusal.predicted_start_ms)
        response = web.Response(
            status=exchange.status,
            body=errors.body(exchange.api, refusal),
            content_type="application/json",
            headers=headers,
        )
        if refusal.reason is Reason.METHOD_NOT_ALLOWED and route is not None:
            response.headers["Allow"] = route.method
        if refusal.reason in _CLOSING:
            response.force_close()
        return response


def _note(exchange: Exchange, pool: Pool, ask: Ask, why: Why) -> None:
    """What is known of how it is served, from here on."""
    exchange.pool = pool.name
    exchange.service_class = ask.service_class
    exchange.labels = pool.labels_of(ask.service_class)
    exchange.placement = why

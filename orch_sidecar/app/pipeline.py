"""The path of a request: built here, in one function, and read from the bottom to the top.

    OwnEndpoints  answers probes, pages and control requests: they never enter the pipeline
    Frontend      ids, key, body, limits;                    finally: record, trace, budgets
    Coalesce      identical requests, one generation;        finally: the subscription
    Route         chooses a pool, and the next one on failure
    Admit         slots: ask, wait, queue again;             finally: the lease
    Forward       engine connection, response to the sink;   finally: the connection

A stage returns `Sent`, or `NotSent` with what may be tried next (`proxy/request.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import NamedTuple

from aiohttp import web

from orch_sidecar.api.cache_salt import CacheSalts
from orch_sidecar.api.endpoints import ENDPOINTS, Endpoint, find
from orch_sidecar.api.refusal import Refusal
from orch_sidecar.auth.authorizer import Authorizer
from orch_sidecar.auth.browsers import AllowedOrigins
from orch_sidecar.coalescing.coalescer import Coalesce
from orch_sidecar.config.settings import SidecarSettings
from orch_sidecar.control.endpoints import Control
from orch_sidecar.control.recorder import endpoint_of
from orch_sidecar.observability.metrics import Metrics
from orch_sidecar.observability.tracing import Tracing
from orch_sidecar.pools.parent_leases import ParentLeases
from orch_sidecar.pools.registry import PoolRegistry
from orch_sidecar.proxy.admit import Admit
from orch_sidecar.proxy.forward import Forward
from orch_sidecar.proxy.frontend import Frontend
from orch_sidecar.proxy.in_flight import InFlight
from orch_sidecar.proxy.queue_events import Watchers
from orch_sidecar.proxy.route import Route, WaitingRoom
from orch_sidecar.splitting.stage import Split
from orch_sidecar.wire.client_connection import SENT, SENT_CLOSE
from orch_sidecar.wire.client_connections import StallWatchdog
from orch_sidecar.wire.client_request import ClientRequest
from orch_sidecar.wire.request_body import BodyReader


class Pipeline(NamedTuple):
    """The stages that are configured, drained or closed from outside."""

    entry: OwnEndpoints
    frontend: Frontend
    coalesce: Coalesce
    watchers: Watchers
    waiting_room: WaitingRoom


def build(
    settings: SidecarSettings,
    pools: PoolRegistry,
    watchdog: StallWatchdog,
    metrics: Metrics,
    tracing: Tracing,
    control: Control,
    authorizer: Authorizer,
    in_flight: InFlight,
    parent_leases: ParentLeases,
    common_headers: Mapping[str, str],
    salts: CacheSalts,
) -> Pipeline:
    """Builds the stages, the last one first."""
    bodies = BodyReader(settings)
    forward = Forward()
    watchers = Watchers(pools)
    admit = Admit(forward, parent_leases, watchers)
    room = WaitingRoom()
    pools.on_ready = room.open
    route = Route(admit, forward, pools, bodies, room)
    coalesce = Coalesce(route, pools, watchers, metrics)
    frontend = Frontend(
        coalesce,
        Split(route, pools, bodies, watchdog, metrics),
        route,
        bodies,
        settings,
        pools,
        authorizer,
        in_flight,
        parent_leases,
        metrics,
        tracing,
        common_headers,
        salts,
    )
    origins = AllowedOrigins(settings.allowed_origins)
    entry = OwnEndpoints(control, frontend, authorizer, origins, common_headers)
    return Pipeline(entry, frontend, coalesce, watchers, room)


class OwnEndpoints:
    """Answers what is meant for the sidecar itself, before anything else looks at it."""

    def __init__(
        self,
        control: Control,
        frontend: Frontend,
        authorizer: Authorizer,
        origins: AllowedOrigins,
        common_headers: Mapping[str, str],
    ) -> None:
        """`origins`: of pages that may use it. `common_headers`: of all our responses."""
        self._control = control
        self._frontend = frontend
        self._authorizer = authorizer
        self._origins = origins
        self._common_headers = common_headers
        # No further step in the path of a request if no page of another origin may use it.
        self.handle = self._handle_for_pages if origins else self._handle

    async def _handle_for_pages(self, http: ClientRequest) -> web.StreamResponse:
        """Answers what browsers ask, and has each response say what a page may do with it."""
        preflight = self._origins.preflight(http.method, http.headers)
        if preflight is not None and not isinstance(preflight, Refusal):
            return web.Response(status=204, headers={**self._common_headers, **preflight})
        fields = self._origins.fields(http.headers)
        http.protocol.origin_fields = fields
        response: web.StreamResponse
        if isinstance(preflight, Refusal):
            response = await self._refuse(http, preflight)
        else:
            response = await self._handle(http)
        if not response.prepared and response not in (SENT, SENT_CLOSE):
            response.headers.update(fields)
        return response

    def _handle(self, http: ClientRequest) -> Awaitable[web.StreamResponse]:
        """Serves one request: directly by the frontend if an engine has to answer it."""
        if http.malformed is not None:
            return self._refuse(http, http.malformed)
        endpoint = ENDPOINTS.get(http.target)
        if endpoint is not None and endpoint.admitted:
            return self._frontend.handle(http, http.target, endpoint)
        return self._handle_other(http)

    async def _handle_other(self, http: ClientRequest) -> web.StreamResponse:
        """Serves a request that may be for the sidecar itself."""
        path = http.rel_url.raw_path
        endpoint: Endpoint | None = ENDPOINTS.get(path)
        if endpoint is None and (endpoint := find(path)) is not None and not endpoint.stored:
            path = endpoint.path
        if endpoint is None or not endpoint.admitted:
            key = self._authorizer.check(path, http)
            if isinstance(key, Refusal):
                endpoint = endpoint or endpoint_of(path)
            else:
                own = await self._control.answer(http.for_aiohttp(), path, key)
                if own is not None:
                    return own
        return await self._frontend.handle(http, path, endpoint)

    def _refuse(self, http: ClientRequest, refusal: Refusal) -> Awaitable[web.StreamResponse]:
        """Answers a request that is refused before anybody asks for its key, and records it."""
        path = http.rel_url.raw_path
        return self._frontend.handle(http, path, ENDPOINTS.get(path), lambda _, __: refusal)

    async def administer(self, http: ClientRequest) -> web.StreamResponse:
        """Serves one request of an operator, who needs no key."""
        if http.malformed is not None:
            return await self._refuse(http, http.malformed)
        own = await self._control.administer(http.for_aiohttp())
        if own is not None:
            return own
        path = http.rel_url.raw_path
        return await self._frontend.handle(http, path, ENDPOINTS[path], _no_key)

    async def serve_row(self, http: ClientRequest) -> web.StreamResponse:
        """Serves a row of a batch, for the key that it names by its digest."""
        path = http.rel_url.raw_path
        check = self._authorizer.check_owner
        return await self._frontend.handle(http, path, ENDPOINTS.get(path), check)


def _no_key(path: str, http: ClientRequest) -> None:
    """Accepts an operator's request without a key."""

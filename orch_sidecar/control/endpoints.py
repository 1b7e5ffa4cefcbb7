"""What this sidecar answers itself: its pages, and what clients, operators and sidecars above
may ask of it.

Never through admission, and not counted as requests that are being served: a reader of the state
stream must not hold up a drain.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from aiohttp import web

from orch_sidecar.admission import refusals
from orch_sidecar.admission.draining import OrderedBy
from orch_sidecar.api import errors
from orch_sidecar.api.endpoints import (
    ADMIN,
    ENDPOINTS,
    PUBLIC,
    STREAM,
    ResourcePath,
    match_resource,
)
from orch_sidecar.api.headers import ALLOW, HOST, ORIGIN, X_MEASUREMENT_TYPE
from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.auth.admin_hosts import AdminHosts
from orch_sidecar.auth.keys import ApiKey
from orch_sidecar.control.pages import Pages
from orch_sidecar.control.state_stream import Publisher
from orch_sidecar.pools.pool import Pool
from orch_sidecar.pools.registry import PoolRegistry
from orch_sidecar.proxy.in_flight import InFlight

logger = logging.getLogger("orch.sidecar")


class Control:
    """Answers what is asked of the sidecar itself."""

    def __init__(
        self,
        pools: PoolRegistry,
        pages: Pages,
        in_flight: InFlight,
        publisher: Publisher,
        hosts: AdminHosts,
        common_headers: Mapping[str, str],
    ) -> None:
        self._pools = pools
        self._pages = pages
        self._in_flight = in_flight
        self._publisher = publisher
        self._hosts = hosts
        self._headers = common_headers

    async def answer(
        self, http: web.BaseRequest, path: str, key: ApiKey | None
    ) -> web.StreamResponse | None:
        """The answer to a client. None: it is not for the sidecar itself."""
        if http.method == "GET":
            page = self._pages.at.get(path)
            if page is not None:
                return self._ours(page(http, key))
            if path == STREAM:
                client = None if key is None else key.name
                return self._ours(await self._publisher.stream(http, client))
        if path in ENDPOINTS:
            return None
        found = match_resource(path)
        if found is None or found[0] not in PUBLIC:
            return None
        return self._ours(self._ask(*found, http))

    async def administer(self, http: web.BaseRequest) -> web.StreamResponse:
        """The answer to an operator.

        A browser says where a request comes from that may change something. No page that an
        operator happens to look at is to drain a pool, so none of these is answered.
        """
        path = http.rel_url.raw_path
        if (refused := self._hosts.check(http.headers.getall(HOST, []))) is not None:
            return self._ours(refused)
        if ORIGIN in http.headers:
            return self._ours(Refusal(Reason.FORBIDDEN, "this is not for browsers"))
        page = self._pages.at.get(path)
        if page is not None:
            return self._ours(
                page(http, None) if http.method == "GET" else _takes(path, "GET", http)
            )
        found = match_resource(path)
        if found is None or found[0] not in ADMIN:
            return self._ours(Refusal(Reason.NOT_FOUND, f"there is no {path[:200]} here"))
        return self._ours(self._ask(*found, http))

    def _ask(self, what: ResourcePath, name: str, http: web.BaseRequest) -> web.Response | Refusal:
        if http.method != what.method:
            return _takes(what, what.method, http)
        if what is ResourcePath.LEASE:
            return self._publisher.revoke(name)
        if what is ResourcePath.CANCEL:
            if self._in_flight.cancel(name, http.headers):
                return web.Response(status=204)
            return Refusal(Reason.NOT_FOUND, f"there is no request {name} of this API key here")
        pool = next((pool for pool in self._pools if pool.name == name), None)
        if pool is None:
            return Refusal(Reason.NOT_FOUND, f"there is no pool {name} here")
        if what is ResourcePath.HEALTH:
            return self._health(pool, probe=True)
        if what is ResourcePath.DRAIN:
            self._drain(pool, http.query.get("engine_epoch"))
        elif self._pools.leaving:
            return refusals.shutting_down()
        else:
            pool.gate.resume()
            logger.info("pool %s: takes requests again, as an operator asked", pool.name)
        return self._health(pool)

    def _health(self, pool: Pool, *, probe: bool = False) -> web.Response:
        """The page of a pool. `probe`: the status says whether it is ready."""
        health = self._pages.health(pool)
        return web.json_response(
            health,
            status=503 if probe and not health["ready"] else 200,
            headers={X_MEASUREMENT_TYPE: pool.profile.measurement_type.value},
        )

    def _drain(self, pool: Pool, engine_epoch: str | None) -> None:
        """Drains a pool: for an operator, or (`engine_epoch`) because that engine is being stopped.

        Empty, that is an engine that has not reported yet. One that another has replaced since
        is none to drain for.
        """
        known = pool.gate.core.ledger.epoch
        if engine_epoch is None:
            pool.gate.drain(OrderedBy.OPERATOR)
            logger.info("pool %s: drains, as an operator asked", pool.name)
        elif engine_epoch == known:
            pool.gate.drain(OrderedBy.ENGINE_STOP)
            logger.info("pool %s: drains, its engine (epoch %r) is being stopped", pool.name, known)
        else:
            text = "pool %s: is not drained for engine epoch %.80r: another one has reported"
            logger.warning(text, pool.name, engine_epoch)

    def _ours(self, answer: web.StreamResponse | Refusal) -> web.StreamResponse:
        """With what all answers of this sidecar carry, unless it has been sent already."""
        if isinstance(answer, Refusal):
            answer = web.Response(
                status=errors.BY_REASON[answer.reason].status,
                body=errors.OPENAI.body(answer),
                content_type="application/json",
                headers=errors.headers(answer),
            )
        if not answer.prepared:
            for name, value in self._headers.items():
                answer.headers.setdefault(name, value)
        return answer


def _takes(path: str, method: str, http: web.BaseRequest) -> web.Response:
    """The answer to another method than the one that this path takes."""
    text = f"{path} takes {method}, not {http.method[:20]}"
    refusal = Refusal(Reason.METHOD_NOT_ALLOWED, text)
    return web.json_response(body=errors.OPENAI.body(refusal), status=405, headers={ALLOW: method})

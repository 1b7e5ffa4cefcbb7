"""Routes the requests that the sidecar answers itself: pages, requests by id, leases, drains.

They are not counted as requests in flight: a reader of the state stream must not delay a drain.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Mapping
from functools import partial
from typing import Any, Final, Protocol
from urllib.parse import unquote

from aiohttp import web

from orch_sidecar.admission import refusals
from orch_sidecar.admission.availability import OrderedBy
from orch_sidecar.api.endpoints import (
    ENDPOINTS,
    ENGINE_METRICS,
    LIVE,
    PING,
    STREAM,
    ResourcePath,
    match_resource,
)
from orch_sidecar.api.headers import ALLOW, HOST, X_MEASUREMENT_TYPE
from orch_sidecar.api.refusal import OPENAI, Reason, Refusal
from orch_sidecar.auth.browsers import MAX_BODY_BYTES, AllowedHosts, check_browser
from orch_sidecar.auth.keys import OPERATOR, ApiKey, owner_of
from orch_sidecar.control.live_stream import LiveStream
from orch_sidecar.control.pages import Page, Pages
from orch_sidecar.control.recorder import BATCHES, Recorder
from orch_sidecar.control.state_stream import Publisher
from orch_sidecar.pools.pool import Pool
from orch_sidecar.pools.registry import PoolRegistry
from orch_sidecar.proxy.in_flight import InFlight
from orch_sidecar.proxy.request import Request
from orch_sidecar.wire.client_connection import ResourceRequest
from orch_sidecar.wire.unreadable import UNREADABLE, refusal_of

logger = logging.getLogger("orch.sidecar")

# Those of the clients' listener, and those of the operators' listener, with their methods.
PUBLIC: Final[Mapping[ResourcePath, tuple[str, ...]]] = {
    ResourcePath.LEASE: ("DELETE",),
    ResourcePath.CLAIM: ("PUT",),
    ResourcePath.CANCEL: ("POST",),
    ResourcePath.REQUEST: ("GET",),
    ResourcePath.MODEL: ("GET",),
    ResourcePath.HEALTH: ("GET",),
    **BATCHES,
}
ADMIN: Final[Mapping[ResourcePath, tuple[str, ...]]] = {
    ResourcePath.REQUEST: ("GET", "DELETE"),
    ResourcePath.HEALTH: ("GET",),
    ResourcePath.DRAIN: ("POST",),
    ResourcePath.RESUME: ("POST",),
}


class BatchEndpoints(Protocol):
    """What answers requests of files and batches."""

    async def answer(self, request: ResourceRequest) -> web.StreamResponse | Refusal:
        """Answers a request."""


class Control:
    """Answers the requests to the sidecar itself."""

    def __init__(
        self,
        pools: PoolRegistry,
        pages: Pages,
        in_flight: InFlight,
        publisher: Publisher,
        live: LiveStream,
        hosts: AllowedHosts,
        recorder: Recorder,
        common_headers: Mapping[str, str],
    ) -> None:
        """Batches are off until they are set by `serve_batches`."""
        self._pools = pools
        self._pages = pages
        self._in_flight = in_flight
        self._publisher = publisher
        self._hosts = hosts
        self._recorder = recorder
        self._headers = common_headers
        public: Page = partial(live.stream, operator=False)
        self._public = {**pages.at, STREAM: publisher.stream, LIVE: public}
        self._admin = {**pages.at, LIVE: lambda http, _: live.stream(http, None, operator=True)}
        self._batches: BatchEndpoints | None = None

    def serve_batches(self, batches: BatchEndpoints) -> None:
        """Has files and batches answered."""
        self._batches = batches

    async def answer(
        self, http: web.BaseRequest, path: str, key: ApiKey | None
    ) -> web.StreamResponse | None:
        """Answers a client. None: the request is not for the sidecar itself."""
        answer = await self._answer(http, path, key, self._public, PUBLIC)
        return None if answer is None else self._with_headers(answer)

    async def administer(self, http: web.BaseRequest) -> web.StreamResponse | None:
        """Answers an operator: the page of this listener, or a client that is no browser. No other
        page that an operator visits must be able to read, cancel or drain anything. None: the
        request is for the engine."""
        path, reads = http.rel_url.raw_path, http.method in ("GET", "HEAD")
        answer: web.StreamResponse | Refusal | None
        answer = self._hosts.check(http.headers.getall(HOST, [])) or await _check_browser(http)
        if answer is None:
            if path == ENGINE_METRICS and reads:
                return None
            answer = await self._answer(http, path, OPERATOR, self._admin, ADMIN)
        if answer is None and (path == ENGINE_METRICS or path in self._admin) and not reads:
            answer = _wrong_method(path, ("GET",), http)
        if answer is None:
            text = f"there is no endpoint {path[:200]} at this address"
            answer = Refusal(Reason.NOT_FOUND, text)
        return self._with_headers(answer)

    async def _answer(
        self,
        http: web.BaseRequest,
        path: str,
        key: ApiKey | None,
        pages: Mapping[str, Page],
        resources: Mapping[ResourcePath, tuple[str, ...]],
    ) -> web.StreamResponse | Refusal | None:
        """None: this listener has none of the `pages` or `resources` there."""
        pings = path == PING and http.method == "POST"
        method = "GET" if http.method == "HEAD" or pings else http.method
        if method == "GET" and (page := pages.get(path)) is not None:
            if http.method == "HEAD" and path in (STREAM, LIVE):
                return web.Response(content_type="text/event-stream")
            answer = page(http, key)
            answer = await answer if isinstance(answer, Awaitable) else answer
            if answer is not None:
                return answer
        found = None if path in ENDPOINTS else match_resource(path)
        if found is None or (methods := resources.get(found[0])) is None:
            return None
        what, name = found
        if what in BATCHES:
            answering = partial(self._of_batches, http, what, name, key)
            return await self._recorder.answered(http, what, key, answering)
        if method not in methods:
            return _wrong_method(what, methods, http)
        if what is ResourcePath.CLAIM:
            return await self._publisher.claim(name, http, key)
        if what is ResourcePath.LEASE:
            return self._publisher.revoke(name, key)
        if what is ResourcePath.MODEL:
            return self._pages.model(unquote(name))
        headers = None if resources is ADMIN else http.headers
        if what is ResourcePath.CANCEL or method == "DELETE":
            known = self._in_flight.cancel(name, headers)
            return web.Response(status=204) if known else _no_request(name, headers)
        if what is ResourcePath.REQUEST:
            requests = self._in_flight.find(name, headers)
            return _no_request(name, headers) if requests is None else self._status(name, requests)
        return self._of_pool(what, name, http)

    async def _of_batches(
        self,
        http: web.BaseRequest,
        what: ResourcePath,
        name: str,
        key: ApiKey | None,
        ids: Mapping[str, str],
    ) -> web.StreamResponse | Refusal:
        """Answers a request of files or batches. `ids`: header fields with its ids."""
        methods = BATCHES[what]
        if self._batches is None:
            path = http.rel_url.raw_path[:200]
            text = f"there is no {path} here: batches are off, ORCH_BATCHES turns them on"
            return Refusal(Reason.NOT_FOUND, text)
        if http.method.replace("HEAD", "GET") not in methods:
            return _wrong_method(what, methods, http)
        try:
            request = ResourceRequest(http, what, name, owner_of(key), {**self._headers, **ids})
            return await self._batches.answer(request)
        except UNREADABLE as error:
            return refusal_of(error)

    def _of_pool(
        self, what: ResourcePath, name: str, http: web.BaseRequest
    ) -> web.Response | Refusal:
        pool = next((pool for pool in self._pools if pool.name == name), None)
        if pool is None:
            names = ", ".join(pool.name for pool in self._pools)
            return Refusal(
                Reason.NOT_FOUND, f"there is no pool {name[:80]!r}; the pools are {names}"
            )
        if what is ResourcePath.HEALTH:
            return self._health(pool, probe=True)
        if what is ResourcePath.DRAIN:
            self._drain(pool, http.query.get("engine_epoch"))
        elif self._pools.shutting_down:
            return refusals.shutting_down()
        else:
            pool.gate.resume()
            logger.info("pool %s: resumed by an operator", pool.name)
        return self._health(pool)

    def _status(self, name: str, requests: list[Request]) -> web.Response:
        """Returns the status of a request; of the first one if several clients chose its id."""
        document = request_status(name, requests[0] if requests else None, self._pools)
        answer = web.json_response(document)
        if document["measurement_type"] is not None:
            answer.headers[X_MEASUREMENT_TYPE] = document["measurement_type"]
        return answer

    def _health(self, pool: Pool, *, probe: bool = False) -> web.Response:
        """Returns the health of a pool. `probe`: with the status 503 unless the pool is ready."""
        health = self._pages.health(pool)
        return web.json_response(
            health,
            status=503 if probe and not health["ready"] else 200,
            headers={X_MEASUREMENT_TYPE: pool.profile.measurement_type.value},
        )

    def _drain(self, pool: Pool, engine_epoch: str | None) -> None:
        """Drains a pool for an operator or, with `engine_epoch`, because that engine stops.

        An empty epoch is that of an engine which has not reported yet. If another engine has
        replaced it since, the pool is not drained.
        """
        known = pool.ledger.epoch
        if engine_epoch is None:
            pool.gate.drain(OrderedBy.OPERATOR)
            logger.info("pool %s: drains, ordered by an operator", pool.name)
        elif engine_epoch == known:
            pool.gate.drain(OrderedBy.ENGINE_STOP)
            logger.info("pool %s: drains, its engine (epoch %r) is stopping", pool.name, known)
        else:
            text = "pool %s: not drained for the engine of epoch %.80r, which another has replaced"
            logger.warning(text, pool.name, engine_epoch)

    def _with_headers(self, answer: web.StreamResponse | Refusal) -> web.StreamResponse:
        """Adds the common headers, unless the response has been sent already."""
        if isinstance(answer, Refusal):
            answer = web.Response(
                status=answer.status,
                body=OPENAI.body(answer),
                content_type="application/json",
                headers=answer.headers(),
            )
        if not answer.prepared:
            for name, value in self._headers.items():
                answer.headers.setdefault(name, value)
        return answer


async def _check_browser(http: web.BaseRequest) -> Refusal | None:
    """Reads the body of a browser's request, if it is short, and checks it."""
    length = http.content_length
    body = await http.read() if length and length <= MAX_BODY_BYTES else b""
    return check_browser(http.method, http.headers, body)


def _no_request(name: str, headers: Mapping[str, str] | None) -> Refusal:
    owner = "" if headers is None else " of this API key"
    return Refusal(Reason.NOT_FOUND, f"no request {name[:80]}{owner} is in flight here")


def _wrong_method(path: str, methods: tuple[str, ...], http: web.BaseRequest) -> web.Response:
    """Returns the response to a request with a method that this path does not support."""
    method = ", ".join(methods).replace("GET", "GET, HEAD")
    text = f"{path} supports {method}, not {http.method[:20]}"
    refusal = Refusal(Reason.METHOD_NOT_ALLOWED, text)
    return web.json_response(body=OPENAI.body(refusal), status=405, headers={ALLOW: method})


# Every answer has the same fields: those that are not known, or not yet, are null.
_FIELDS: Final = (
    "id", "state", "route", "model", "class", "pool", "measurement_type", "coalesced", "age_ms",
    "position", "predicted_start_ms", "waits_for", "wait_ms", "first_byte_ms", "batch", "tokens",
)  # fmt: skip


def request_status(request_id: str, request: Request | None, pools: PoolRegistry) -> dict[str, Any]:
    """Returns the status of a request; None: it has ended.

    Its `state` is `arriving` (its body is read, a pool is chosen), `queued`, `running` or `ended`.
    """
    fields: dict[str, Any] = dict.fromkeys(_FIELDS)
    fields |= {"id": request_id, "state": "ended"}
    if request is None:
        return fields
    # A generation that several requests share waits and runs for all of them.
    served, own = request.attempt.generation or request, request.record
    record = served.record
    fields |= {
        "state": "arriving",
        "route": own.endpoint.path,
        "model": own.model or None,
        "class": record.service_class,
        "coalesced": own.coalesced,
        "age_ms": round(own.spent_ms()),
        "first_byte_ms": _ms(own.seconds_to(own.first_byte)),
    }
    if record.pool is None:
        return fields
    pool = pools[record.pool]
    fields |= {"pool": pool.name, "measurement_type": pool.profile.measurement_type.value}
    if served.attempt.waiting is not None:
        return fields | {"state": "queued", **_queued(served, pool)}
    if record.admitted is not None or served.attempt.response is not None:
        return fields | {"state": "running", **_running(request, served, pool)}
    return fields


def _queued(request: Request, pool: Pool) -> dict[str, Any]:
    position, start_ms = request.place(pool.connections.loop.time())
    first = pool.status().admission.waited_for
    ahead = f"{position} request{'' if position == 1 else 's'} before it"
    if not position:
        text = first
    elif first is None:
        text = ahead
    else:
        text = f"{ahead}; the first of them waits for {first}"
    return {"position": position, "predicted_start_ms": start_ms, "waits_for": text}


def _running(request: Request, served: Request, pool: Pool) -> dict[str, Any]:
    admitted = request.record.admitted or served.record.admitted
    response, known = served.attempt.response, pool.watcher.document or {}
    tokens = None
    if response is not None and response.status:
        tokens = response.generated_tokens(served.record)
    elif served.record.stream:
        tokens = 0
    return {
        "wait_ms": _ms(request.record.seconds_to(admitted)),
        "batch": known.get("running"),
        "tokens": tokens,
    }


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else max(0, round(1000 * seconds))

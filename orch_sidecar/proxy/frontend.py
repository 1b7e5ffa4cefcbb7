"""The first stage: identifies a request, authenticates it, reads it, and answers refusals.

Its `finally` ends what belongs to the whole request: the body's share of the budget, limits of
the key, the record and the trace.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final, Protocol

from aiohttp import web

from orch_sidecar.api.body_outline import LARGE_BYTES, Outline
from orch_sidecar.api.cache_salt import CacheSalts
from orch_sidecar.api.endpoints import Endpoint, no_engine_has, unknown, why_not
from orch_sidecar.api.generation import GenerationRequest
from orch_sidecar.api.headers import (
    CONTENT_TYPE,
    X_CORRELATION_ID,
    X_ORCH_LEASE,
    X_ORCH_REQUEST_ID,
    X_REQUEST_ID,
)
from orch_sidecar.api.options import read_options, service_class_of
from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.auth.authorizer import Authorizer, interactive_forbidden
from orch_sidecar.auth.keys import ApiKey, owner_of
from orch_sidecar.config.settings import SidecarSettings
from orch_sidecar.observability.metrics import Metrics
from orch_sidecar.observability.record import (
    CANCELLED,
    Outcome,
    RequestRecord,
    accept_id,
    new_ids,
)
from orch_sidecar.observability.tracing import Tracing
from orch_sidecar.pools.parent_leases import ParentLeases
from orch_sidecar.pools.registry import PoolRegistry
from orch_sidecar.proxy.client_writer import response_to
from orch_sidecar.proxy.in_flight import InFlight, RequestName
from orch_sidecar.proxy.request import Attempt, NotSent, Request, Result, Sent
from orch_sidecar.proxy.route import Route
from orch_sidecar.wire.client_connection import SENT, SENT_CLOSE
from orch_sidecar.wire.client_request import ClientRequest
from orch_sidecar.wire.forwarding import HeaderNames
from orch_sidecar.wire.request_body import BodyReader, headers_refusal
from vllm_plugin.contracts.profile import BULK, INTERACTIVE
from vllm_plugin.contracts.statement import STATEMENTS_PATH

# A method, and that of an endpoint which takes it, too.
_HEAD_AS_GET: Final = "HEAD", "GET"
_NO_HEADERS: Final[Mapping[str, str]] = {}

# What a request without admission takes of its key's budgets: only its body.
_NO_GENERATION: Final = GenerationRequest(0, False, "", 0, None)


# Returns the key of a request with this path, or why it is refused.
KeyCheck = Callable[[str, ClientRequest], ApiKey | Refusal | None]


class Stage(Protocol):
    """The next stage for requests that generate."""

    def handle(self, request: Request) -> Awaitable[Result]: ...


class Frontend:
    """Serves requests that go to an engine, and refuses those that go nowhere."""

    def __init__(
        self,
        coalesce: Stage,
        split: Stage,
        route: Route,
        bodies: BodyReader,
        settings: SidecarSettings,
        pools: PoolRegistry,
        authorizer: Authorizer,
        in_flight: InFlight,
        parent_leases: ParentLeases,
        metrics: Metrics,
        tracing: Tracing,
        common_headers: Mapping[str, str],
        salts: CacheSalts,
    ) -> None:
        """`coalesce`: for requests that one generation can answer. `split`: for several sequences.
        `route`: for all others. `common_headers`: of all our responses. `salts`: of the prefix
        cache."""
        self._coalesce = coalesce
        self._split = split
        self._route = route
        self._bodies = bodies
        self.configure(settings)
        self._pools = pools
        self._authorizer = authorizer
        self._in_flight = in_flight
        self._parent_leases = parent_leases
        self._metrics = metrics
        self._tracing = tracing
        self._exports_spans = tracing.spans is not None
        self._common_headers = common_headers
        self._salts = salts
        self._ids: list[str] = []  # each is used once
        # Set as each request ends, while the sidecar stops.
        self.request_ended: asyncio.Event | None = None

    @property
    def active(self) -> int:
        """Requests that are being served."""
        return len(self._in_flight)

    def configure(self, settings: SidecarSettings) -> None:
        """Applies these settings to new requests."""
        self.settings = settings
        self._max_json_depth = settings.max_json_depth
        self._bodies.configure(settings)

    async def handle(
        self,
        http: ClientRequest,
        path: str,
        endpoint: Endpoint | None,
        key_check: KeyCheck | None = None,
    ) -> web.StreamResponse:
        """Serves one request. `endpoint`: None if the path is unknown. `key_check`: replaces the
        check of a client's key."""
        names, method = http.names, http.method
        record, name = self._identify(http, endpoint or unknown(path), names)
        traced = names.traced or self._exports_spans
        given = http.headers if names.traced else _NO_HEADERS  # they are parsed when asked for
        trace = self._tracing.begin(record, given) if traced else None
        request: Request | None = None
        outcome: Outcome | Reason = CANCELLED
        status: int | None = None
        try:
            key = self._authorizer.check(path, http) if key_check is None else key_check(path, http)
            if (
                isinstance(key, Refusal)
                or name is None
                or endpoint is None
                or (endpoint.method != method and (method, endpoint.method) != _HEAD_AS_GET)
            ):
                refusal = self._refusal_of(http, path, endpoint, key, name)
            else:
                request = Request(http, endpoint, record, trace, Attempt(), names, key)
                request.strip_keys = self._authorizer.keys is not None
                self._in_flight.begin(name, request)
                served = self._serve(request, names)
                result = served if isinstance(served, NotSent) else await served
                if isinstance(result, Sent):
                    outcome = result.outcome
                    return SENT if result.keep_alive else SENT_CLOSE
                refusal = request.cancelled or result.refusal
                if (begun := request.queue_response) is not None and begun.refuse(refusal):
                    outcome = refusal.reason
                    return SENT if begun.keep_alive else SENT_CLOSE
            outcome, status = refusal.reason, refusal.status
            return response_to(http, record, refusal, endpoint, self._common_headers)
        except asyncio.CancelledError:
            if request is not None:
                outcome = request.attempt.outcome_of_left
            raise
        except Exception:
            outcome, status = Reason.INTERNAL_ERROR, 500
            _reset_begun(request)
            raise  # ClientConnection logs it and answers
        finally:
            if request is not None and name is not None:
                self._give_back(request, name)
            if self.request_ended is not None:
                self.request_ended.set()
            record.end(outcome, status)
            self._metrics.request_ended(record)
            if trace is not None:
                trace.ended()

    def _identify(
        self, http: ClientRequest, endpoint: Endpoint, names: HeaderNames
    ) -> tuple[RequestRecord, RequestName | None]:
        """Returns the record of a request, with its ids, and the name under which it is in flight:
        None if its client chose an unusable one."""
        if not self._ids:
            self._ids = new_ids()
        own_id = request_id = correlation_id = self._ids.pop()
        name: RequestName | None = own_id
        if names.has_options:
            headers = http.headers
            if (given := headers.get(X_ORCH_REQUEST_ID)) is not None:
                name = self._in_flight.name_for(given, headers)
                own_id = own_id if name is None else given
            request_id = accept_id(headers.get(X_REQUEST_ID)) or own_id
            correlation_id = accept_id(headers.get(X_CORRELATION_ID)) or request_id
        now, now_ns = time.monotonic_ns(), time.time_ns()
        record = RequestRecord(
            endpoint, own_id, request_id, correlation_id, http.method, now, now_ns
        )
        return record, name

    def _refusal_of(
        self,
        http: ClientRequest,
        path: str,
        endpoint: Endpoint | None,
        key: ApiKey | Refusal | None,
        name: RequestName | None,
    ) -> Refusal:
        """Returns why a request is refused: for its key, its path, its id or its method."""
        if isinstance(key, Refusal):
            return key
        if endpoint is None:
            return Refusal(Reason.NOT_FOUND, why_not(path))
        if name is None:
            return self._in_flight.unusable_name(http.headers[X_ORCH_REQUEST_ID])
        text = f"{path} takes {endpoint.method}, not {http.method[:20]}"
        return Refusal(Reason.METHOD_NOT_ALLOWED, text)

    def _give_back(self, request: Request, name: RequestName) -> None:
        """Gives back what an ended request had of this sidecar."""
        self._bodies.release(request)
        if request.parent_lease is not None:
            self._parent_leases.leave(request.parent_lease)
        self._in_flight.end(name)
        if request.key_sequences:
            self._leave(request)

    def _serve(self, request: Request, names: HeaderNames) -> Awaitable[Result] | NotSent:
        """Reads a request, checks its limits, and passes it on: without a step in between, if its
        body arrived with its head."""
        endpoint = request.endpoint
        unusual = names.has_options or not request.http.is_json
        if unusual and (refusal := self._check_headers(request)) is not None:
            return NotSent(refusal)
        if names.asks_for_options and (refusal := self._read_options(request)) is not None:
            return NotSent(refusal)
        body = self._bodies.read_arrived(request) if endpoint.method == "POST" else b""
        if isinstance(body, Refusal):
            return NotSent(body)
        if body is None or len(body) > LARGE_BYTES or endpoint.form or not endpoint.admitted:
            return self._serve_slowly(request, body)
        request.body = body
        stage = self._stage_of(request, None)
        return stage if isinstance(stage, NotSent) else stage.handle(request)

    async def _serve_slowly(self, request: Request, body: bytes | Refusal | None) -> Result:
        """Does the same for a body that has yet to be read, or takes long to parse."""
        endpoint, outline = request.endpoint, None
        if body is None:
            outline = Outline() if endpoint.admitted and not endpoint.form else None
            body = await self._bodies.read_rest(request, outline)
        body = request.cancelled or body
        if isinstance(body, Refusal):
            return NotSent(body)
        request.body, body = body, None  # a salt may replace it: keep no second reference
        if not endpoint.admitted:
            return await self._serve_unadmitted(request)
        wanted: GenerationRequest | Refusal | None = None
        if endpoint.form:
            content_type = request.http.headers.get(CONTENT_TYPE, "")
            wanted = endpoint.read_form(request.body, content_type, self._pools.together.ctx_max)
        elif len(request.body) > LARGE_BYTES:
            ctx_max = self._pools.together.ctx_max
            read = partial(endpoint.read_large, self._max_json_depth, ctx_max)
            wanted = await self._bodies.read_large(request.body, read, outline)
            outline = None  # for a body of numbers it is as large as the body
        stage = self._stage_of(request, request.cancelled or wanted)
        return stage if isinstance(stage, NotSent) else await stage.handle(request)

    def _stage_of(
        self, request: Request, wanted: GenerationRequest | Refusal | None
    ) -> Stage | NotSent:
        """Returns the stage for a request that takes slots, and prepares the request: its class,
        the limits of its key, the salt of the prefix cache. `wanted`: what its body asks for; None:
        the body is JSON and not large, and is read here."""
        if request.endpoint.workload in (unserved := self._pools.together.unserved):
            return NotSent(Refusal(Reason.NOT_FOUND, no_engine_has(request.endpoint, unserved)))
        if wanted is None:
            coalesce = self._pools.coalescing and not request.options.no_coalesce
            ctx_max = self._pools.together.ctx_max
            wanted = request.endpoint.read(request.body, self._max_json_depth, ctx_max, coalesce)
        if isinstance(wanted, Refusal):
            return NotSent(wanted)
        record, key, options = request.record, request.key, request.options
        if wanted.joint and self._pools.reads_pairs(wanted.model):
            wanted.cost -= wanted.joint
        record.model = wanted.model
        record.cost = wanted.cost
        record.stream = wanted.stream
        record.max_tokens = wanted.max_tokens
        wanted.body_bytes = len(request.body)
        if not options.empty or wanted.service_tier or wanted.priority:
            wanted.options = options
            wanted.service_class = service_class_of(options, wanted.service_tier, wanted.priority)
        request.call = wanted
        if key is not None and (refusal := self._apply_key(key, request, wanted)) is not None:
            return NotSent(refusal)
        if wanted.cost > 1:
            return self._split
        return self._route if wanted.coalescing_key is None else self._coalesce

    def _read_options(self, request: Request) -> Refusal | None:
        """Reads what the client's header fields ask for."""
        http = request.http
        options = read_options(http.headers)
        if isinstance(options, Refusal):
            return options
        if options.flow and not self._authorizer.may_name_flows(request.key, http.remote or ""):
            options = replace(options, flow=b"")
        request.options = options
        request.record.scenario, request.record.run = options.scenario, options.run
        return None

    def _apply_key(self, key: ApiKey, request: Request, call: GenerationRequest) -> Refusal | None:
        """Applies the settings of a request's key: its class, its limits, the salt of its prefix
        cache."""
        request.record.key = key.name
        if key.bulk:
            if call.options.service_class is INTERACTIVE:
                return interactive_forbidden(request.http.headers)
            if call.service_class is INTERACTIVE:
                call.service_class = BULK
        over = self._enter(request, key, call)
        if over is not None:
            return over
        call.key, call.weight = key.digest, key.weight
        # Of several tiers the one salts that knows the clients.
        if not (key.sidecar or request.endpoint.form):
            salt = self._salts.of(key.name, key.share_cache)
            has_own = call.cache_salt is not None
            salted = salt.into(request.body, has_own=has_own)
            if isinstance(salted, Refusal):
                return salted
            call.cache_owner, (request.body, request.salt) = salt.owner, salted
        return None

    async def _serve_unadmitted(self, request: Request) -> Result:
        """Passes on a request that takes no slots."""
        endpoint, key = request.endpoint, request.key
        if endpoint.stored:
            target = request.http.rel_url.raw_path_qs  # has the id, and where events continue
            request.line = f"{endpoint.method} {target} HTTP/1.1".encode(errors="surrogateescape")
        over = None if key is None else self._enter_unadmitted(request, key)
        return await self._route.handle_unadmitted(request) if over is None else NotSent(over)

    def _enter_unadmitted(self, request: Request, key: ApiKey) -> Refusal | None:
        if request.endpoint.path == STATEMENTS_PATH:
            return self._authorizer.ask_statement(key, time.monotonic())
        return self._enter(request, key, _NO_GENERATION) if request.endpoint.budgeted else None

    def _enter(self, request: Request, key: ApiKey, wanted: GenerationRequest) -> Refusal | None:
        """Counts a request against the limits and the budgets of its key."""
        authorizer, now = self._authorizer, time.monotonic()
        over = authorizer.enter(key, wanted.cost, now)
        if over is not None:
            return over
        request.key_sequences = wanted.cost
        if not key.has_budget:
            return None
        reserved = authorizer.reserve(key, wanted, len(request.body), now)
        request.record.rate_limits = authorizer.budget_fields(key, now)
        if isinstance(reserved, Refusal):
            return reserved
        request.reserved = reserved
        return None

    def _leave(self, request: Request) -> None:
        """Ends what `_enter` counted."""
        key, record = request.key, request.record
        assert key is not None  # the key whose limits it counts for
        if request.reserved is not None:
            spent = record if record.shared or request.attempt.response is not None else None
            self._authorizer.settle(key, request.reserved, spent, len(request.body))
        self._authorizer.leave(key, request.key_sequences, time.monotonic())

    def _check_headers(self, request: Request) -> Refusal | None:
        """Takes the lease of a parent sidecar; leases of other clients are ignored. Returns why the
        request is refused: the lease is spent, or the body is not of a supported kind."""
        headers, endpoint, key = request.http.headers, request.endpoint, request.key
        lease = headers.get(X_ORCH_LEASE) if endpoint.admitted else None
        if lease is not None and self._authorizer.permits(key, parent=True):
            request.parent_lease = self._parent_leases.enter(lease, owner_of(key))
            if request.parent_lease is None:
                text = f"the {X_ORCH_LEASE} is spent: it has been used or revoked"
                return Refusal(Reason.LEASE_SPENT, text)
        return headers_refusal(headers, json=endpoint.json) if endpoint.method == "POST" else None


def _reset_begun(request: Request | None) -> None:
    """Resets the connection of a request whose response has begun while it was queued."""
    if request is not None and request.queue_response is not None:
        request.queue_response.interrupt()

"""Serves the engine's state over HTTP, and takes revocations of leases and claims of slots.

`GET /v1/capabilities` returns the state once; the others are those of `lease_protocol`. What names
an instance or a lease is for sidecars only. A heartbeat contains what grew, or became (not) ready,
since the last one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any, Final, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from vllm_plugin.allowlist import NAME
from vllm_plugin.api_server.admin_calls import AdminCallMiddleware, set_within, watch_readiness
from vllm_plugin.api_server.lease_middleware import (
    FROM_SIDECAR,
    LeaseMiddleware,
    SidecarMiddleware,
    refusal,
)
from vllm_plugin.api_server.statements_endpoint import StatementsEndpoint
from vllm_plugin.contracts.kv_cache import KvCache
from vllm_plugin.contracts.lease_protocol import (
    API_VERSION,
    CHANGE,
    CHANGES_EVERY_MS,
    CLAIMS_PATH,
    ENDED,
    HEARTBEAT,
    HEARTBEAT_EVERY_S,
    OFFER,
    RECORDINGS,
    STATE,
    changes_every_s,
    event,
    incompatible,
    parse_changes_every_s,
    parse_claim,
    short_lease,
    timestamp,
    workloads_of,
)
from vllm_plugin.contracts.senders import (
    NOT_A_SIDECAR,
    SIDECAR_KEY_VARIABLE,
    EngineKeys,
    SidecarKeys,
    Unleased,
    objection,
)
from vllm_plugin.contracts.slot_claims import Subscriber
from vllm_plugin.evidence.chains import Evidence
from vllm_plugin.state.engine_facts import Conditions
from vllm_plugin.state.engine_state import EngineState, State

# Added to a wait for a moment, so that it is past: clocks and timers are not exact.
_TICK_SLACK_S: Final = 0.001

# An open stream delays the engine's shutdown: it checks this often whether it must end.
CHECK_EVERY_S: Final = 0.5
# What an engine core had sent before its end is on its way to clients by then.
_FLUSH_S: Final = 1.0

_KEY: Final = "VLLM_API_KEY"
_LEASES: Final = "/v1/capabilities/leases/"


T = TypeVar("T")


async def in_turn(*iterators: AsyncIterator[T]) -> AsyncGenerator[tuple[int, T], None]:
    """Yields what vLLM's `merge_async_iterators` does, from one iterator after the other. One of
    vLLM's gives its request to the engine when it is first asked."""
    for number, iterator in enumerate(iterators):
        async for each in iterator:
            yield number, each


def run_clips_in_turn() -> None:
    """Has vLLM run the clips of a recording one after the other, so that it takes one slot.

    vLLM cuts a recording into clips, 30 s each for most models. How many is known only once the
    audio is decoded, long after the sidecar has admitted the request. The clips of a streamed
    answer run one after the other already, those of any other all at once.
    """
    import vllm.entrypoints.speech_to_text.base.serving as serving

    serving.merge_async_iterators = in_turn


class LeaseShorteningFilter(logging.Filter):
    """Shortens leases in the access log, whose args are client, method, path, version, status, and
    drops claims: beside other sidecars there may be one for each request."""

    def filter(self, record: logging.LogRecord) -> bool:
        match record.args:
            case (client, method, str(path), *rest) if path.startswith(_LEASES):
                record.args = (client, method, _LEASES + short_lease(path[len(_LEASES) :]), *rest)
            case (_, _, str(path), _, 204) if path.startswith(CLAIMS_PATH):
                return False
        return True


def _observed(name: str, data: State) -> bytes:
    return event(name, data | {"observed_at": timestamp(time.time())})


def _changed(now: State, before: State) -> State:
    return {name: value for name, value in now.items() if before[name] != value}


def _from_stranger(request: Request, instance: str | None) -> JSONResponse | None:
    """Returns the refusal of a request that names an instance and comes from no sidecar."""
    if instance is None or request.scope[FROM_SIDECAR]:
        return None
    return refusal(403, "not_a_sidecar", NOT_A_SIDECAR)


class CapabilitiesEndpoint:
    """The endpoint plugin. Inert while there is no engine state (no profile selected)."""

    name = NAME
    required_tasks = None

    def __init__(
        self,
        engine_state_of: Callable[[], EngineState | None],
        kv_cache_of: Callable[[Any], Awaitable[KvCache]],
        conditions_of_workers: Callable[[Any, Conditions], Awaitable[Conditions]],
        warm_up: Callable[[Any], Awaitable[None]],
        evidence_of: Callable[[], Evidence | None] = lambda: None,
    ) -> None:
        self._engine_state_of = engine_state_of
        self._kv_cache_of = kv_cache_of
        self._conditions_of_workers = conditions_of_workers
        self._warm_up = warm_up
        self._evidence_of = evidence_of
        self._engine: Any = None
        self._app: Any = None
        self._ask = asyncio.Event()
        self._watchers: tuple[asyncio.Task[None], ...] = ()
        self._models: Any = None  # vLLM's registry of served models
        self._keys = EngineKeys()

    def attach_router(self, app: Any) -> None:
        """Adds middlewares and routes. vLLM calls this before `init_state`."""
        engine_state = self._engine_state_of()
        if engine_state is None:
            return
        self._app = app
        paths = {getattr(route, "path", "") for route in app.routes}
        engine_state.workloads = workloads_of(paths)
        if not RECORDINGS.isdisjoint(engine_state.workloads):
            run_clips_in_turn()
        app.add_middleware(
            LeaseMiddleware,
            engine_state=engine_state,
            is_alive=self._is_alive,
            refresh=self._refresh_models,
            keys=lambda: self._keys,
            sidecars_have_keys=SIDECAR_KEY_VARIABLE in os.environ,
        )
        app.add_middleware(SidecarMiddleware, keys=SidecarKeys(os.environ))
        app.add_middleware(
            AdminCallMiddleware, engine_state=engine_state, paths=paths, ask=self._ask.set
        )
        app.add_api_route("/v1/capabilities", self._capabilities, methods=["GET"])
        app.add_api_route("/v1/capabilities/stream", self._stream, methods=["GET"])
        app.add_api_route(f"{_LEASES}{{lease}}", self._revoke, methods=["DELETE"])
        app.add_api_route(f"{CLAIMS_PATH}{{instance}}", self._claim, methods=["PUT"])
        if (evidence := self._evidence_of()) is not None:
            StatementsEndpoint(evidence).attach(app)
        logging.getLogger("uvicorn.access").addFilter(LeaseShorteningFilter())

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:
        """Reads the engine's KV cache and what its workers run, and warms it up; watches its
        readiness from now on. vLLM awaits this before it accepts connections.

        Raises ValueError if the server's address contradicts `unleased: refuse`.
        """
        self._engine = engine_client
        engine_state = self._engine_state_of()
        if engine_state is None:
            return
        if args is not None and engine_state.facts.unleased is Unleased.REFUSE:
            self._keys = EngineKeys(filter(None, (*(args.api_key or ()), os.environ.get(_KEY))))
            if found := objection(args.host, args.uds, self._keys):
                raise ValueError(found)
        self._models = state.openai_serving_models
        self._refresh_models()
        if engine_client is not None:
            engine_state.kv_cache = await self._kv_cache_of(engine_client)
            engine_state.conditions = await self._conditions_of_workers(
                engine_client, engine_state.conditions
            )
            if "completion" in engine_state.workloads:  # not a pooling model, which samples nothing
                await self._warm_up(engine_client)
            self._watchers = (
                asyncio.create_task(
                    watch_readiness(
                        engine_state, engine_client.is_sleeping, self._is_alive, self._ask
                    )
                ),
                asyncio.create_task(self._end_with_core()),
            )

    @property
    def _engine_state(self) -> EngineState:
        engine_state = self._engine_state_of()
        assert engine_state is not None  # the routes exist only with a state
        return engine_state

    def _refresh_models(self) -> None:
        """Sets the names under which requests are served now. The configuration has only the
        first; adapters come and go by calls, and by requests for which a resolver finds one."""
        if self._models is not None:
            aliases = (base.name for base in self._models.base_model_paths)
            self._engine_state.set_models(tuple(aliases), tuple(self._models.lora_requests))

    async def _capabilities(self, request: Request) -> Response:
        instance = request.query_params.get("instance")
        if (refused := _from_stranger(request, instance)) is not None:
            return refused
        self._refresh_models()
        entry = self._engine_state.document(instance, time.time())
        entry |= {"observed_at": timestamp(time.time()), "age_ms": 0}
        return JSONResponse({"api_version": API_VERSION, "engines": [entry]})

    async def _revoke(self, lease: str, request: Request) -> Response:
        if (refused := _from_stranger(request, lease)) is not None:
            return refused
        try:
            ended = self._engine_state.leases.revoke(lease)
        except ValueError as error:
            return refusal(400, "invalid_request_error", str(error))
        return JSONResponse({"ended": ended})

    async def _claim(self, instance: str, request: Request) -> Response:
        if (refused := _from_stranger(request, instance)) is not None:
            return refused
        try:
            call = parse_claim(await request.body(), self._engine_state.facts.slots_total)
        except ValueError as error:
            return refusal(400, "invalid_request_error", str(error))
        if not self._engine_state.claim(instance, call):
            message = (
                f"instance {instance[:40]!r} must read the state stream, where slots are offered"
            )
            return refusal(409, "no_stream", message)
        return Response(status_code=204)

    async def _stream(self, request: Request) -> Response:
        instance = request.query_params.get("instance")
        if (refused := _from_stranger(request, instance)) is not None:
            return refused
        version = request.query_params.get("api_version", "")
        message = incompatible(version)
        if message is not None:
            return refusal(409, "api_version", f"the sidecar's {message}")
        try:
            asked_s = parse_changes_every_s(request.query_params.get(CHANGES_EVERY_MS, ""))
        except ValueError as error:
            return refusal(400, "invalid_request_error", str(error))
        return StreamingResponse(
            # A sidecar that names no version knows neither claims nor offers.
            self._events(instance, asked_s, claims=bool(version)),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store"},
        )

    def _is_alive(self) -> bool:
        if self._engine is not None and (self._engine.errored or not self._engine.is_running):
            return False
        server = self._server
        return not (server is not None and server.should_exit)

    @property
    def _server(self) -> Any:
        """Uvicorn's server; None before it starts."""
        return getattr(self._app.state, "server", None)

    async def _end_with_core(self) -> None:
        """Ends what is left of the responses when vLLM has stopped its engine core: nothing more
        comes of them, and uvicorn would wait for their clients, who wait for it, for ever."""
        while self._is_alive():  # noqa: ASYNC110 (vLLM sets no event)
            await asyncio.sleep(CHECK_EVERY_S)
        await asyncio.sleep(_FLUSH_S)
        if (server := self._server) is not None:
            server.force_exit = True

    async def _events(
        self, instance: str | None, asked_s: float, *, claims: bool
    ) -> AsyncIterator[bytes]:
        """`asked_s`: the least time between two changes that the reader asks for."""
        engine_state = self._engine_state
        readiness = engine_state.readiness
        woken = asyncio.Event()
        subscriber = Subscriber(instance, woken.set, claims=claims)
        engine_state.subscribe(subscriber)
        try:
            # What the subscriber was sent last.
            changes, not_ready = engine_state.look(subscriber), readiness.not_ready
            heartbeat = engine_state.heartbeat_fields(time.time())
            leases = {"leases": sorted(engine_state.leases.of(instance))}
            first = engine_state.document(instance, time.time()) | heartbeat | leases
            yield _observed(STATE, first)
            changes_at = heartbeat_at = time.monotonic()
            batch_seen = engine_state.speed.batch_seen
            while self._is_alive() and not subscriber.replaced:
                self._refresh_models()
                engine_state.tick()
                woken.clear()
                if subscriber.ended:
                    ended, subscriber.ended = subscriber.ended, []
                    yield event(ENDED, {"leases": ended})
                now = time.monotonic()
                if (
                    now - heartbeat_at >= HEARTBEAT_EVERY_S
                    or not_ready != readiness.not_ready
                    or batch_seen != engine_state.speed.batch_seen
                ):
                    not_ready, batch_seen = readiness.not_ready, engine_state.speed.batch_seen
                    before, heartbeat = heartbeat, engine_state.heartbeat_fields(time.time())
                    heartbeat_at = now
                    # A claim that was set and ended between two events is no change, and its
                    # sidecar would wait for an offer.
                    yield _observed(
                        HEARTBEAT, _changed(heartbeat, before) | engine_state.claim_fields(instance)
                    )
                every_s = changes_every_s(engine_state.claims.sidecars, engine_state.step_s)
                every_s = max(every_s, asked_s)
                offers, subscriber.offers = subscriber.offers, []
                # An offer does not wait, and is preceded by the slots that its reader may use.
                if subscriber.changed and (offers or now - changes_at >= every_s):
                    before, changes, changes_at = changes, engine_state.look(subscriber), now
                    if changed := _changed(changes, before):
                        yield _observed(CHANGE, changed)
                for offer in offers:
                    yield event(OFFER, {"cost": offer.slots, "number": offer.number})
                wait_s = changes_at + every_s - now if subscriber.changed else CHECK_EVERY_S
                wait_s = min(wait_s, heartbeat_at + HEARTBEAT_EVERY_S - now)
                if (ticks_at := engine_state.ticks_at()) is not None:
                    wait_s = min(wait_s, max(0.0, ticks_at - time.time()) + _TICK_SLACK_S)
                await set_within(woken, wait_s)
        finally:
            engine_state.unsubscribe(subscriber)

"""Lets identical requests share one generation.

A request whose generation can answer others does not go to the engine itself: a task is started for
the generation, and this request subscribes to it, as do later requests for the same. So whichever
client leaves, the others get their response; the generation is cancelled when the last one has
left.

Only requests of one tenant share a generation. Any field that reaches the engine, or a proxy in
between, may affect the response or identify a client. So all fields distinguish tenants, except
those known to do neither; API keys do even if they are not forwarded. The only cost of an unknown
field is a generation that is not shared.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from functools import lru_cache
from itertools import compress
from typing import Final, NamedTuple

from orch_sidecar.api.generation import GenerationRequest
from orch_sidecar.api.headers import (
    ACCEPT,
    ACCEPT_ENCODING,
    CACHE_CONTROL,
    CLASS_ALIASES,
    CONNECTION,
    TPOT_SLOS,
    TTFT_SLOS,
    raw,
)
from orch_sidecar.api.refusal import INTERNAL_ERROR, Reason, Refusal
from orch_sidecar.coalescing.broadcast import Broadcast
from orch_sidecar.observability.metrics import Metrics
from orch_sidecar.observability.record import Outcome, RequestRecord
from orch_sidecar.pools.registry import PoolRegistry
from orch_sidecar.proxy.client_writer import ClientWriter
from orch_sidecar.proxy.queue_events import Watchers
from orch_sidecar.proxy.request import Attempt, NotSent, Request, Result, Retry, Sent
from orch_sidecar.proxy.route import Route, no_pool
from orch_sidecar.wire.forwarding import NOT_FORWARDED, OPTION_PREFIX, Fields
from vllm_plugin.contracts.profile import IDLE, MeasurementType

logger = logging.getLogger("orch.sidecar")

_NO_POOL: Final = frozenset[str]()

# Refusals that concern the generation's place in the queue, not the clients that joined later.
_QUEUE_REASONS: Final = frozenset(
    {
        Reason.QUEUE_TIMEOUT,
        Reason.DEADLINE_MISS,
        Reason.SLO_MISS,
        Reason.QUEUE_FULL_DROP_LRU,
    }
)

# Of the response, for late and for slow clients: about 10 000 events of a stream.
BUFFER_BYTES: Final = 4 << 20

Tenant = tuple[tuple[bytes, bytes], ...]

# They describe the client's software, connection, proxies or trace. Not `Content-Type`: vLLM
# rejects a body with a wrong one. Of X-Forwarded-* only these: others identify users.
_NEUTRAL: Final = frozenset(
    {
        b"user-agent", b"accept-charset", b"accept-language", b"pragma", b"priority", b"dnt",
        b"idempotency-key",
        b"via", b"forwarded", b"x-real-ip", b"x-forwarded-for", b"x-forwarded-host",
        b"x-forwarded-port", b"x-forwarded-proto",
        b"baggage", b"b3", b"x-b3-traceid", b"x-b3-spanid", b"x-b3-parentspanid", b"x-b3-sampled",
        b"x-amzn-trace-id", b"x-cloud-trace-context",
        *map(
            raw,
            (ACCEPT, ACCEPT_ENCODING, CACHE_CONTROL, *CLASS_ALIASES, *TTFT_SLOS, *TPOT_SLOS),
        ),
    }
)  # fmt: skip
# It may list fields that are then not forwarded.
_CONNECTION: Final = raw(CONNECTION)
# Version, platform and retries of OpenAI's clients.
_NEUTRAL_PREFIX: Final = b"x-stainless-"


class Coalesce:
    """The stage that owns the shared generations."""

    def __init__(
        self,
        route: Route,
        pools: PoolRegistry,
        watchers: Watchers,
        metrics: Metrics,
    ) -> None:
        self._route = route
        self._pools = pools
        self._watchers = watchers
        self._metrics = metrics
        self._by_key: dict[GenerationKey, SharedGeneration] = {}
        self._running: set[SharedGeneration] = set()
        self._loop = asyncio.get_running_loop()

    async def close(self) -> None:
        """Cancels the generations that are left; their clients have gone."""
        tasks = [shared.task for shared in self._running if shared.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def handle(self, request: Request) -> Result:
        """Serves a request with a coalescing key by a shared generation, where it may share one."""
        record, call = request.record, request.call
        assert call is not None
        key = key_of(request, call)
        while True:
            if request.options.queue_events and record.stream:
                writer: ClientWriter = self._watchers.response_of(request)
            else:
                writer = ClientWriter(request.http, record)
            shared = self._joinable(key)
            starts = shared is None or not shared.accepts(call)
            if shared is None or starts:
                excluded = self._excluded(call, record)
                # A generation that only this request cannot join stays available to others.
                if excluded is None or (shared is not None and call.options.limits_wait):
                    return await self._route.handle(request)
                shared = self._start(key, request, call, excluded)
            result = await self._subscribe(shared, request, writer, coalesced=not starts)
            if isinstance(result, Sent) or request.cancelled is not None:
                return result
            if shared.retry_alone:
                return await self._serve_alone(shared, request, result)
            again = None if starts else self._call_in_time(shared, record, call, result.refusal)
            if again is None:
                return result
            request.call = call = again
            request.begin_attempt()

    def _joinable(self, key: GenerationKey) -> SharedGeneration | None:
        """Returns the generation of that key, if another request can still join it."""
        shared = self._by_key.get(key)
        if shared is None or not shared.broadcast.is_joinable:
            return None
        name = shared.request.record.pool
        away = self._pools.draining if name is None else self._pools[name].unavailable is not None
        return None if away else shared

    def _excluded(self, call: GenerationRequest, record: RequestRecord) -> frozenset[str] | None:
        """Returns the pools that do not coalesce. None: the request goes to one of these."""
        if self._pools.one is not None:
            return _NO_POOL
        excluded = self._pools.not_coalescing
        if excluded:
            chosen = self._pools.choose(call, record.spent_ms())
            if not isinstance(chosen, Refusal) and chosen.pool.group in excluded:
                return None
        return excluded

    def _start(
        self,
        key: GenerationKey,
        request: Request,
        call: GenerationRequest,
        excluded: frozenset[str],
    ) -> SharedGeneration:
        shared = SharedGeneration(key, request, call, excluded)
        shared.task = self._loop.create_task(self._generate(shared))
        # Not in its `finally`: a task that is cancelled before its first step does nothing, and
        # the trace of the request that started it waits for this one.
        if (trace := shared.request.trace) is not None:
            shared.task.add_done_callback(lambda _: trace.ended())
        self._by_key[key] = shared
        self._running.add(shared)
        return shared

    async def _generate(self, shared: SharedGeneration) -> None:
        """Runs a shared generation to its end."""
        record, broadcast = shared.request.record, shared.broadcast
        outcome: Outcome | Reason = Outcome.CANCELLED
        status: int | None = None
        try:
            result = await self._route.handle(shared.request)
            if isinstance(result, Sent):
                outcome = result.outcome
            else:
                outcome = result.refusal.reason
                shared.retry_alone = result.retry is not Retry.NO and bool(shared.request.excluded)
                broadcast.cut_short(result.refusal)
        except Exception:
            logger.exception("a shared generation failed")
            outcome, status = Reason.INTERNAL_ERROR, 500
            broadcast.cut_short(INTERNAL_ERROR)
        finally:
            self._forget(shared)
            record.end(outcome, status)
            if record.fanout > 1:
                logger.info(
                    "request %s: fanout=%d, so many requests shared its generation",
                    record.request_id,
                    record.fanout,
                )
            self._metrics.generation_ended(record)

    def _forget(self, shared: SharedGeneration) -> None:
        self._running.discard(shared)
        if self._by_key.get(shared.key) is shared:
            del self._by_key[shared.key]

    async def _subscribe(
        self, shared: SharedGeneration, request: Request, writer: ClientWriter, *, coalesced: bool
    ) -> Result:
        """Gives the client its response, for as long as it stays."""
        record, broadcast = request.record, shared.broadcast
        record.shared, record.coalesced = True, coalesced
        if coalesced:
            if request.trace is not None and shared.request.trace is not None:
                request.trace.joined(shared.request.trace)
            # Equal: frees its own copy.
            request.body, request.salt = shared.request.body, shared.request.salt
        if self._pools.draining:
            writer.keep_alive = False
        attempt = request.attempt
        attempt.generation = shared.request
        subscriber = broadcast.join(writer)
        try:
            if request.queue_response is not None:
                self._watchers.watch(request, shared.request)
            subscriber.start()
            await subscriber.done
            failure = subscriber.failure
            if failure is None or writer.started:
                outcome = broadcast.outcome if failure is None else failure.reason
                return Sent(writer.keep_alive, outcome)
            return NotSent(failure)
        except asyncio.CancelledError:
            if subscriber.finish_early():  # its client left with all of it
                attempt.response = shared.request.attempt.response
            raise
        finally:
            attempt.failure = subscriber.failure
            subscriber.close()
            if broadcast.abandoned:
                # Both: a task that is cancelled before its first step does nothing.
                self._forget(shared)
                assert shared.task is not None
                shared.task.cancel()
            record.copy_generation(shared.request.record)
            if not coalesced:
                record.fanout = shared.request.record.fanout

    async def _serve_alone(
        self, shared: SharedGeneration, request: Request, failed: NotSent
    ) -> Result:
        """Serves a request by a generation of its own, at the pools that do not coalesce."""
        request.begin_attempt()
        groups = frozenset(pool.group for pool in self._pools)
        request.excluded = groups - shared.request.excluded
        request.loss = shared.request.loss
        result = await self._route.handle(request)
        if isinstance(result, Sent):
            return result
        return no_pool(request, failed.refusal, result.refusal)

    def _call_in_time(
        self,
        shared: SharedGeneration,
        record: RequestRecord,
        call: GenerationRequest,
        refusal: Refusal,
    ) -> GenerationRequest | None:
        """Returns the call to try again, if the refusal is not its own and there is time left.

        It waits no longer than it would have waited alone, counted from its arrival.
        """
        name = shared.request.record.pool
        if refusal.reason not in _QUEUE_REASONS or name is None:
            return None
        rules = self._pools[name].admission.rules
        limit_ms = 1000 * rules.of(shared.call.service_class).max_wait_s
        if record.spent_ms() >= limit_ms:
            return None
        options = call.options
        own_ms = limit_ms if options.max_wait_ms is None else min(options.max_wait_ms, limit_ms)
        return replace(call, options=replace(options, max_wait_ms=own_ms))


class GenerationKey(NamedTuple):
    """Equal for requests that may share a generation."""

    digest: bytes
    tenant: Tenant
    pool: str | None
    prefers: bool
    measurement_type: MeasurementType | None


class SharedGeneration:
    """A generation that several requests share.

    `request`: as it goes to the engine, with a record and a trace of its own. `retry_alone`: it
    failed, but a pool from which it was excluded may still serve each request alone.
    """

    __slots__ = ("broadcast", "call", "key", "request", "retry_alone", "task")

    def __init__(
        self,
        key: GenerationKey,
        request: Request,
        call: GenerationRequest,
        excluded: frozenset[str],
    ) -> None:
        """`request`: the one that starts it. `excluded`: pools it must not be sent to."""
        record, options = request.record.of_generation(), request.options
        if options.queue_events:  # its clients watch it, each in a response of its own
            options = replace(options, queue_events=False)
        self.key = key
        self.broadcast = Broadcast(record, buffer_bytes=BUFFER_BYTES)
        self.call = call
        trace = None if request.trace is None else request.trace.shared(record)
        mine = Request(
            request.http, request.endpoint, record, trace, Attempt(), sink=self.broadcast
        )
        mine.strip_keys, mine.body, mine.salt = request.strip_keys, request.body, request.salt
        mine.options, mine.call, mine.excluded = options, call, excluded
        mine.parent_lease = request.parent_lease
        self.request = mine
        self.retry_alone = False
        self.task: asyncio.Task[None] | None = None

    def accepts(self, call: GenerationRequest) -> bool:
        """Whether joining serves a request no worse than a generation of its own."""
        outranks = call.service_class.rank < self.call.service_class.rank
        if outranks and self.call.service_class is IDLE:
            return False  # it may be cut at any time
        if self.broadcast.is_admitted:
            return True
        return not (outranks or call.options.limits_wait or self.call.options.limits_wait)


def key_of(request: Request, call: GenerationRequest) -> GenerationKey:
    """Returns the key of a request that another's generation can answer."""
    options, digest = call.options, call.coalescing_key
    assert digest is not None
    return GenerationKey(
        digest,
        tenant(request.http.raw_headers),
        options.pool,
        options.prefers,
        options.measurement_type,
    )


def tenant(fields: Fields) -> Tenant:
    """Returns the fields that distinguish tenants, sorted: equal for requests of one tenant.

    They include the client's keys: do not keep them longer than the request, nor log them.
    """
    given = tuple(fields)
    names, relevant = _relevant(tuple([name for name, _ in given]))
    return tuple(sorted(compress(zip(names, [value for _, value in given], strict=True), relevant)))


# Clients repeat the same few lists of names.
@lru_cache(maxsize=256)
def _relevant(names: tuple[bytes, ...]) -> tuple[tuple[bytes, ...], tuple[bool, ...]]:
    """Returns the names in lower case, and for each whether it distinguishes tenants."""
    lower = tuple(name.lower() for name in names)
    return lower, tuple(
        (name not in NOT_FORWARDED or name == _CONNECTION)
        and name not in _NEUTRAL
        and not name.startswith((OPTION_PREFIX, _NEUTRAL_PREFIX))
        for name in lower
    )

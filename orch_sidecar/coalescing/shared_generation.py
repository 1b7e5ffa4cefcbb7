"""Describes a generation that several requests share: its key, and which requests may join it.

Only requests of one tenant share one. Any field that reaches the engine, or a proxy in between, may
affect the response or identify a client. So all fields distinguish tenants, except those known to
do neither; API keys do even if they are not forwarded. The only cost of an unknown field is a
generation that is not shared.
"""

from __future__ import annotations

import asyncio
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
from orch_sidecar.api.options import RequestOptions
from orch_sidecar.coalescing.broadcast import Broadcast
from orch_sidecar.proxy.request import Attempt, Request
from orch_sidecar.wire.forwarding import NOT_FORWARDED, OPTION_PREFIX, Fields
from vllm_plugin.contracts.profile import IDLE, MeasurementType

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
        return not (outranks or limits_wait(call.options) or limits_wait(self.call.options))


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


def limits_wait(options: RequestOptions) -> bool:
    """Whether the client limits the wait or the time per token, which the generation's owner cannot
    know."""
    return (
        options.deadline_ms is not None
        or options.max_wait_ms is not None
        or options.tpot_ms is not None
        or options.do_not_queue
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

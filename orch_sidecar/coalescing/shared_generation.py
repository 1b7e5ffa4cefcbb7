"""Describes a generation that several requests share: its key, and which requests may join it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final, NamedTuple

from orch_sidecar.api.generation import GenerationRequest
from orch_sidecar.api.options import RequestOptions
from orch_sidecar.coalescing.broadcast import Broadcast
from orch_sidecar.coalescing.tenant import Tenant, tenant
from orch_sidecar.proxy.request import Attempt, Request
from vllm_plugin.contracts.profile import IDLE, MeasurementType

# Of the response, for late and for slow clients: about 10 000 events of a stream.
BUFFER_BYTES: Final = 4 << 20


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

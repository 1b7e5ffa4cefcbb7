"""A decode that requests share: what makes them one, who may join it, what it tells them.

Knows no event loop but for the task in which somebody runs it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from orch_sidecar.api.options import RequestOptions
from orch_sidecar.coalescing.broadcast import Broadcast
from orch_sidecar.coalescing.tenant import Tenant, tenant
from orch_sidecar.observability.record import RequestRecord
from orch_sidecar.pools.pool import Wanted
from orch_sidecar.proxy.request import Request
from vllm_plugin.profile import MeasurementType, ServiceClass

# Of an answer, for late and for slow clients: some 10 000 events of a stream.
BUFFER_BYTES: Final = 4 << 20


class Key(NamedTuple):
    """Equal for requests that may share a decode."""

    digest: bytes
    tenant: Tenant
    pool: str | None
    prefers: bool
    measurement_type: MeasurementType | None


class SharedGeneration:
    """A decode that requests share.

    `request`: as it goes to the engine, with an exchange and a trace of its own. `elsewhere`: it
    came to nothing, and a pool that is not for it might do better.
    """

    __slots__ = ("elsewhere", "fanout", "key", "request", "task", "wanted")

    def __init__(
        self,
        key: Key,
        request: Request,
        wanted: Wanted,
        barred: frozenset[str],
        on_abandoned: Callable[[SharedGeneration], None],
    ) -> None:
        """`request`: that of the client for which it is begun. `barred`: pools not to go to."""
        record = request.record.of_decode()
        self.fanout = Broadcast(
            record.request_id,
            lambda: on_abandoned(self),
            stream=record.stream,
            buffer_bytes=BUFFER_BYTES,
        )
        self.key = key
        self.request = Request(
            request.http,
            request.route,
            record,
            request.trace.shared(record),
            keyless=request.keyless,
            body=request.body,
            options=request.options,
            presence=request.presence,
            fanout=self.fanout,
            barred=barred,
        )
        self.wanted = wanted
        self.elsewhere = False
        self.task: asyncio.Task[None] | None = None

    def takes(self, wanted: Wanted) -> bool:
        """Whether a request for the same is served by it no worse than by a decode of its own."""
        if self.fanout.admitted:
            return True
        waits_in_bulk = self.wanted.service_class is ServiceClass.BULK
        better = wanted.service_class is ServiceClass.INTERACTIVE and waits_in_bulk
        return not (better or limited(wanted.options) or limited(self.wanted.options))

    def tell(self, record: RequestRecord) -> None:
        """Tells the exchange of a client what is known of the decode."""
        decode = self.request.record
        record.pool, record.labels = decode.pool, decode.labels
        record.placement, record.service_class = decode.placement, decode.service_class
        record.lease = decode.lease
        record.input_tokens, record.output_tokens = decode.input_tokens, decode.output_tokens
        if decode.queued is not None and record.admitted in (None, decode.admitted):
            record.queued = max(decode.queued, record.arrived)
            record.queue_position = decode.queue_position  # at most, for who came later
            predicted_ms = decode.predicted_start_ms
            if predicted_ms is not None:
                predicted_ms = max(0, predicted_ms - (record.queued - decode.queued) // 10**6)
            record.predicted_start_ms = predicted_ms


def key_of(request: Request, wanted: Wanted) -> Key:
    """Of a request that one decode can answer for others, too."""
    given, digest = wanted.options, wanted.demand.coalescing_key
    assert digest is not None
    told = tenant(request.http.raw_headers)
    return Key(digest, told, given.pool, given.prefers, given.measurement_type)


def limited(options: RequestOptions) -> bool:
    """Whether it sets limits to a wait that is not its own."""
    return (
        options.deadline_ms is not None or options.max_wait_ms is not None or options.do_not_queue
    )

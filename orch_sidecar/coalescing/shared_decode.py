"""A decode that requests share: what makes them one, who may join it, what it tells them.

Knows no event loop but for the task in which somebody runs it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from orch_sidecar.api.options import Directives
from orch_sidecar.coalescing.broadcast import Fanout
from orch_sidecar.coalescing.tenant import Tenant, tenant
from orch_sidecar.observability.record import Exchange
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


class Shared:
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
        on_abandoned: Callable[[Shared], None],
    ) -> None:
        """`request`: that of the client for which it is begun. `barred`: pools not to go to."""
        exchange = request.exchange.of_decode()
        self.fanout = Fanout(
            exchange.request_id,
            lambda: on_abandoned(self),
            stream=exchange.stream,
            buffer_bytes=BUFFER_BYTES,
        )
        self.key = key
        self.request = Request(
            request.http,
            request.route,
            exchange,
            request.trace.shared(exchange),
            keyless=request.keyless,
            body=request.body,
            directives=request.directives,
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
        return not (better or limited(wanted.directives) or limited(self.wanted.directives))

    def tell(self, exchange: Exchange) -> None:
        """Tells the exchange of a client what is known of the decode."""
        decode = self.request.exchange
        exchange.pool, exchange.labels = decode.pool, decode.labels
        exchange.placement, exchange.service_class = decode.placement, decode.service_class
        exchange.lease = decode.lease
        exchange.input_tokens, exchange.output_tokens = decode.input_tokens, decode.output_tokens
        if decode.queued is not None and exchange.admitted in (None, decode.admitted):
            exchange.queued = max(decode.queued, exchange.arrived)
            exchange.queue_position = decode.queue_position  # at most, for who came later
            predicted_ms = decode.predicted_start_ms
            if predicted_ms is not None:
                predicted_ms = max(0, predicted_ms - (exchange.queued - decode.queued) // 10**6)
            exchange.predicted_start_ms = predicted_ms


def key_of(request: Request, wanted: Wanted) -> Key:
    """Of a request that one decode can answer for others, too."""
    given, digest = wanted.directives, wanted.demand.coalescing
    assert digest is not None
    told = tenant(request.http.raw_headers)
    return Key(digest, told, given.pool, given.prefers, given.measurement_type)


def limited(directives: Directives) -> bool:
    """Whether it sets limits to a wait that is not its own."""
    return (
        directives.deadline_ms is not None
        or directives.max_wait_ms is not None
        or directives.do_not_queue
    )

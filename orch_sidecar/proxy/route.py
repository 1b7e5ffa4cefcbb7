"""Which pool a request goes to, and which one next where the first could not serve it.

An engine that is lost with a request may have been lost because of it: such a request goes to one
other pool, and never to a third. Knows pools and attempts; what a request asks for was read before.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Final

from aiohttp import web

from orch_sidecar.admission.types import AdmissionRequest
from orch_sidecar.api import errors
from orch_sidecar.api.body_outline import LARGE_BYTES
from orch_sidecar.api.options import NO_OPTIONS
from orch_sidecar.api.refusal import Refusal
from orch_sidecar.observability.record import RequestRecord
from orch_sidecar.pools.pool import Pool, Wanted
from orch_sidecar.pools.rebalancer import MOVED
from orch_sidecar.pools.registry import PoolRegistry
from orch_sidecar.pools.routing import Why
from orch_sidecar.proxy.admit import Attempts, Failed, TurnedAway
from orch_sidecar.proxy.request import Request
from orch_sidecar.wire import request_body as reading
from orch_sidecar.wire.request_body import BodyReader

_ONLY: Final = Why.ONLY  # bound once: looking up a member of an enum is slow


class Router:
    """Has requests served by the pools."""

    def __init__(self, pools: PoolRegistry, attempts: Attempts, bodies: BodyReader) -> None:
        self._pools = pools
        self._attempts = attempts
        self._bodies = bodies

    def generate(
        self, request: Request, wanted: Wanted
    ) -> Coroutine[Any, Any, web.StreamResponse | Failed]:
        """Serves what takes slots."""
        pool = self._pools.one
        if pool is None or wanted.options is not NO_OPTIONS:
            return self._place(request, wanted)
        ask = pool.ask(wanted, 0.0)
        _note(request.record, pool, ask, _ONLY)
        return self._attempts.run(request, pool, ask)

    async def _place(self, request: Request, wanted: Wanted) -> web.StreamResponse | Failed:
        """Places it, and anew as long as it fails where another pool may serve it.

        Once an engine that had got it is lost, one other pool gets it and never a third: it may be
        what kills engines. The answer then says that, whatever else is in the way: a refusal
        after which one comes back would have it sent again by a sidecar above.
        """
        record, pools = request.record, self._pools
        tried = set(request.barred)
        chosen = pools.choose(wanted, record.spent_ms(), tried or None)
        if isinstance(chosen, Refusal):
            return Failed(chosen)
        refusal: Refusal | None = None
        while True:
            pool, ask, why = chosen
            _note(record, pool, ask, why)
            outcome = await self._attempts.run(request, pool, ask)
            if not isinstance(outcome, Failed):
                return outcome
            if request.cancelled is not None:
                return Failed(request.cancelled)
            if outcome.sent:
                lost_before, request.lost = request.lost, outcome.refusal
                # A sidecar above, too, may ask one other pool: this one then asks none.
                if not outcome.elsewhere or lost_before or request.presence:
                    return Failed(outcome.refusal)
            if outcome.refusal is MOVED:
                request.moved = True
            elif refusal is None or errors.FORMS[refusal.reason].status != 429:
                refusal = outcome.refusal  # that a better pool was busy stays the answer
            if refusal is not None and (not outcome.elsewhere or pools.one is not None):
                return Failed(request.lost or refusal)
            if outcome.tried:
                tried.add(pool.name)
            again = pools.choose(wanted, record.spent_ms(), tried)
            if isinstance(again, Refusal):
                if refusal is None or errors.FORMS[again.reason].status == 429:
                    refusal = again  # a pool that works is busy: so it is worth coming back
                return Failed(request.lost or refusal, elsewhere=True)
            chosen = again
            request.trace.retried(outcome.refusal.reason)
            record.begin_again()

    async def pass_on(self, request: Request) -> web.StreamResponse | Refusal:
        """Serves what takes no slot."""
        model = ""
        if self._pools.one is None and request.route.method == "POST":
            if len(request.body) <= LARGE_BYTES:
                model = reading.model_of(request.body)
            else:
                found = await self._bodies.outlined(request.body, reading.model_of)
                model = found if isinstance(found, str) else ""
        pool = self._pools.choose_unadmitted(model, request.options)
        if isinstance(pool, Refusal):
            return pool
        request.record.pool, request.record.labels = pool.name, pool.labels
        outcome = await self._attempts.relay(request, pool, None)
        assert not isinstance(outcome, TurnedAway)  # nothing is held back without a lease
        return outcome.refusal if isinstance(outcome, Failed) else outcome


def _note(record: RequestRecord, pool: Pool, ask: AdmissionRequest, why: Why) -> None:
    """What is known of how it is served, from here on."""
    record.pool = pool.name
    record.service_class = ask.service_class
    record.labels = pool.labels_of(ask.service_class)
    record.placement = why

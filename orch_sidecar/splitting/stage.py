"""Divides requests for several sequences into parts if they do not fit at once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Iterator
from dataclasses import replace
from typing import Any, Final

from orch_sidecar.api.generation import GenerationRequest
from orch_sidecar.api.json_body import InvalidBody
from orch_sidecar.api.options import RequestOptions
from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.observability.metrics import Metrics
from orch_sidecar.pools.pool import Pool
from orch_sidecar.pools.registry import PoolRegistry
from orch_sidecar.proxy.request import Request
from orch_sidecar.proxy.result import NotSent, Result
from orch_sidecar.proxy.route import Route
from orch_sidecar.splitting.divided import PARTS_PER_TURN, DividedRequest
from orch_sidecar.splitting.division import MAX_PARTS, Part, divide
from orch_sidecar.wire.request_body import BodyReader
from orch_sidecar.wire.stall_watchdog import StallWatchdog

# Of one API key, or of all clients without one: parts take no places in the queues, so that these
# do not bound them.
MAX_PARTS_OF_CLIENT: Final = 4 * MAX_PARTS
# A part of a request takes one of so many parts of the slots, at most: others get theirs between
# the parts, and those of a part come back when the longest of its sequences ends.
PARTS_OF_SLOTS: Final = 8
_TOO_MANY: Final = Refusal(
    Reason.QUEUE_FULL,
    f"{MAX_PARTS_OF_CLIENT} parts of requests of this API key run or wait here, and that is the "
    "most: retry later",
    retry_after_ms=1000,
)


class Split:
    """Divides requests, and passes the others on."""

    def __init__(
        self,
        route: Route,
        pools: PoolRegistry,
        bodies: BodyReader,
        watchdog: StallWatchdog,
        metrics: Metrics,
    ) -> None:
        """`bodies`: what parts repeat of a request's body is reserved of their budget."""
        self._route = route
        self._pools = pools
        self._bodies = bodies
        self._watchdog = watchdog
        self._metrics = metrics
        self._parts: Counter[str | None] = Counter()  # that run or wait, by the name of the key

    def handle(self, request: Request) -> Coroutine[Any, Any, Result]:
        """Serves a request for several sequences."""
        call, division = request.call, request.endpoint.division
        assert call is not None
        if division is None or request.parent_lease is not None or call.options.do_not_queue:
            return self._route.handle(request)
        found = self._division(call)
        if found is None or found[0] >= call.cost:
            return self._route.handle(request)
        size, options = found
        try:
            parts = divide(request.body, division, call, size)
        except InvalidBody as invalid:
            return _refused(NotSent(invalid.refusal))
        if parts is None:
            return self._route.handle(request)
        call = replace(call, options=options)
        return self._run(request, parts, DividedRequest(request, call, division, self._watchdog))

    def _division(self, call: GenerationRequest) -> tuple[int, RequestOptions] | None:
        """Returns the sequences of a part, and the options of all, of a request that is to run in
        parts: they go to pools of one measurement type, that of the pool that would be best for
        them. None: it is not, because it can start as a whole, or because no profile says so."""
        options, pools = call.options, self._pools.capable(call)
        dividing = [pool for pool in pools if pool.admission.rules.split]
        cost = call.cost
        if not dividing or any(pool.fits(call.service_class, cost) for pool in pools):
            return None

        def goodness(pool: Pool) -> tuple[bool, bool, int]:
            named = options.pool in (pool.name, pool.group)
            return pool.unavailable is None, named, pool.ledger.slots_total

        best = max(dividing, key=goodness)
        measurement_type = best.profile.measurement_type
        if any(pool.profile.measurement_type is not measurement_type for pool in pools):
            options = replace(options, measurement_type=measurement_type, labelled=True)
        return max(1, best.ledger.slots_total // PARTS_OF_SLOTS), options

    async def _run(
        self, request: Request, parts: Iterator[Part], divided: DividedRequest
    ) -> Result:
        owner = None if request.key is None else request.key.name
        number = 0
        try:
            for number, part in enumerate(parts, 1):
                self._parts[owner] += 1
                refusal = self._bodies.reserve(request, len(part.body)) or request.cancelled
                if self._parts[owner] > MAX_PARTS_OF_CLIENT:
                    refusal = _TOO_MANY
                if refusal is not None:
                    return NotSent(refusal)
                divided.add(part)
                if not number % PARTS_PER_TURN:
                    await asyncio.sleep(0)
            return await divided.run(self._route, self._metrics)
        finally:
            self._parts[owner] -= number
            if not self._parts[owner]:
                del self._parts[owner]


async def _refused(result: NotSent) -> Result:
    return result

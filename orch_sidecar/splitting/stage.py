"""The stage of requests for several sequences: those that do not fit at once run in parts."""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

from orch_sidecar.api.json_body import InvalidBody
from orch_sidecar.observability.metrics import Metrics
from orch_sidecar.pools.registry import PoolRegistry
from orch_sidecar.proxy.request import Request
from orch_sidecar.proxy.result import NotSent, Result
from orch_sidecar.proxy.route import Route
from orch_sidecar.proxy.stall_watchdog import StallWatchdog
from orch_sidecar.splitting.divided import DividedRequest
from orch_sidecar.splitting.division import divide


class Split:
    """Divides requests, and passes the others on."""

    def __init__(
        self, route: Route, pools: PoolRegistry, watchdog: StallWatchdog, metrics: Metrics
    ) -> None:
        self._route = route
        self._pools = pools
        self._watchdog = watchdog
        self._metrics = metrics

    def handle(self, request: Request) -> Coroutine[Any, Any, Result]:
        """Serves a request for several sequences."""
        call, division = request.call, request.endpoint.division
        assert call is not None
        if division is None or request.parent_lease is not None or call.options.do_not_queue:
            return self._route.handle(request)
        found = self._pools.parts(call)
        if found is None or found[0] >= call.generation.cost:
            return self._route.handle(request)
        size, options = found
        try:
            parts = divide(request.body, division, call.generation, size)
        except InvalidBody as invalid:
            return _refused(NotSent(invalid.refusal))
        if parts is None:
            return self._route.handle(request)
        call = replace(call, options=options)
        divided = DividedRequest(request, call, division, parts, self._watchdog)
        return divided.run(self._route, self._metrics)


async def _refused(result: NotSent) -> Result:
    return result

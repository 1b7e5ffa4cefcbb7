"""Records requests of files and batches, which the sidecar answers itself, as all others are
recorded: for metrics, the log of requests and traces.

Probes, pages and the calls of other sidecars have no record: they come all the time.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from aiohttp import web

from orch_sidecar.api.endpoints import Endpoint, ResourcePath, match_resource
from orch_sidecar.api.headers import X_CORRELATION_ID, X_ORCH_REQUEST_ID, X_REQUEST_ID
from orch_sidecar.api.refusal import BY_REASON, Reason, Refusal
from orch_sidecar.auth.keys import ApiKey
from orch_sidecar.observability.metrics import Metrics
from orch_sidecar.observability.record import (
    CANCELLED,
    OK,
    Outcome,
    RequestRecord,
    accept_id,
)
from orch_sidecar.observability.tracing import Tracing

# Their paths, with their methods; they are served where ORCH_BATCHES is set.
BATCHES: Final[Mapping[ResourcePath, tuple[str, ...]]] = {
    ResourcePath.FILES: ("GET", "POST"),
    ResourcePath.FILE: ("GET", "DELETE"),
    ResourcePath.FILE_CONTENT: ("GET",),
    ResourcePath.BATCHES: ("GET", "POST"),
    ResourcePath.BATCH: ("GET",),
    ResourcePath.BATCH_CANCEL: ("POST",),
}

_ENDPOINTS: Final = {each: Endpoint(each.value, "GET") for each in BATCHES}

Answer = web.StreamResponse | Refusal


def endpoint_of(path: str) -> Endpoint | None:
    """Returns the endpoint under which a request for this path is recorded; None: it is not."""
    found = match_resource(path)
    return None if found is None else _ENDPOINTS.get(found[0])


class Recorder:
    """Makes the records."""

    def __init__(self, metrics: Metrics, tracing: Tracing) -> None:
        self._metrics = metrics
        self._tracing = tracing

    async def answered(
        self,
        http: web.BaseRequest,
        what: ResourcePath,
        key: ApiKey | None,
        answer: Callable[[Mapping[str, str]], Awaitable[Answer]],
    ) -> Answer:
        """Records a request while `answer` answers it. That gets the header fields with the ids of
        the request: a response that it sends itself has to have them."""
        headers, own_id = http.headers, os.urandom(16).hex()
        request_id = accept_id(headers.get(X_REQUEST_ID)) or own_id
        correlation_id = accept_id(headers.get(X_CORRELATION_ID)) or request_id
        now, now_ns = time.monotonic_ns(), time.time_ns()
        record = RequestRecord(
            _ENDPOINTS[what], own_id, request_id, correlation_id, http.method, now, now_ns
        )
        record.key = None if key is None else key.name
        ids: dict[str, str] = {
            X_REQUEST_ID: request_id,
            X_CORRELATION_ID: correlation_id,
            X_ORCH_REQUEST_ID: own_id,
        }
        trace = self._tracing.begin(record, headers)
        outcome: Outcome | Reason = CANCELLED
        status: int | None = None
        try:
            answered = await answer(ids)
            if isinstance(answered, Refusal):
                outcome, status = answered.reason, answered.status
            else:
                # The only other error that is answered here.
                refused = answered.status == BY_REASON[Reason.METHOD_NOT_ALLOWED].status
                outcome = Reason.METHOD_NOT_ALLOWED if refused else OK
                status = answered.status
                if not answered.prepared:
                    answered.headers.update(ids)
            return answered
        except (asyncio.CancelledError, ConnectionError):
            raise  # the client is gone
        except Exception:
            outcome, status = Reason.INTERNAL_ERROR, 500
            raise
        finally:
            record.end(outcome, status)
            self._metrics.request_ended(record)
            if trace is not None:
                trace.ended()

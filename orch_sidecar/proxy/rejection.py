"""A refusal as an answer to a client: what its reason means for headers and the connection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from aiohttp import web

from orch_sidecar.api import errors
from orch_sidecar.api.endpoints import Endpoint
from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.observability.record import RequestRecord

# After these the rest of the request may still be on its way, or the client should go elsewhere.
_CLOSING: Final = frozenset(
    {Reason.DRAINING, Reason.BODY_TOO_LARGE, Reason.BODY_BUDGET_FULL, Reason.BODY_TIMEOUT}
)


def answer(
    http: web.BaseRequest,
    record: RequestRecord,
    refusal: Refusal,
    route: Endpoint | None,
    common_headers: Mapping[str, str],
) -> web.Response:
    """The answer to a request that is not served; its exchange is told. `route`: None for none.

    `common_headers`: on every one of our answers.
    """
    record.outcome = refusal.reason
    record.status = errors.FORMS[refusal.reason].status
    headers = {
        **common_headers,
        "X-Request-Id": record.request_id,
        "X-Correlation-Id": record.correlation_id,
        "X-Orch-Request-Id": record.id,
        "Server-Timing": record.server_timing(),
        **errors.headers(refusal),
    }
    if record.labels is not None:
        headers["X-Measurement-Type"] = str(record.labels["measurement_type"])
    if refusal.queue_position is not None:
        headers["X-Orch-Queue-Position"] = str(refusal.queue_position)
    if refusal.predicted_start_ms is not None:
        headers["X-Orch-Predicted-Start-Ms"] = str(refusal.predicted_start_ms)
    response = web.Response(
        status=record.status,
        body=record.endpoint.error_format.body(refusal),
        content_type="application/json",
        headers=headers,
    )
    if refusal.reason is Reason.METHOD_NOT_ALLOWED and route is not None:
        response.headers["Allow"] = route.method
    if refusal.reason in _CLOSING or _unread(http, refusal):
        response.force_close()
    return response


def _unread(http: web.BaseRequest, refusal: Refusal) -> bool:
    """Whether a stranger still sends a body: nobody is going to read it."""
    return refusal.reason is Reason.UNAUTHORIZED and not http.content.is_eof()

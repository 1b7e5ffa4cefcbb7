"""Turns a refusal into the response to a client: status, headers, fate of the connection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from aiohttp import web

from orch_sidecar.api.endpoints import Endpoint
from orch_sidecar.api.headers import (
    ALLOW,
    SERVER_TIMING,
    X_CORRELATION_ID,
    X_MEASUREMENT_TYPE,
    X_ORCH_PREDICTED_START_MS,
    X_ORCH_QUEUE_POSITION,
    X_ORCH_REQUEST_ID,
    X_REQUEST_ID,
)
from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.observability.record import RequestRecord
from orch_sidecar.wire.client_request import ClientRequest

# The rest of the request may still be on its way, or the client should connect elsewhere.
_CLOSING: Final = frozenset(
    {Reason.DRAINING, Reason.BODY_TOO_LARGE, Reason.BODY_BUDGET_FULL, Reason.BODY_TIMEOUT}
)
# Such a client may still be sending a body, which is not going to be read.
_UNREAD: Final = frozenset({Reason.UNAUTHORIZED, Reason.FORBIDDEN})


def response_to(
    http: ClientRequest,
    record: RequestRecord,
    refusal: Refusal,
    endpoint: Endpoint | None,
    common_headers: Mapping[str, str],
) -> web.Response:
    """Returns the response to a request that is refused.

    `endpoint`: None if the path is unknown. `common_headers`: of every response of ours.
    """
    headers: dict[str, str] = {
        **common_headers,
        X_REQUEST_ID: record.request_id,
        X_CORRELATION_ID: record.correlation_id,
        X_ORCH_REQUEST_ID: record.id,
        SERVER_TIMING: record.server_timing().decode(),
        **dict(record.rate_limits),
        **refusal.headers(),
    }
    if record.labels is not None:
        headers[X_MEASUREMENT_TYPE] = str(record.labels["measurement_type"])
    if refusal.queue_position is not None:
        headers[X_ORCH_QUEUE_POSITION] = str(refusal.queue_position)
    if refusal.predicted_start_ms is not None:
        headers[X_ORCH_PREDICTED_START_MS] = str(refusal.predicted_start_ms)
    response = web.Response(
        status=refusal.status,
        body=record.endpoint.error_format.body(refusal),
        content_type="application/json",
        headers=headers,
    )
    if refusal.reason is Reason.METHOD_NOT_ALLOWED and endpoint is not None:
        response.headers[ALLOW] = "GET, HEAD" if endpoint.method == "GET" else endpoint.method
    if refusal.reason in _CLOSING or (refusal.reason in _UNREAD and not http.complete):
        response.force_close()
    return response

"""Requests with ids of the client's own, and cancelling them."""

from __future__ import annotations

import os

from tests.integration.client import Response
from tests.integration.running import Running


def new_id() -> str:
    """An id that no request has had."""
    return os.urandom(16).hex()


def named(request_id: str) -> tuple[str, str]:
    """The header with which a client names its request."""
    return "X-Orch-Request-Id", request_id


async def cancel(running: Running, request_id: str, *headers: tuple[str, str]) -> Response:
    """Cancels from a connection of its own."""
    client = await running.client()
    response = await client.request("POST", f"/v1/requests/{request_id}/cancel", None, headers)
    if response.status == 204:
        assert response.body == b""
    return response


def assert_cancelled(response: Response) -> None:
    """It was over before any of its answer had gone out."""
    assert (response.status, response.error["code"]) == (499, "cancelled")
    assert response.error["policy_label"] == "cancelled_by_request"
    assert response.error["retriable"] is False
    assert response.header("retry-after") is None

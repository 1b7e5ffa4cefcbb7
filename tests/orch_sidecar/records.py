"""Records of requests, as tests need them."""

from __future__ import annotations

import time
from typing import Any

from orch_sidecar.observability.record import RequestIdentity, RequestRecord
from tests.orch_sidecar import apis


def identity_of(**more: Any) -> RequestIdentity:
    """The identity of a chat request that arrives now, with other values where they are given."""
    values: dict[str, Any] = {
        "endpoint": apis.CHAT,
        "id": "own",
        "request_id": "request",
        "correlation_id": "correlation",
        "method": "POST",
        "arrived": time.monotonic_ns(),
        "arrived_ns": time.time_ns(),
    }
    return RequestIdentity(**(values | more))


def record_of(**more: Any) -> RequestRecord:
    """The record of a chat request; keyword arguments are of its identity or of the record."""
    of_identity = {name: more.pop(name) for name in RequestIdentity.__slots__ if name in more}
    return RequestRecord(identity_of(**of_identity), **more)

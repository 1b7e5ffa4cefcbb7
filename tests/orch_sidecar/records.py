"""Records of requests, as tests need them."""

from __future__ import annotations

import time
from typing import Any, TypeVar

from orch_sidecar.observability.record import RequestIdentity, RequestRecord
from tests.orch_sidecar import apis

T = TypeVar("T")


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
    return with_values(RequestRecord(identity_of(**of_identity)), more)


def with_values(made: T, values: dict[str, Any]) -> T:
    """The same object, with these values of attributes that it has."""
    for name, value in values.items():
        assert hasattr(made, name), name
        setattr(made, name, value)
    return made

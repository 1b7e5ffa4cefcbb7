"""Records of requests, as tests need them."""

from __future__ import annotations

import time
from typing import Any, TypeVar

from orch_sidecar.observability.record import RequestRecord
from tests.orch_sidecar import apis

T = TypeVar("T")


def record_of(**more: Any) -> RequestRecord:
    """The record of a chat request that arrives now, with other values where they are given."""
    values: dict[str, Any] = {
        "endpoint": apis.CHAT,
        "id": "own",
        "request_id": "request",
        "correlation_id": "correlation",
        "method": "POST",
        "arrived": time.monotonic_ns(),
        "arrived_ns": time.time_ns(),
    }
    for name in values:
        values[name] = more.pop(name, values[name])
    return with_values(RequestRecord(**values), more)


def with_values(made: T, values: dict[str, Any]) -> T:
    """The same object, with these values of attributes that it has."""
    for name, value in values.items():
        assert hasattr(made, name), name
        setattr(made, name, value)
    return made

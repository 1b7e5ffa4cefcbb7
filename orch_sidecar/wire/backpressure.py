"""Protocol between this sidecar and its upstreams: child sidecars, and engines.

Pure. This sidecar decides who is queued, so a child is asked not to queue: what it cannot admit
immediately it rejects, and the request returns to the head of the queue here. So does one that
the plugin of a stopping engine rejects; all other responses of an engine are for the client.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from orch_sidecar.api.options import RequestOptions
from orch_sidecar.wire.http1 import Head
from vllm_plugin.profile import ServiceClass

# Returns after how many milliseconds to retry, if a response with one of these statuses is a
# temporary rejection; else None.
RejectionReader = Callable[[Head, bytes], int | None]
REJECTION_STATUSES: Final = frozenset({429, 503})
# Error envelopes are far shorter; a longer body is a response for the client.
MOST_BYTES: Final = 65_536

# The error type of `vllm_plugin.endpoint`.
ENGINE_GONE: Final = "engine_gone"

DEFAULT_RETRY_MS: Final = 1000
# Dispatching pauses no longer than that, whatever the child asked for: its state is pushed, so
# free slots are known here long before.
LONGEST_PAUSE_MS: Final = 100
_LONGEST_RETRY_MS: Final = 3_600_000
# Refusals that a later retry cannot change.
_TOO_LATE: Final = frozenset({"ADMISSION_DEADLINE", "ADMISSION_SLO"})


def fields(service_class: ServiceClass, options: RequestOptions, spent_ms: float) -> bytes:
    """Returns header lines with the options of a request for the child, after `spent_ms` here."""
    lines = [f"x-orch-class: {service_class}", "x-orch-do-not-queue: true"]
    # Coalescing happens here, where tenants are known by their own keys.
    lines.append("x-orch-no-coalesce: true")
    if options.deadline_ms is not None:
        left_ms = max(1.0, options.deadline_ms - spent_ms)  # a deadline is above 0
        lines.append(f"x-orch-deadline-ms: {int(left_ms)}")
    if options.max_wait_ms is not None:
        lines.append(f"x-orch-max-wait-ms: {int(max(0.0, options.max_wait_ms - spent_ms))}")
    return "".join(f"{line}\r\n" for line in lines).encode()


def by_engine(head: Head, body: bytes) -> int | None:
    """Returns when to retry, if this response of an engine rejects the request; else None."""
    error = _error(body)
    return DEFAULT_RETRY_MS if error.get("type") == ENGINE_GONE else None


def by_sidecar(head: Head, body: bytes) -> int | None:
    """Returns when to retry, if this response of a child rejects the request for now; else None."""
    error = _error(body)
    if error.get("code") in _TOO_LATE:
        return None
    values = dict(head.fields)
    for name, factor in ((b"retry-after-ms", 1), (b"retry-after", 1000)):
        value = values.get(name, b"")
        if value.isdigit() and len(value) <= 12:
            return min(int(value) * factor, _LONGEST_RETRY_MS)
    if b"retry-after" in values:
        return DEFAULT_RETRY_MS  # a date: a retry is welcome
    if error.get("retriable") is not True:
        return None
    asked = error.get("retry_after_ms")
    return asked if type(asked) is int and 0 <= asked <= _LONGEST_RETRY_MS else DEFAULT_RETRY_MS


def _error(body: bytes) -> dict[str, Any]:
    try:
        error = json.loads(body)["error"]
    except (ValueError, RecursionError, KeyError, TypeError):
        return {}
    return error if isinstance(error, dict) else {}

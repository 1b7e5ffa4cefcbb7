"""Reads rejections by upstreams (child sidecars and engines), and writes options for children.

Pure. This sidecar decides which requests are queued, so a child is asked not to queue: it rejects
what it cannot admit immediately, and the request returns to the head of the queue here. So does a
request that the plugin rejects because the engine stops, or has no slot for it; all other responses
of an engine are for the client.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from orch_sidecar.api.headers import (
    RETRY_AFTER,
    RETRY_AFTER_MS,
    X_ORCH_CLASS,
    X_ORCH_DEADLINE_MS,
    X_ORCH_DO_NOT_QUEUE,
    X_ORCH_MAX_WAIT_MS,
    X_ORCH_NO_COALESCE,
    field_line,
    raw,
)
from orch_sidecar.api.options import RequestOptions
from orch_sidecar.wire.http1 import Head
from vllm_plugin.contracts.lease_protocol import ENGINE_GONE, NO_ADAPTER, NO_SLOT
from vllm_plugin.contracts.profile import ServiceClass

# A temporary rejection: after how many milliseconds to retry, or what the engine lacks (NO_SLOT,
# NO_ADAPTER: it reports when it has some; ABSENT: it does not store what the request refers to, but
# another engine may).
Rejection = int | str
ABSENT: Final = "absent"
# Returns the rejection in a response with one of these statuses; None: it is for the client.
RejectionReader = Callable[[Head, bytes], Rejection | None]
REJECTION_STATUSES: Final = frozenset({404, 429, 503})
# Error envelopes are far shorter; a longer body is a response for the client.
MAX_REJECTION_BYTES: Final = 65_536

_CLASS: Final = field_line(X_ORCH_CLASS, "%b")
_DEADLINE_MS: Final = field_line(X_ORCH_DEADLINE_MS, "%d")
_MAX_WAIT_MS: Final = field_line(X_ORCH_MAX_WAIT_MS, "%d")
# Coalescing happens here, where tenants are known by their own keys.
_CHILD_OPTIONS: Final = field_line(X_ORCH_DO_NOT_QUEUE, "true") + field_line(
    X_ORCH_NO_COALESCE, "true"
)
_RETRY_AFTER: Final = raw(RETRY_AFTER)
_RETRY_AFTER_MS: Final = raw(RETRY_AFTER_MS)


DEFAULT_RETRY_MS: Final = 1000
# The longest pause of dispatch, whatever the child asked for: its state is pushed, so free slots
# are known here long before.
LONGEST_PAUSE_MS: Final = 100
_LONGEST_RETRY_MS: Final = 3_600_000
# Refusals that a later retry cannot change.
_FINAL_CODES: Final = "ADMISSION_DEADLINE", "ADMISSION_SLO"


def child_fields(service_class: ServiceClass, options: RequestOptions, spent_ms: float) -> bytes:
    """Returns header lines with the options of a request that has spent `spent_ms` here."""
    lines = _CLASS % service_class.encode() + _CHILD_OPTIONS
    if options.deadline_ms is not None:
        left_ms = max(1.0, options.deadline_ms - spent_ms)  # a deadline is above 0
        lines += _DEADLINE_MS % int(left_ms)
    if options.max_wait_ms is not None:
        lines += _MAX_WAIT_MS % int(max(0.0, options.max_wait_ms - spent_ms))
    return lines


def with_absence(reader: RejectionReader | None) -> RejectionReader:
    """Returns a reader that reads a 404 as ABSENT, and leaves other responses to `reader`."""

    def read(head: Head, body: bytes) -> Rejection | None:
        if head.status == 404:
            return ABSENT
        return None if reader is None else reader(head, body)

    return read


def engine_rejection(head: Head, body: bytes) -> Rejection | None:
    """Returns the rejection in a response of an engine; None: it is for the client."""
    kind: object = _error(body).get("type")
    if kind in (NO_SLOT, NO_ADAPTER):
        return str(kind)
    return DEFAULT_RETRY_MS if kind == ENGINE_GONE else None


def sidecar_rejection(head: Head, body: bytes) -> int | None:
    """Returns when to retry if this response of a child is a temporary rejection; else None."""
    error = _error(body)
    if error.get("code") in _FINAL_CODES:
        return None
    values = dict(head.fields)
    for name, factor in ((_RETRY_AFTER_MS, 1), (_RETRY_AFTER, 1000)):
        value = values.get(name, b"")
        if value.isdigit() and len(value) <= 12:
            return max(1, min(int(value) * factor, _LONGEST_RETRY_MS))
    if _RETRY_AFTER in values:
        return DEFAULT_RETRY_MS  # a date: a retry is welcome
    if error.get("retriable") is not True:
        return None
    asked = error.get("retry_after_ms")
    if type(asked) is not int or not 0 <= asked <= _LONGEST_RETRY_MS:
        return DEFAULT_RETRY_MS
    return max(1, asked)


def _error(body: bytes) -> dict[str, Any]:
    try:
        error = json.loads(body)["error"]
    except (ValueError, RecursionError, KeyError, TypeError):
        return {}
    return error if isinstance(error, dict) else {}

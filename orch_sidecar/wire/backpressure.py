"""What passes between this sidecar and who is below it: another sidecar, or an engine.

Pure. The sidecar above decides who waits, so the one below is told not to queue: what it cannot
take at once it turns away, and the request goes back to the head of the queue up here. So it
does when an engine is about to end, whose plugin says that it has taken nothing; whatever else
an engine answers is for the client.
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
from vllm_plugin.profile import ServiceClass

# Reads whether an answer turns a request away, once it has one of these statuses.
TurningAway = Callable[[Head, bytes], int | None]
TURNING_AWAY: Final = frozenset({429, 503})
# An error envelope is far shorter; what is longer is an answer.
MOST_BYTES: Final = 65_536

_CLASS: Final = field_line(X_ORCH_CLASS, "%b")
_DEADLINE_MS: Final = field_line(X_ORCH_DEADLINE_MS, "%d")
_MAX_WAIT_MS: Final = field_line(X_ORCH_MAX_WAIT_MS, "%d")
# What may be shared is shared up here, where tenants are known by their own keys.
_ALWAYS: Final = field_line(X_ORCH_DO_NOT_QUEUE, "true") + field_line(X_ORCH_NO_COALESCE, "true")
_RETRY_AFTER: Final = raw(RETRY_AFTER)
_RETRY_AFTER_MS: Final = raw(RETRY_AFTER_MS)

# As `vllm_plugin.endpoint` says it.
ENGINE_GONE: Final = "engine_gone"

DEFAULT_RETRY_MS: Final = 1000
# The queue up here rests no longer than that, whatever was said: the state of the sidecar below
# is pushed, so what is free there is known up here long before.
LONGEST_PAUSE_MS: Final = 100
_LONGEST_RETRY_MS: Final = 3_600_000
# Refusals that time makes no better.
_TOO_LATE: Final = frozenset({"ADMISSION_DEADLINE", "ADMISSION_SLO"})


def fields(service_class: ServiceClass, options: RequestOptions, spent_ms: float) -> bytes:
    """The options that a request has for the sidecar below, after `spent_ms` up here.

    Whole header lines.
    """
    lines = _CLASS % service_class.encode() + _ALWAYS
    if options.deadline_ms is not None:
        left_ms = max(1.0, options.deadline_ms - spent_ms)  # a deadline is above 0
        lines += _DEADLINE_MS % int(left_ms)
    if options.max_wait_ms is not None:
        lines += _MAX_WAIT_MS % int(max(0.0, options.max_wait_ms - spent_ms))
    return lines


def by_engine(head: Head, body: bytes) -> int | None:
    """When to come back, if this answer of an engine says that it took nothing; else None."""
    error = _error(body)
    return DEFAULT_RETRY_MS if error.get("type") == ENGINE_GONE else None


def by_sidecar(head: Head, body: bytes) -> int | None:
    """When to come back, if this answer of a sidecar turns a request away for now; else None."""
    error = _error(body)
    if error.get("code") in _TOO_LATE:
        return None
    values = dict(head.fields)
    for name, factor in ((_RETRY_AFTER_MS, 1), (_RETRY_AFTER, 1000)):
        value = values.get(name, b"")
        if value.isdigit() and len(value) <= 12:
            return min(int(value) * factor, _LONGEST_RETRY_MS)
    if _RETRY_AFTER in values:
        return DEFAULT_RETRY_MS  # a date: it says that there is a later
    if error.get("retriable") is not True:
        return None
    said = error.get("retry_after_ms")
    return said if type(said) is int and 0 <= said <= _LONGEST_RETRY_MS else DEFAULT_RETRY_MS


def _error(body: bytes) -> dict[str, Any]:
    try:
        error = json.loads(body)["error"]
    except (ValueError, RecursionError, KeyError, TypeError):
        return {}
    return error if isinstance(error, dict) else {}

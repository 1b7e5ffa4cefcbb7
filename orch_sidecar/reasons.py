"""The closed set of reasons why a request is not served, and what a refusal says.

Pure values. Status codes and wire forms are in `errors`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Reason(StrEnum):
    """Why a request is refused or failed; also the metric label and the span attribute."""

    # The request itself.
    INVALID_REQUEST = "invalid_request"
    COST_EXCEEDS_SLOTS = "cost_exceeds_slots"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    BODY_TOO_LARGE = "body_too_large"
    BODY_TIMEOUT = "body_timeout"
    UNSUPPORTED_ENCODING = "unsupported_encoding"
    # Capacity exists but is taken.
    QUEUE_FULL = "queue_full"
    QUEUE_TIMEOUT = "queue_timeout"
    # Cannot serve now.
    ENGINE_STARTING = "engine_starting"
    ENGINE_DOWN = "engine_down"
    ENGINE_STALE = "engine_stale"
    ENGINE_WITHOUT_PLUGIN = "engine_without_plugin"
    ENGINE_REFUSES_KEY = "engine_refuses_key"
    PROFILE_MISMATCH = "profile_mismatch"
    DRAINING = "draining"
    # The engine failed this request.
    ENGINE_FAILED = "engine_failed"
    ENGINE_TIMEOUT = "engine_timeout"
    # The client failed this request.
    CLIENT_STALLED = "client_stalled"
    # Ours.
    INTERNAL_ERROR = "internal_error"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request that is not served: why, in words, which field, and when to come back."""

    reason: Reason
    message: str
    param: str | None = None
    retry_after_ms: int | None = None

"""The closed set of reasons why a request is not served, and the refusal that contains one.

Pure. Status codes and error formats are in `errors`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Reason(StrEnum):
    """Why a request is refused or failed; also the metric label and the span attribute."""

    # The request itself.
    INVALID_REQUEST = "invalid_request"
    INFEASIBLE = "infeasible"  # no pool of this sidecar can ever serve it
    COST_EXCEEDS_SLOTS = "cost_exceeds_slots"
    NOT_FOUND = "not_found"
    FORBIDDEN = "forbidden"  # to this client: a browser, or one whose key is not for that
    METHOD_NOT_ALLOWED = "method_not_allowed"
    BODY_TOO_LARGE = "body_too_large"
    BODY_TIMEOUT = "body_timeout"
    UNSUPPORTED_ENCODING = "unsupported_encoding"
    LEASE_SPENT = "lease_spent"  # its X-Orch-Lease has been used or revoked
    QUOTA_EXCEEDED = "quota_exceeded"  # of files and batches, by those of the same API key
    # Its API key.
    UNAUTHORIZED = "unauthorized"  # missing or unknown
    CLASS_FORBIDDEN = "class_forbidden"  # the key does not allow the class
    COST_EXCEEDS_KEY = "cost_exceeds_key"
    # All capacity is in use.
    QUEUE_FULL = "queue_full"
    QUEUE_FULL_DROP_LRU = "queue_full_drop_lru"
    QUEUE_TIMEOUT = "queue_timeout"
    SLO_MISS = "slo_miss"
    DEADLINE_MISS = "deadline_miss"
    DO_NOT_QUEUE = "do_not_queue"
    KEY_CONCURRENCY = "key_concurrency"  # by other requests of the same API key
    KEY_REQUESTS = "key_requests"  # its budget of requests per minute
    KEY_TOKENS = "key_tokens"  # its budget of tokens per minute
    READER_LIMIT = "reader_limit"  # of the state stream, by other readers
    # No request can be served now.
    ENGINE_STARTING = "engine_starting"
    ENGINE_DOWN = "engine_down"
    ENGINE_STALE = "engine_stale"
    ENGINE_STALLED = "engine_stalled"
    ENGINE_PAUSED = "engine_paused"  # or put to sleep, or reconfigured, by an operator
    ENGINE_WITHOUT_PLUGIN = "engine_without_plugin"
    ENGINE_REFUSES_KEY = "engine_refuses_key"
    PROFILE_MISMATCH = "profile_mismatch"
    API_VERSION_MISMATCH = "api_version_mismatch"
    NO_POOL = "no_pool"
    DRAINING = "draining"
    BODY_BUDGET_FULL = "body_budget_full"  # by the bodies of other requests
    STORAGE_FAILED = "storage_failed"  # of files and batches
    # The engine failed this request.
    ENGINE_FAILED = "engine_failed"
    ENGINE_TIMEOUT = "engine_timeout"
    # The client failed this request.
    CLIENT_STALLED = "client_stalled"
    CANCELLED = (
        "cancelled_by_request"  # by a cancel request of its client; a disconnect is an Outcome
    )
    # The sidecar failed this request.
    INTERNAL_ERROR = "internal_error"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is not served: reason, text for the client, field, and when to retry.

    `moved`: it is placed again, and no client sees this.
    """

    reason: Reason
    message: str
    param: str | None = None
    retry_after_ms: int | None = None
    queue_position: int | None = None
    predicted_start_ms: int | None = None
    moved: bool = False


INTERNAL_ERROR: Final = Refusal(Reason.INTERNAL_ERROR, "internal error of the sidecar; see its log")

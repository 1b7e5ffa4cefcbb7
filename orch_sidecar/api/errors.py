"""How a refusal is written: status, codes and retry by reason, and the error format of each API.

Pure. 429 where capacity is taken, and 503 only where nothing can be served: 5xx makes proxies eject
the endpoint and counts against error budgets. Never 408: clients and proxies retry it at once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from orch_sidecar.api.headers import RETRY_AFTER, RETRY_AFTER_MS, WWW_AUTHENTICATE, X_BACKOFF_MS
from orch_sidecar.api.json_body import well_formed
from orch_sidecar.api.refusal import Reason, Refusal


@dataclass(frozen=True, slots=True)
class ErrorKind:
    """Status, error code, OpenAI and Anthropic error types, and whether a retry can succeed."""

    status: int
    code: str
    openai_type: str
    anthropic_type: str
    retriable: bool = False
    policy_label: str | None = None


def _bad(status: int, code: str) -> ErrorKind:
    return ErrorKind(status, code, "invalid_request_error", "invalid_request_error")


def _taken(code: str, label: str) -> ErrorKind:
    return ErrorKind(429, code, "rate_limit_error", "rate_limit_error", True, label)


def _unavailable(code: str) -> ErrorKind:
    return ErrorKind(503, code, "service_unavailable_error", "overloaded_error", retriable=True)


BY_REASON: Final[dict[Reason, ErrorKind]] = {
    Reason.INVALID_REQUEST: _bad(400, "invalid_request"),
    Reason.INFEASIBLE: _bad(400, "infeasible"),
    Reason.COST_EXCEEDS_SLOTS: _bad(400, "cost_exceeds_slots"),
    Reason.NOT_FOUND: ErrorKind(404, "not_found", "invalid_request_error", "not_found_error"),
    Reason.FORBIDDEN: ErrorKind(403, "forbidden", "permission_error", "permission_error"),
    Reason.METHOD_NOT_ALLOWED: _bad(405, "method_not_allowed"),
    Reason.BODY_TOO_LARGE: ErrorKind(
        413, "body_too_large", "invalid_request_error", "request_too_large"
    ),
    Reason.BODY_TIMEOUT: _bad(400, "body_timeout"),
    Reason.UNSUPPORTED_ENCODING: _bad(415, "unsupported_encoding"),
    Reason.LEASE_SPENT: _bad(409, "lease_spent"),
    Reason.UNAUTHORIZED: ErrorKind(
        401, "invalid_api_key", "invalid_request_error", "authentication_error"
    ),
    Reason.CLASS_FORBIDDEN: ErrorKind(
        403, "class_forbidden", "permission_error", "permission_error"
    ),
    Reason.COST_EXCEEDS_KEY: _bad(400, "cost_exceeds_key"),
    Reason.QUEUE_FULL: _taken("ADMISSION_REJECT", "reject"),
    Reason.QUEUE_FULL_DROP_LRU: _taken("QUEUE_FULL_DROP_LRU", "drop-lru"),
    Reason.QUEUE_TIMEOUT: _taken("ADMISSION_TIMEOUT", "timeout"),
    Reason.SLO_MISS: _taken("ADMISSION_SLO", "slo"),
    Reason.DEADLINE_MISS: _taken("ADMISSION_DEADLINE", "deadline"),
    Reason.DO_NOT_QUEUE: _taken("ADMISSION_NO_QUEUE", "no-queue"),
    Reason.KEY_CONCURRENCY: _taken("ADMISSION_KEY_CONCURRENCY", "key-concurrency"),
    # OpenAI's code.
    Reason.KEY_REQUESTS: _taken("rate_limit_exceeded", "key-requests"),
    Reason.KEY_TOKENS: _taken("rate_limit_exceeded", "key-tokens"),
    Reason.READER_LIMIT: _taken("READER_LIMIT", "reader-limit"),
    Reason.ENGINE_STARTING: _unavailable("engine_starting"),
    Reason.ENGINE_DOWN: _unavailable("engine_down"),
    Reason.ENGINE_STALE: _unavailable("engine_stale"),
    Reason.ENGINE_STALLED: _unavailable("engine_stalled"),
    Reason.ENGINE_PAUSED: _unavailable("engine_paused"),
    Reason.ENGINE_WITHOUT_PLUGIN: _unavailable("engine_without_plugin"),
    Reason.ENGINE_REFUSES_KEY: _unavailable("engine_refuses_key"),
    Reason.PROFILE_MISMATCH: _unavailable("profile_mismatch"),
    Reason.API_VERSION_MISMATCH: _unavailable("api_version_mismatch"),
    Reason.NO_POOL: _unavailable("no_pool"),
    Reason.DRAINING: _unavailable("draining"),
    Reason.BODY_BUDGET_FULL: _unavailable("body_budget_full"),
    Reason.ENGINE_FAILED: ErrorKind(502, "engine_failed", "server_error", "api_error", True),
    Reason.ENGINE_TIMEOUT: ErrorKind(504, "engine_timeout", "server_error", "timeout_error", True),
    # Sent to a client only within a stream that it shares with others; any other is disconnected.
    Reason.CLIENT_STALLED: ErrorKind(499, "client_stalled", "server_error", "api_error"),
    # No standard status fits; this one is known from nginx, and clients do not retry it.
    Reason.CANCELLED: _bad(499, "cancelled"),
    Reason.INTERNAL_ERROR: ErrorKind(500, "internal_error", "server_error", "api_error"),
}

# For a retriable refusal without an estimate.
_DEFAULT_RETRY_MS: Final = 1000


def retry_after_ms(refusal: Refusal) -> int | None:
    """Returns after how many milliseconds to retry; None if a retry cannot succeed."""
    if not BY_REASON[refusal.reason].retriable:
        return None
    return _DEFAULT_RETRY_MS if refusal.retry_after_ms is None else refusal.retry_after_ms


def headers(refusal: Refusal) -> dict[str, str]:
    """Returns the response headers about a retry, or about authentication.

    openai-python reads `retry-after-ms` before `Retry-After`, which has whole seconds.
    """
    wait_ms = retry_after_ms(refusal)
    if wait_ms is None:
        return {WWW_AUTHENTICATE: "Bearer"} if refusal.reason is Reason.UNAUTHORIZED else {}
    return {
        RETRY_AFTER: str(max(1, math.ceil(wait_ms / 1000))),
        RETRY_AFTER_MS: str(wait_ms),
        X_BACKOFF_MS: str(wait_ms),
    }


@dataclass(frozen=True, slots=True)
class ErrorFormat:
    """How an API writes an error: `envelope` is the body of an answer, `events` end a stream.

    Both are made of the error object, which `error` makes of a refusal.
    """

    error: Callable[[Refusal], dict[str, Any]]
    envelope: Callable[[dict[str, Any]], dict[str, Any]]
    events: Callable[[dict[str, Any]], bytes]

    def body(self, refusal: Refusal) -> bytes:
        """Returns a refusal as the body of an answer."""
        return json.dumps(self.envelope(self.error(refusal))).encode()

    def in_stream(self, refusal: Refusal) -> bytes:
        """Returns a refusal as the last events of a stream."""
        return self.events(self.error(refusal))

    def relayed(self, body: bytes) -> bytes | None:
        """Returns an engine's error as the last events of a stream; None if the body has none."""
        try:
            document = json.loads(body)
        except (ValueError, RecursionError):
            return None
        error = document.get("error", document) if isinstance(document, dict) else None
        if not isinstance(error, dict) or not isinstance(error.get("message"), str):
            return None
        return self.events(error)


def _error(refusal: Refusal, error_type: str) -> dict[str, Any]:
    kind = BY_REASON[refusal.reason]
    return {
        "message": well_formed(refusal.message),
        "type": error_type,
        "param": refusal.param and well_formed(refusal.param),
        "code": kind.code,
        "policy_label": kind.policy_label or refusal.reason.value,
        "retriable": kind.retriable,
        "retry_after_ms": retry_after_ms(refusal),
    }


def _openai_error(refusal: Refusal) -> dict[str, Any]:
    return _error(refusal, BY_REASON[refusal.reason].openai_type)


def _openai_envelope(error: dict[str, Any]) -> dict[str, Any]:
    return {"error": error}


def _openai_events(error: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(_openai_envelope(error)).encode() + b"\n\ndata: [DONE]\n\n"


def _responses_event(error: dict[str, Any]) -> bytes:
    # The event of OpenAI's Responses API is flat; its clients raise an exception on `error` in it.
    return _event({"error": error, **error, "type": "error", "sequence_number": None})


def _anthropic_error(refusal: Refusal) -> dict[str, Any]:
    return _error(refusal, BY_REASON[refusal.reason].anthropic_type)


def _anthropic_envelope(error: dict[str, Any]) -> dict[str, Any]:
    return {"type": "error", "error": error}


def _anthropic_event(error: dict[str, Any]) -> bytes:
    return _event(_anthropic_envelope(error))


def _cohere_envelope(error: dict[str, Any]) -> dict[str, Any]:
    return error


def _cohere_event(error: dict[str, Any]) -> bytes:
    delta = {"finish_reason": "ERROR", "error": error["message"]}
    event = json.dumps({"type": "message-end", "delta": delta}).encode()
    return b"data: " + event + b"\n\ndata: [DONE]\n\n"


def _event(envelope: dict[str, Any]) -> bytes:
    return b"event: error\ndata: " + json.dumps(envelope).encode() + b"\n\n"


OPENAI: Final = ErrorFormat(_openai_error, _openai_envelope, _openai_events)
RESPONSES: Final = ErrorFormat(_openai_error, _openai_envelope, _responses_event)
COHERE: Final = ErrorFormat(_openai_error, _cohere_envelope, _cohere_event)
ANTHROPIC: Final = ErrorFormat(_anthropic_error, _anthropic_envelope, _anthropic_event)


def error_text(error: BaseException) -> str:
    """Returns an error as text, without the request that it may belong to.

    That of an HTTP client contains the request: a URL with a lease or an instance, and the engine's
    key in a header.
    """
    if hasattr(error, "request_info"):
        status, message = getattr(error, "status", None), getattr(error, "message", "")
        return f"{type(error).__name__}(status={status}, message={message!r})"
    return repr(error)

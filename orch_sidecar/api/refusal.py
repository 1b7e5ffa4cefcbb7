"""Why a request is not served, and how that is written: a closed set of reasons, in one table.

Pure. The table has status, codes and retry by reason; each API has an error format. 429 where
capacity is taken, and 503 only where nothing can be served: 5xx makes proxies eject the endpoint
and counts against error budgets. Never 408: clients and proxies retry it at once.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from orch_sidecar.api.headers import RETRY_AFTER, RETRY_AFTER_MS, WWW_AUTHENTICATE, X_BACKOFF_MS

# For a retriable refusal without an estimate.
_DEFAULT_RETRY_MS: Final = 1000
# Clients ignore a minute and more, and retry within seconds (Vercel's AI SDK; litellm above one).
LONGEST_RETRY_MS: Final = 59_000


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

    @property
    def kind(self) -> ErrorKind:
        return BY_REASON[self.reason]

    @property
    def status(self) -> int:
        return BY_REASON[self.reason].status

    @property
    def retry_ms(self) -> int | None:
        """After how many milliseconds to retry; None if a retry cannot succeed."""
        if not self.kind.retriable:
            return None
        wait_ms = self.retry_after_ms
        return _DEFAULT_RETRY_MS if wait_ms is None else min(wait_ms, LONGEST_RETRY_MS)

    def headers(self) -> dict[str, str]:
        """Returns the response headers about a retry, or about authentication.

        openai-python reads `retry-after-ms` before `Retry-After`, which has whole seconds.
        """
        wait_ms = self.retry_ms
        if wait_ms is None:
            return {WWW_AUTHENTICATE: "Bearer"} if self.reason is Reason.UNAUTHORIZED else {}
        return {
            RETRY_AFTER: str(max(1, math.ceil(wait_ms / 1000))),
            RETRY_AFTER_MS: str(wait_ms),
            X_BACKOFF_MS: str(wait_ms),
        }


INTERNAL_ERROR: Final = Refusal(Reason.INTERNAL_ERROR, "internal error of the sidecar; see its log")


@dataclass(frozen=True, slots=True)
class ErrorKind:
    """Status, error code, OpenAI and Anthropic error types, and whether a retry can succeed.

    `text`: why a request was not served, for a table that people look at: short, and without the
    names of this code. `policy_label`: in the error's body, else it is the reason, as in metrics.
    `engine_away`: the engine takes no requests, which concerns its pool, and not the request.
    """

    reason: Reason
    status: int
    text: str
    code: str
    openai_type: str
    anthropic_type: str
    retriable: bool = False
    policy_label: str | None = None
    engine_away: bool = False


def _bad(
    reason: Reason, status: int, text: str, code: str = "", anthropic: str = "invalid_request_error"
) -> ErrorKind:
    code = code or reason.value
    return ErrorKind(reason, status, text, code, "invalid_request_error", anthropic)


def _not_permitted(reason: Reason, text: str) -> ErrorKind:
    return ErrorKind(reason, 403, text, reason.value, "permission_error", "permission_error")


def _taken(reason: Reason, code: str, label: str, text: str) -> ErrorKind:
    return ErrorKind(reason, 429, text, code, "rate_limit_error", "rate_limit_error", True, label)


def _unavailable(reason: Reason, text: str, *, away: bool = False) -> ErrorKind:
    openai, anthropic = "service_unavailable_error", "overloaded_error"
    return ErrorKind(
        reason, 503, text, reason.value, openai, anthropic, retriable=True, engine_away=away
    )


def _away(reason: Reason, text: str) -> ErrorKind:
    return _unavailable(reason, text, away=True)


def _failed(
    reason: Reason, status: int, text: str, anthropic: str = "api_error", *, retriable: bool = False
) -> ErrorKind:
    return ErrorKind(reason, status, text, reason.value, "server_error", anthropic, retriable)


_KINDS: Final = (
    _bad(Reason.INVALID_REQUEST, 400, "malformed"),
    _bad(Reason.INFEASIBLE, 400, "no pool could ever serve it"),
    _bad(Reason.COST_EXCEEDS_SLOTS, 400, "more sequences than there are slots"),
    _bad(Reason.NOT_FOUND, 404, "no such model or path", anthropic="not_found_error"),
    _not_permitted(Reason.FORBIDDEN, "not allowed"),
    _bad(Reason.METHOD_NOT_ALLOWED, 405, "wrong method"),
    _bad(Reason.BODY_TOO_LARGE, 413, "its body is too large", anthropic="request_too_large"),
    _bad(Reason.BODY_TIMEOUT, 400, "its body did not arrive in time"),
    _bad(Reason.UNSUPPORTED_ENCODING, 415, "its body is compressed"),
    _bad(Reason.LEASE_SPENT, 409, "the parent's lease was used before"),
    _bad(Reason.QUOTA_EXCEEDED, 413, "its key has as many files or open batches as it may"),
    _bad(
        Reason.UNAUTHORIZED, 401, "no API key, or an unknown one", "invalid_api_key",
        "authentication_error"
    ),
    _not_permitted(Reason.CLASS_FORBIDDEN, "its key is for bulk requests only"),
    _bad(Reason.COST_EXCEEDS_KEY, 400, "more sequences than its key may have"),
    _taken(Reason.QUEUE_FULL, "ADMISSION_REJECT", "reject", "the queue was full"),
    _taken(
        Reason.QUEUE_FULL_DROP_LRU, "QUEUE_FULL_DROP_LRU", "drop-lru", "pushed out of a full queue"
    ),
    _taken(Reason.QUEUE_TIMEOUT, "ADMISSION_TIMEOUT", "timeout", "would wait, or waited, too long"),
    _taken(
        Reason.SLO_MISS, "ADMISSION_SLO", "slo", "its first token would be too late for the SLO"
    ),
    _taken(
        Reason.DEADLINE_MISS, "ADMISSION_DEADLINE", "deadline",
        "its first token would miss its deadline"
    ),
    _taken(
        Reason.DO_NOT_QUEUE, "ADMISSION_NO_QUEUE", "no-queue",
        "no slot was free, and it asked not to wait"
    ),
    _taken(
        Reason.KEY_CONCURRENCY, "ADMISSION_KEY_CONCURRENCY", "key-concurrency",
        "its key has as many requests as it may"
    ),
    # OpenAI's code.
    _taken(
        Reason.KEY_REQUESTS, "rate_limit_exceeded", "key-requests",
        "its key has used its requests of this minute"
    ),
    _taken(
        Reason.KEY_TOKENS, "rate_limit_exceeded", "key-tokens",
        "its key has used its tokens of this minute"
    ),
    _taken(Reason.READER_LIMIT, "READER_LIMIT", "reader-limit", "too many streams of the state"),
    _away(Reason.ENGINE_STARTING, "the engine was starting"),
    _away(Reason.ENGINE_DOWN, "the engine was down"),
    _away(Reason.ENGINE_STALE, "the engine's state was unknown"),
    _away(Reason.ENGINE_STALLED, "the engine made no progress"),
    _away(Reason.ENGINE_PAUSED, "the engine was paused"),
    _away(Reason.ENGINE_WITHOUT_PLUGIN, "the engine runs without the orch plugin"),
    _away(Reason.ENGINE_REFUSES_KEY, "the engine rejects the sidecar's key"),
    _away(Reason.PROFILE_MISMATCH, "engine and sidecar have different profiles"),
    _away(Reason.API_VERSION_MISMATCH, "engine and sidecar do not fit together"),
    _unavailable(Reason.NO_POOL, "no pool could take it"),
    _unavailable(Reason.DRAINING, "the pool was draining"),
    _unavailable(Reason.BODY_BUDGET_FULL, "too many large requests at once"),
    _unavailable(Reason.STORAGE_FAILED, "files could not be stored"),
    _failed(Reason.ENGINE_FAILED, 502, "the engine was lost", retriable=True),
    _failed(Reason.ENGINE_TIMEOUT, 504, "the engine went silent", "timeout_error", retriable=True),
    # Sent to a client only within a stream that it shares with others; any other is disconnected.
    _failed(Reason.CLIENT_STALLED, 499, "the client stopped reading"),
    # No standard status fits; this one is known from nginx, and clients do not retry it.
    _bad(Reason.CANCELLED, 499, "cancelled", "cancelled"),
    _failed(Reason.INTERNAL_ERROR, 500, "a fault of the sidecar: see its log"),
)  # fmt: skip
BY_REASON: Final[dict[Reason, ErrorKind]] = {each.reason: each for each in _KINDS}


@dataclass(frozen=True, slots=True)
class ErrorFormat:
    """How an API writes an error: `envelope` makes the body of an answer of the error object, and
    `event` what `encoded` makes the end of a stream of. `error_type`: the field of ErrorKind with
    its type."""

    error_type: str
    envelope: Callable[[dict[str, Any]], dict[str, Any]]
    event: Callable[[dict[str, Any]], dict[str, Any]]
    encoded: Callable[[dict[str, Any]], bytes]

    def body(self, refusal: Refusal) -> bytes:
        """Returns a refusal as the body of an answer."""
        return json.dumps(self.envelope(self._error(refusal))).encode()

    def in_stream(self, refusal: Refusal) -> bytes:
        """Returns a refusal as the last events of a stream."""
        return self.encoded(self.event(self._error(refusal)))

    def relayed(self, body: bytes) -> bytes | None:
        """Returns an engine's error as the last events of a stream; None if the body has none."""
        try:
            document = json.loads(body)
        except (ValueError, RecursionError):
            return None
        error = document.get("error", document) if isinstance(document, dict) else None
        if not isinstance(error, dict) or not isinstance(error.get("message"), str):
            return None
        return self.encoded(self.event(error))

    def _error(self, refusal: Refusal) -> dict[str, Any]:
        kind = refusal.kind
        return {
            "message": well_formed(refusal.message),
            "type": getattr(kind, self.error_type),
            "param": refusal.param and well_formed(refusal.param),
            "code": kind.code,
            "policy_label": kind.policy_label or refusal.reason.value,
            "retriable": kind.retriable,
            "retry_after_ms": refusal.retry_ms,
        }


def _enveloped(error: dict[str, Any]) -> dict[str, Any]:
    return {"error": error}


def _typed(error: dict[str, Any]) -> dict[str, Any]:
    return {"type": "error", "error": error}


def _ends_by_done(event: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(event).encode() + b"\n\ndata: [DONE]\n\n"


def _named(event: dict[str, Any]) -> bytes:
    return b"event: error\ndata: " + json.dumps(event).encode() + b"\n\n"


def _flat(error: dict[str, Any]) -> dict[str, Any]:
    # The event of OpenAI's Responses API; its clients raise an exception on `error` in it.
    return {"error": error, **error, "type": "error", "sequence_number": None}


def _message_end(error: dict[str, Any]) -> dict[str, Any]:
    delta = {"finish_reason": "ERROR", "error": error["message"]}
    return {"type": "message-end", "delta": delta}


OPENAI: Final = ErrorFormat("openai_type", _enveloped, _enveloped, _ends_by_done)
RESPONSES: Final = ErrorFormat("openai_type", _enveloped, _flat, _named)
COHERE: Final = ErrorFormat("openai_type", dict, _message_end, _ends_by_done)
ANTHROPIC: Final = ErrorFormat("anthropic_type", _typed, _typed, _named)


def error_text(error: BaseException) -> str:
    """Returns an error as text, without the request that it may belong to.

    That of an HTTP client contains the request: a URL with a lease or an instance, and the engine's
    key in a header. Of a failed connection it is the cause alone: the address has its place in the
    texts around it.
    """
    if isinstance(error, OSError) and error.errno:
        # Below 0: of the name service, with a text of its own.
        text = os.strerror(error.errno) if error.errno > 0 else str(error.strerror)
        return text[:1].lower() + text[1:]
    if hasattr(error, "request_info"):
        status, message = getattr(error, "status", None), getattr(error, "message", "")
        return f"{type(error).__name__}(status={status}, message={message!r})"
    return repr(error)


def well_formed(text: str) -> str:
    """Returns a client's text as UTF-8 can have it.

    JSON and header fields may have half a surrogate pair. Bytes for an engine are left as they are.
    """
    return text if text.isascii() else text.encode("utf-8", "replace").decode()

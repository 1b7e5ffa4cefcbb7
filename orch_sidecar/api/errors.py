"""What a refusal looks like on the wire: one table, and the error form of each API.

Why 429 for what is taken and 503 only for what cannot be served: 5xx makes proxies eject the
endpoint and counts against error budgets. Never 408: clients and proxies retry it at once.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, Final

from orch_sidecar.api.generation import Api
from orch_sidecar.api.refusal import Reason, Refusal


@dataclass(frozen=True, slots=True)
class Form:
    """Status, error code, OpenAI and Anthropic error types, and whether to come back."""

    status: int
    code: str
    openai_type: str
    anthropic_type: str
    retriable: bool = False
    policy_label: str | None = None


def _bad(status: int, code: str) -> Form:
    return Form(status, code, "invalid_request_error", "invalid_request_error")


def _taken(code: str, label: str) -> Form:
    return Form(429, code, "rate_limit_error", "rate_limit_error", True, label)


def _unavailable(code: str) -> Form:
    return Form(503, code, "service_unavailable_error", "overloaded_error", retriable=True)


FORMS: Final[dict[Reason, Form]] = {
    Reason.INVALID_REQUEST: _bad(400, "invalid_request"),
    Reason.INFEASIBLE: _bad(400, "infeasible"),
    Reason.COST_EXCEEDS_SLOTS: _bad(400, "cost_exceeds_slots"),
    Reason.NOT_FOUND: Form(404, "not_found", "invalid_request_error", "not_found_error"),
    Reason.FORBIDDEN: Form(403, "forbidden", "permission_error", "permission_error"),
    Reason.METHOD_NOT_ALLOWED: _bad(405, "method_not_allowed"),
    Reason.BODY_TOO_LARGE: Form(
        413, "body_too_large", "invalid_request_error", "request_too_large"
    ),
    Reason.BODY_TIMEOUT: _bad(400, "body_timeout"),
    Reason.UNSUPPORTED_ENCODING: _bad(415, "unsupported_encoding"),
    Reason.LEASE_SPENT: _bad(409, "lease_spent"),
    Reason.UNAUTHORIZED: Form(
        401, "invalid_api_key", "invalid_request_error", "authentication_error"
    ),
    Reason.CLASS_FORBIDDEN: Form(403, "class_forbidden", "permission_error", "permission_error"),
    Reason.COST_EXCEEDS_KEY: _bad(400, "cost_exceeds_key"),
    Reason.QUEUE_FULL: _taken("ADMISSION_REJECT", "reject"),
    Reason.QUEUE_FULL_DROP_LRU: _taken("QUEUE_FULL_DROP_LRU", "drop-lru"),
    Reason.QUEUE_TIMEOUT: _taken("ADMISSION_TIMEOUT", "timeout"),
    Reason.SLO_MISS: _taken("ADMISSION_SLO", "slo"),
    Reason.DEADLINE_MISS: _taken("ADMISSION_DEADLINE", "deadline"),
    Reason.DO_NOT_QUEUE: _taken("ADMISSION_NO_QUEUE", "no-queue"),
    Reason.KEY_CONCURRENCY: _taken("ADMISSION_KEY_CONCURRENCY", "key-concurrency"),
    Reason.READER_LIMIT: _taken("READER_LIMIT", "reader-limit"),
    Reason.ENGINE_STARTING: _unavailable("engine_starting"),
    Reason.ENGINE_DOWN: _unavailable("engine_down"),
    Reason.ENGINE_STALE: _unavailable("engine_stale"),
    Reason.ENGINE_STALLED: _unavailable("engine_stalled"),
    Reason.ENGINE_PAUSED: _unavailable("engine_paused"),
    Reason.ENGINE_WITHOUT_PLUGIN: _unavailable("engine_without_plugin"),
    Reason.ENGINE_REFUSES_KEY: _unavailable("engine_refuses_key"),
    Reason.PROFILE_MISMATCH: _unavailable("profile_mismatch"),
    Reason.NO_POOL: _unavailable("no_pool"),
    Reason.DRAINING: _unavailable("draining"),
    Reason.BODY_BUDGET_FULL: _unavailable("body_budget_full"),
    Reason.ENGINE_FAILED: Form(502, "engine_failed", "server_error", "api_error", True),
    Reason.ENGINE_TIMEOUT: Form(504, "engine_timeout", "server_error", "timeout_error", True),
    # Said in the stream of a client that holds up others; one that is alone is dropped.
    Reason.CLIENT_STALLED: Form(499, "client_stalled", "server_error", "api_error"),
    # No standard status says it; this one is known from nginx, and nobody retries it.
    Reason.CANCELLED: _bad(499, "cancelled"),
    Reason.INTERNAL_ERROR: Form(500, "internal_error", "server_error", "api_error"),
}

# For a retriable refusal that could not tell how long.
_DEFAULT_RETRY_MS: Final = 1000


def retry_after_ms(refusal: Refusal) -> int | None:
    """When to come back, for refusals after which that makes sense."""
    if not FORMS[refusal.reason].retriable:
        return None
    return _DEFAULT_RETRY_MS if refusal.retry_after_ms is None else refusal.retry_after_ms


def headers(refusal: Refusal) -> dict[str, str]:
    """The response headers that say when to come back, or how.

    openai-python reads `retry-after-ms` before `Retry-After`, which has whole seconds.
    """
    wait_ms = retry_after_ms(refusal)
    if wait_ms is None:
        return {"WWW-Authenticate": "Bearer"} if refusal.reason is Reason.UNAUTHORIZED else {}
    return {
        "Retry-After": str(max(1, math.ceil(wait_ms / 1000))),
        "retry-after-ms": str(wait_ms),
        "X-Backoff-Ms": str(wait_ms),
    }


def body(api: Api, refusal: Refusal) -> bytes:
    """The JSON body of a refusal, in the error form of the endpoint's API."""
    return json.dumps(_envelope(api, refusal)).encode()


def _envelope(api: Api, refusal: Refusal) -> dict[str, Any]:
    form = FORMS[refusal.reason]
    error: dict[str, Any] = {
        "message": refusal.message,
        "type": form.anthropic_type if api is Api.MESSAGES else form.openai_type,
        "param": refusal.param,
        "code": form.code,
        "policy_label": form.policy_label or refusal.reason.value,
        "retriable": form.retriable,
        "retry_after_ms": retry_after_ms(refusal),
    }
    return {"type": "error", "error": error} if api is Api.MESSAGES else {"error": error}


def in_stream(api: Api, refusal: Refusal) -> bytes:
    """What is said inside a stream whose status line has already gone out."""
    if api in (Api.CHAT, Api.COMPLETIONS):
        return b"data: " + body(api, refusal) + b"\n\ndata: [DONE]\n\n"
    envelope = _envelope(api, refusal)
    if api is Api.RESPONSES:
        # The event of OpenAI's Responses API is flat; its clients raise on an `error` in it.
        envelope |= envelope["error"] | {"type": "error", "sequence_number": None}
    return b"event: error\ndata: " + json.dumps(envelope).encode() + b"\n\n"

"""Status, headers and body of refusals, by reason and API."""

from __future__ import annotations

import errno
import json
import socket
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from orch_sidecar.admission.prediction.freed_slots import MAX_RETRY_MS
from orch_sidecar.api.endpoints import Endpoint
from orch_sidecar.api.refusal import BY_REASON, LONGEST_RETRY_MS, Reason, Refusal, error_text
from tests.orch_sidecar import apis

CAPACITY_TAKEN = {
    Reason.QUEUE_FULL,
    Reason.QUEUE_FULL_DROP_LRU,
    Reason.QUEUE_TIMEOUT,
    Reason.SLO_MISS,
    Reason.DEADLINE_MISS,
    Reason.DO_NOT_QUEUE,
    Reason.KEY_CONCURRENCY,
    Reason.KEY_REQUESTS,
    Reason.KEY_TOKENS,
    Reason.READER_LIMIT,
}
CANNOT_SERVE = {
    Reason.BODY_BUDGET_FULL,
    Reason.ENGINE_STARTING,
    Reason.ENGINE_DOWN,
    Reason.ENGINE_STALE,
    Reason.ENGINE_STALLED,
    Reason.ENGINE_PAUSED,
    Reason.ENGINE_WITHOUT_PLUGIN,
    Reason.ENGINE_REFUSES_KEY,
    Reason.PROFILE_MISMATCH,
    Reason.API_VERSION_MISMATCH,
    Reason.NO_POOL,
    Reason.DRAINING,
    Reason.STORAGE_FAILED,
}
OTHERS = {
    Reason.INVALID_REQUEST: 400,
    Reason.INFEASIBLE: 400,
    Reason.COST_EXCEEDS_SLOTS: 400,
    Reason.COST_EXCEEDS_KEY: 400,
    Reason.BODY_TIMEOUT: 400,
    Reason.UNAUTHORIZED: 401,
    Reason.FORBIDDEN: 403,
    Reason.CLASS_FORBIDDEN: 403,
    Reason.NOT_FOUND: 404,
    Reason.METHOD_NOT_ALLOWED: 405,
    Reason.LEASE_SPENT: 409,
    Reason.BODY_TOO_LARGE: 413,
    Reason.QUOTA_EXCEEDED: 413,
    Reason.UNSUPPORTED_ENCODING: 415,
    Reason.CLIENT_STALLED: 499,
    Reason.CANCELLED: 499,
    Reason.INTERNAL_ERROR: 500,
    Reason.ENGINE_FAILED: 502,
    Reason.ENGINE_TIMEOUT: 504,
}


def json_of(api: Endpoint, refusal: Refusal) -> dict[str, Any]:
    document = json.loads(api.error_format.body(refusal))
    assert isinstance(document, dict)
    return document


@pytest.mark.parametrize("reason", Reason)
@pytest.mark.parametrize("api", apis.GENERATING)
def test_every_reason_has_a_form_in_every_api(reason: Reason, api: Endpoint) -> None:
    error = json_of(api, Refusal(reason, "why"))["error"]
    form = BY_REASON[reason]
    assert 400 <= form.status < 600
    assert error["message"] == "why"
    assert error["code"] == form.code
    assert error["retriable"] == form.retriable
    assert error["policy_label"]
    assert (error["retry_after_ms"] is not None) == form.retriable
    assert set(error) == {
        "message", "type", "param", "code", "policy_label", "retriable", "retry_after_ms",
    }  # fmt: skip


@pytest.mark.parametrize("reason", Reason)
def test_status_distinguishes_capacity_in_use_from_unavailable_engines(reason: Reason) -> None:
    status = BY_REASON[reason].status
    assert (status == 429) == (reason in CAPACITY_TAKEN)
    assert (status == 503) == (reason in CANNOT_SERVE)
    assert status != 408, "clients and proxies retry it at once"


@pytest.mark.parametrize(("reason", "status"), OTHERS.items())
def test_statuses_are_the_usual_ones(reason: Reason, status: int) -> None:
    assert BY_REASON[reason].status == status


def test_every_reason_has_a_status_that_is_tested() -> None:
    assert OTHERS.keys() | CAPACITY_TAKEN | CANNOT_SERVE == set(Reason)


@pytest.mark.parametrize("reason", Reason)
def test_only_capacity_in_use_and_failures_are_retriable(reason: Reason) -> None:
    failed = {Reason.ENGINE_FAILED, Reason.ENGINE_TIMEOUT}
    assert BY_REASON[reason].retriable == (reason in CAPACITY_TAKEN | CANNOT_SERVE | failed)


def test_errors_of_the_client_are_not_retriable() -> None:
    wrong = [reason for reason, form in BY_REASON.items() if form.status in range(400, 429)]
    assert Reason.INVALID_REQUEST in wrong
    for reason in wrong:
        refusal = Refusal(reason, "why", retry_after_ms=500)
        assert "Retry-After" not in refusal.headers()
        assert json_of(apis.CHAT, refusal)["error"]["retry_after_ms"] is None


@pytest.mark.parametrize("reason", Reason)
def test_only_an_unauthorized_request_gets_www_authenticate(reason: Reason) -> None:
    value = Refusal(reason, "why").headers().get("WWW-Authenticate")
    assert value == ("Bearer" if reason is Reason.UNAUTHORIZED else None)


def test_rejected_key_has_the_error_type_of_each_api() -> None:
    refusal = Refusal(Reason.UNAUTHORIZED, "why")
    for api in apis.GENERATING:
        error = json_of(api, refusal)["error"]
        kind = "authentication_error" if api is apis.MESSAGES else "invalid_request_error"
        assert (error["type"], error["code"]) == (kind, "invalid_api_key")


def test_retry_headers_have_each_unit() -> None:
    assert Refusal(Reason.QUEUE_FULL, "", retry_after_ms=1234).headers() == {
        "Retry-After": "2",
        "retry-after-ms": "1234",
        "X-Backoff-Ms": "1234",
    }


def test_retry_after_in_seconds_is_never_zero() -> None:
    headers = Refusal(Reason.QUEUE_FULL, "", retry_after_ms=50).headers()
    assert headers["Retry-After"] == "1"
    assert headers["retry-after-ms"] == "50"


def test_retriable_refusal_without_an_estimate_has_one_second() -> None:
    refusal = Refusal(Reason.ENGINE_DOWN, "gone")
    assert refusal.headers()["retry-after-ms"] == "1000"
    assert json_of(apis.CHAT, refusal)["error"]["retry_after_ms"] == 1000


def test_long_retry_is_one_that_clients_heed() -> None:
    """Vercel's AI SDK waits for less than a minute, litellm for a minute at most; beyond it they
    retry after a few seconds."""
    refusal = Refusal(Reason.ENGINE_STARTING, "why", retry_after_ms=75_000)
    assert refusal.headers()["Retry-After"] == "59"
    assert refusal.headers()["retry-after-ms"] == "59000"
    assert json_of(apis.CHAT, refusal)["error"]["retry_after_ms"] == 59_000
    assert MAX_RETRY_MS * 1.25 < LONGEST_RETRY_MS, "or the jitter is lost"


def test_openai_envelope_names_the_field() -> None:
    refusal = Refusal(Reason.INVALID_REQUEST, 'n must be an integer, not "8"', "n")
    assert json_of(apis.CHAT, refusal) == {
        "error": {
            "message": 'n must be an integer, not "8"',
            "type": "invalid_request_error",
            "param": "n",
            "code": "invalid_request",
            "policy_label": "invalid_request",
            "retriable": False,
            "retry_after_ms": None,
        }
    }


def test_admission_refusals_have_their_policy_label() -> None:
    labels = {
        Reason.QUEUE_FULL: ("ADMISSION_REJECT", "reject"),
        Reason.QUEUE_FULL_DROP_LRU: ("QUEUE_FULL_DROP_LRU", "drop-lru"),
        Reason.QUEUE_TIMEOUT: ("ADMISSION_TIMEOUT", "timeout"),
        Reason.SLO_MISS: ("ADMISSION_SLO", "slo"),
        Reason.DEADLINE_MISS: ("ADMISSION_DEADLINE", "deadline"),
        Reason.DO_NOT_QUEUE: ("ADMISSION_NO_QUEUE", "no-queue"),
        Reason.KEY_CONCURRENCY: ("ADMISSION_KEY_CONCURRENCY", "key-concurrency"),
        Reason.KEY_REQUESTS: ("rate_limit_exceeded", "key-requests"),
        Reason.KEY_TOKENS: ("rate_limit_exceeded", "key-tokens"),
        Reason.READER_LIMIT: ("READER_LIMIT", "reader-limit"),
    }
    assert labels.keys() == CAPACITY_TAKEN
    for reason, expected in labels.items():
        error = json_of(apis.CHAT, Refusal(reason, "why"))["error"]
        assert (error["code"], error["policy_label"]) == expected


def test_messages_have_anthropics_envelope_and_types() -> None:
    document = json_of(apis.MESSAGES, Refusal(Reason.ENGINE_STALE, "stale"))
    assert document["type"] == "error"
    assert document["error"]["type"] == "overloaded_error"
    assert document["error"]["message"] == "stale"
    not_found = json_of(apis.MESSAGES, Refusal(Reason.NOT_FOUND, "no"))
    assert not_found["error"]["type"] == "not_found_error"


FAILED = Refusal(Reason.ENGINE_FAILED, "the engine is\ngone")


def events_of(stream: bytes) -> list[tuple[str | None, str]]:
    """Server-sent events as (name, data)."""
    events = []
    assert stream.endswith(b"\n\n")
    for block in stream.decode().removesuffix("\n\n").split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.split("\n"))
        events.append((lines.get("event"), lines["data"]))
    return events


@pytest.mark.parametrize("api", [apis.CHAT, apis.COMPLETIONS])
def test_chat_and_completion_streams_get_an_error_chunk_and_their_end(api: Endpoint) -> None:
    [(name, data), end] = events_of(api.error_format.in_stream(FAILED))
    assert name is None
    assert json.loads(data) == json_of(api, FAILED)
    assert end == (None, "[DONE]")


def test_message_stream_gets_anthropics_error_event() -> None:
    [(name, data)] = events_of(apis.MESSAGES.error_format.in_stream(FAILED))
    assert name == "error"
    document = json.loads(data)
    assert document["type"] == "error"
    assert document["error"]["type"] == "api_error"


def test_response_stream_gets_openais_flat_error_event() -> None:
    [(name, data)] = events_of(apis.RESPONSES.error_format.in_stream(FAILED))
    assert name == "error"
    document = json.loads(data)
    assert document["type"] == "error"
    assert document["code"] == "engine_failed"
    assert document["message"] == "the engine is\ngone"
    assert {"param", "sequence_number"} <= set(document)


def test_error_is_shown_without_the_request_that_it_belongs_to() -> None:
    headers = CIMultiDictProxy(CIMultiDict({"Authorization": "Bearer secret"}))
    url = URL(f"http://engine/v1/capabilities/leases/{'1' * 16}.{'a' * 32}.1")
    request = aiohttp.RequestInfo(url, "DELETE", headers, url)
    error = aiohttp.ContentTypeError(request, (), status=502, message="no JSON")
    assert error_text(error) == "ContentTypeError(status=502, message='no JSON')"


def test_failed_connections_are_their_cause_alone() -> None:
    """The addresses, which aiohttp repeats in them, are in the texts around."""
    key = SimpleNamespace(host="engine", port=80, ssl=True, is_ssl=False)
    refused = ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('::1', 80, 0, 0)")
    error = aiohttp.ClientConnectorError(cast(Any, key), refused)
    assert error_text(error) == "connection refused"
    unknown = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    error = aiohttp.ClientConnectorDNSError(cast(Any, key), unknown)
    assert error_text(error) == "name or service not known"


def test_other_errors_are_shown_as_they_are() -> None:
    assert error_text(KeyError("ended")) == "KeyError('ended')"

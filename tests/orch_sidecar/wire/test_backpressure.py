"""Protocol between a sidecar and its upstreams."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orch_sidecar.api.endpoints import Endpoint
from orch_sidecar.api.options import NO_OPTIONS, RequestOptions
from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.wire.backpressure import (
    DEFAULT_RETRY_MS,
    child_fields,
    engine_rejection,
    sidecar_rejection,
)
from orch_sidecar.wire.http1 import Head
from tests.orch_sidecar import apis
from vllm_plugin.contracts.lease_protocol import ENGINE_GONE
from vllm_plugin.contracts.profile import ServiceClass


def forwarded(options: RequestOptions, spent_ms: float = 0.0) -> dict[str, str]:
    lines = child_fields(ServiceClass.BULK, options, spent_ms).decode().split("\r\n")
    assert lines.pop() == ""
    return dict(line.split(": ") for line in lines)


def test_child_sidecar_gets_the_class_and_never_queues() -> None:
    assert forwarded(NO_OPTIONS) == {
        "x-orch-class": "bulk",
        "x-orch-do-not-queue": "true",
        "x-orch-no-coalesce": "true",
    }


def test_time_spent_here_is_subtracted_from_deadlines() -> None:
    found = forwarded(RequestOptions(deadline_ms=1000.0, max_wait_ms=500.0), 250.4)
    assert (found["x-orch-deadline-ms"], found["x-orch-max-wait-ms"]) == ("749", "249")
    found = forwarded(RequestOptions(deadline_ms=1000.0, max_wait_ms=500.0), 9e9)
    assert (found["x-orch-deadline-ms"], found["x-orch-max-wait-ms"]) == ("1", "0")


@pytest.mark.parametrize("code", ["ADMISSION_DEADLINE", "ADMISSION_SLO"])
def test_request_that_expired_in_the_child_is_not_requeued(code: str) -> None:
    body = json.dumps({"error": {"code": code, "retriable": True}}).encode()
    assert sidecar_rejection(head((b"retry-after", b"1")), body) is None


def head(*given: tuple[bytes, bytes]) -> Head:
    return Head(429, b"Too Many Requests", given, keep_alive=True, chunked=False, length=0)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([(b"retry-after-ms", b"250"), (b"retry-after", b"1")], 250),
        ([(b"retry-after", b"3")], 3000),
        ([(b"retry-after", b"Fri, 31 Dec 1999 23:59:59 GMT")], DEFAULT_RETRY_MS),
        ([(b"retry-after-ms", b"-4"), (b"retry-after", b"2")], 2000),
        ([(b"retry-after", b"9" * 12)], 3_600_000),
    ],
)
def test_retry_time_is_read_from_a_header(given: list[tuple[bytes, bytes]], expected: int) -> None:
    assert sidecar_rejection(head(*given), b"") == expected


@pytest.mark.parametrize("api", [apis.CHAT, apis.MESSAGES])
def test_retry_time_is_read_from_the_error_without_a_header(api: Endpoint) -> None:
    refusal = Refusal(Reason.DO_NOT_QUEUE, "no slot", retry_after_ms=77)
    assert sidecar_rejection(head(), api.error_format.body(refusal)) == 77


@pytest.mark.parametrize(
    "error",
    [{}, {"retriable": False, "retry_after_ms": 5}, {"retriable": "true"}, {"code": [1]}, [], None],
)
def test_final_response_is_forwarded(error: Any) -> None:
    assert sidecar_rejection(head(), json.dumps({"error": error}).encode()) is None


@pytest.mark.parametrize("body", [b"", b"busy", b"[]", b"[" * 5000, b"\xff"])
def test_response_that_is_no_error_object_is_forwarded(body: bytes) -> None:
    assert sidecar_rejection(head(), body) is None


@pytest.mark.parametrize("value", [None, "5", -1, 1e9, True])
def test_rejection_without_a_time_has_the_default(value: Any) -> None:
    error = {"retriable": True, "retry_after_ms": value}
    assert sidecar_rejection(head(), json.dumps({"error": error}).encode()) == DEFAULT_RETRY_MS


def test_engine_rejects_only_by_the_plugins_own_code() -> None:
    gone = json.dumps({"error": {"type": ENGINE_GONE, "code": 503}}).encode()
    assert engine_rejection(head(), gone) == DEFAULT_RETRY_MS
    assert engine_rejection(head((b"retry-after", b"1")), b'{"error": {"retriable": true}}') is None
    assert engine_rejection(head((b"retry-after", b"1")), b"") is None

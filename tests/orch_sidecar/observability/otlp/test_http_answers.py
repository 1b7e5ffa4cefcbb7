"""What answers of a collector over HTTP mean, and what is none."""

from __future__ import annotations

import gzip
import math
from email.utils import formatdate

import pytest
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceResponse,
)

from orch_sidecar.observability.otlp import http_transport as module
from orch_sidecar.observability.otlp.delivery import Reply, Verdict
from orch_sidecar.observability.otlp.http_transport import (
    retry_after_s,
)
from tests.orch_sidecar.observability.otlp.http_receivers import (
    Behaviour,
    answer,
    closing,
    early,
    endless,
    hanging,
    head,
    raw,
)
from tests.orch_sidecar.observability.otlp.http_sending import one

PAGE = b"<!DOCTYPE html><html><body>It works!</body></html>"
DELIVERED, RETRY, REJECTED = Verdict.DELIVERED, Verdict.RETRY, Verdict.REJECTED


def response(rejected: int = 0, message: str = "") -> bytes:
    partial = ExportTracePartialSuccess(rejected_spans=rejected, error_message=message)
    return bytes(ExportTraceServiceResponse(partial_success=partial).SerializeToString())


STATUS = Status(code=8, message="the tenant's\nquota is used up").SerializeToString()


@pytest.mark.parametrize(
    ("behaviour", "reply"),
    {
        "success": (answer("200 OK"), Reply(DELIVERED)),
        "accepted": (answer("202 Accepted"), Reply(DELIVERED)),
        "no content": (raw(head("204 No Content")), Reply(DELIVERED)),
        "partial": (
            answer("200 OK", body=response(5, "too old")),
            Reply(DELIVERED, "too old", rejected=5),
        ),
        "warning": (
            answer("200 OK", body=response(0, "use v2")),
            Reply(DELIVERED, "use v2"),
        ),
        "compressed": (
            answer("200 OK", "Content-Encoding: gzip", body=gzip.compress(response(5, "old"))),
            Reply(DELIVERED, "old", rejected=5),
        ),
        "bad request": (
            answer("400 Bad Request", body=STATUS),
            Reply(REJECTED, "HTTP 400 Bad Request: the tenant's quota is used up"),
        ),
        "unauthorized": (
            answer("401 Unauthorized", body=b"no\x00key", content_type="Content-Type: text/plain"),
            Reply(REJECTED, "HTTP 401 Unauthorized: no key"),
        ),
        "not found": (
            answer("404 Not Found", body=PAGE, content_type="Content-Type: text/html"),
            Reply(REJECTED, "HTTP 404 Not Found"),
        ),
        "request timeout": (
            answer("408 Request Timeout"),
            Reply(REJECTED, "HTTP 408 Request Timeout"),
        ),
        "server error": (
            answer("500 Internal Server Error", body=b"\xff\xff"),
            Reply(REJECTED, "HTTP 500 Internal Server Error"),
        ),
        "not implemented": (
            answer("501 Not Implemented"),
            Reply(REJECTED, "HTTP 501 Not Implemented"),
        ),
        "no reason": (raw(head("500", "Content-Length: 0")), Reply(REJECTED, "HTTP 500")),
        "early": (early, Reply(REJECTED, "HTTP 413 Content Too Large")),
        "too many": (
            answer("429 Too Many Requests", "Retry-After: 7"),
            Reply(RETRY, "HTTP 429 Too Many Requests", retry_after_s=7.0),
        ),
        "too many, without a time": (
            answer("429 Too Many Requests", body=STATUS),
            Reply(RETRY, "HTTP 429 Too Many Requests: the tenant's quota is used up"),
        ),
        "bad gateway": (answer("502 Bad Gateway"), Reply(RETRY, "HTTP 502 Bad Gateway")),
        "unavailable": (
            answer("503 Service Unavailable", "Retry-After: soon"),
            Reply(RETRY, "HTTP 503 Service Unavailable"),
        ),
        "gateway timeout": (
            answer("504 Gateway Timeout", "Retry-After: 0"),
            Reply(RETRY, "HTTP 504 Gateway Timeout", retry_after_s=0.0),
        ),
    }.values(),
)  # fmt: skip
async def test_status_and_body_of_an_answer_decide(behaviour: Behaviour, reply: Reply) -> None:
    assert await one(behaviour) == reply


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "307 Temporary Redirect", "308 X"])
async def test_redirect_is_not_followed_but_named(status: str) -> None:
    reply = await one(answer(status, "Location: http://elsewhere/v1/traces"))
    assert reply.verdict is REJECTED
    assert "a redirect to http://elsewhere/v1/traces, which is not followed" in reply.text


@pytest.mark.parametrize(
    "behaviour",
    [
        answer("200 OK", body=PAGE, content_type="Content-Type: text/html"),
        answer("200 OK", body=b"\xff" * 30),
        answer("200 OK", body=b'{"partialSuccess":{}}'),
        raw(head("200 OK", "Content-Length: 100") + b"cut", close=True),
        answer("200 OK", "Content-Encoding: gzip", body=b"no gzip"),
        answer("200 OK", "Content-Encoding: gzip", body=gzip.compress(bytes(50_000_000))),
        endless,
    ],
    ids=["page", "garbage", "json", "cut", "no gzip", "bomb", "endless"],
)
async def test_accepted_request_is_never_repeated_whatever_its_answer_is(
    monkeypatch: pytest.MonkeyPatch, behaviour: Behaviour
) -> None:
    monkeypatch.setattr(module, "MAX_BODY_S", 1e6)  # a long answer ends by its length
    reply = await one(behaviour, limit_s=None)
    assert (reply.verdict, reply.rejected) == (DELIVERED, 0)
    assert reply.text.startswith("the answer ")


@pytest.mark.parametrize("status", ["200 OK", "503 Service Unavailable"])
async def test_answer_whose_body_does_not_come_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    monkeypatch.setattr(module, "MAX_BODY_S", 0.1)
    reply = await one(hanging(head(status, "Content-Length: 9") + b"part"))
    assert reply.verdict is (DELIVERED if status == "200 OK" else RETRY)


@pytest.mark.parametrize(
    "behaviour",
    [
        closing(after_request=False),
        closing(after_request=True),
        raw(b"HTTP/1.1 200", close=True),
        raw(b"HTTP/1.1 200 OK\r\nContent-Length:", close=True),
        raw(b"SSH-2.0-OpenSSH_9.2\r\n\r\n", close=True),
        raw(b"\x00\x00\x06\x04\x00\x00\x00\x00\x00" * 9, close=True),  # HTTP/2
        raw(b"HTTP/1.1 200 OK\r\n" + b"x" * 1_000_000, close=True),
    ],
)
async def test_connection_without_an_answer_is_retried(behaviour: Behaviour) -> None:
    reply = await one(behaviour)
    assert reply.verdict is RETRY
    assert reply.text
    assert reply.retry_after_s is None


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("", None),
        ("120", 120.0),
        (" 3 ", 3.0),
        ("-1", None),
        ("1.5", None),
        ("٣", None),
        (formatdate(1_000_060, usegmt=True), 60.0),
        (formatdate(900_000, usegmt=True), 0.0),
        (formatdate(1_000_060), 60.0),  # -0000: the zone is not known
        ("Wed, 99 Foo 2026", None),
        ("9" * 500, math.inf),
    ],
)
def test_retry_after_is_a_number_or_a_date(value: str | None, seconds: float | None) -> None:
    assert retry_after_s(value, 1_000_000.0) == seconds

"""OTLP over HTTP: requests, connections that fail, and what answers of a collector mean."""

from __future__ import annotations

import gzip
import math
import socket
import threading
import zlib
from email.utils import formatdate

import pytest
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]

from orch_sidecar.observability.otlp import http_transport as module
from orch_sidecar.observability.otlp.delivery import Reply, Verdict
from orch_sidecar.observability.otlp.http_transport import USER_AGENT, retry_after_s
from tests.orch_sidecar.observability.otlp.collectors import (
    LONG_S,
    Behaviour,
    answer,
    early,
    endless,
    head,
    http_receiver,
    raw,
    response,
    sent_to,
    transport_to,
)


async def one(
    behaviour: Behaviour, body: bytes = b"spans", limit_s: float | None = LONG_S
) -> Reply:
    """Sends one request to a collector that does this."""
    async with http_receiver(behaviour) as receiver:
        return await sent_to(receiver.port, body=body, limit_s=limit_s)


LARGE = bytes(range(256)) * 4096  # 1 MiB
DELIVERED, RETRY, REJECTED = Verdict.DELIVERED, Verdict.RETRY, Verdict.REJECTED


@pytest.mark.parametrize(
    "behaviour",
    [
        raw(then="hang"),
        raw(b"HTTP/1.1 200 OK\r\n", then="hang"),
        raw(reads="nothing", then="hang"),
    ],
)
async def test_collector_that_hangs_is_a_retry_when_the_time_is_over(behaviour: Behaviour) -> None:
    reply = await one(behaviour, LARGE * 8, limit_s=0.2)
    assert reply == Reply(RETRY, "no answer within 0.2 s")


async def test_connection_is_kept_and_replaced_when_the_collector_closes_it() -> None:
    answers = answer("200 OK"), answer("200 OK", then="close"), answer("200 OK")
    async with http_receiver(*answers) as receiver, transport_to(receiver.port) as transport:
        verdicts = [(await transport.send(b"spans", LONG_S)).verdict for _ in range(5)]
        assert verdicts[:2] == [DELIVERED] * 2
        assert verdicts[-1] is DELIVERED
        assert set(verdicts) <= {DELIVERED, RETRY}  # it may be in use when it is closed
        assert receiver.connections == 2


async def test_request_is_what_the_specification_demands() -> None:
    async with http_receiver(answer("200 OK")) as receiver:
        await sent_to(receiver.port, HEADERS="authorization=Bearer%20a,x-Scope=1")
        ((fields, body),) = receiver.requests
        assert fields[""] == "POST /v1/traces HTTP/1.1"
        assert fields["content-type"] == "application/x-protobuf"
        assert fields["content-length"] == "5"
        assert fields["user-agent"] == USER_AGENT
        assert fields["authorization"] == "Bearer a"
        assert fields["x-scope"] == "1"
        assert not fields.keys() & {"content-encoding", "transfer-encoding", "cookie", "expect"}
        assert body == b"spans"


async def test_path_and_query_of_the_variable_of_traces_are_used_as_they_are() -> None:
    async with http_receiver(answer("200 OK")) as receiver:
        for path, target in (("/a%2Fb?c=%41", "/a%2Fb?c=%41"), ("", "/")):
            url = f"http://me:pass%20word@127.0.0.1:{receiver.port}{path}"
            async with transport_to(TRACES_ENDPOINT=url) as transport:
                assert "pass" not in transport.address
                await transport.send(b"", LONG_S)
            fields = receiver.requests[-1][0]
            assert fields[""] == f"POST {target} HTTP/1.1"
            assert fields["authorization"] == "Basic bWU6cGFzcyB3b3Jk"


async def test_gzip_and_deflate_are_those_of_http_and_made_in_a_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads = []
    original = module._compressed

    def compressed(*parts: object) -> bytes:
        threads.append(threading.get_ident())
        return original(*parts)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "_compressed", compressed)
    for name, unpack in (("gzip", gzip.decompress), ("deflate", zlib.decompress)):
        async with (
            http_receiver(answer("200 OK")) as receiver,
            transport_to(receiver.port, COMPRESSION=name) as transport,
        ):
            await transport.send(await transport.prepare(LARGE), LONG_S)
            ((fields, body),) = receiver.requests
            assert fields["content-encoding"] == name
            assert (unpack(body), len(body) < len(LARGE) / 9) == (LARGE, True)
    assert len(threads) == 2
    assert threading.get_ident() not in threads


async def test_cookies_of_a_collector_are_not_kept() -> None:
    async with (
        http_receiver(answer("200 OK", "Set-Cookie: a=b")) as receiver,
        transport_to(ENDPOINT=f"http://localhost:{receiver.port}") as transport,
    ):
        for _ in range(2):
            await transport.send(b"", LONG_S)
        assert "cookie" not in receiver.requests[1][0]


async def test_proxy_of_the_environment_is_used_but_for_hosts_without_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with http_receiver(answer("200 OK")) as proxy:
        monkeypatch.setenv("http_proxy", f"http://user:key@127.0.0.1:{proxy.port}")
        monkeypatch.setenv("no_proxy", "127.0.0.1,.local")
        assert await sent_to(ENDPOINT="http://collector.invalid:4318") == Reply(DELIVERED)
        fields = proxy.requests[0][0]
        assert fields[""] == "POST http://collector.invalid:4318/v1/traces HTTP/1.1"
        assert fields["proxy-authorization"] == "Basic dXNlcjprZXk="
        async with http_receiver(answer("200 OK")) as receiver:
            await sent_to(receiver.port)
            assert (len(receiver.requests), len(proxy.requests)) == (1, 1)


@pytest.mark.parametrize(
    ("no_proxy", "direct"),
    [
        ("a.b, 127.0.0.0/8", True),
        ("127.0.0.3/8", True),
        ("127.0.0.1/32", True),
        ("10.0.0.0/8,::/0,300.0.0.0/8,/", False),
    ],
)
async def test_network_without_a_proxy_is_reached_directly(
    monkeypatch: pytest.MonkeyPatch, no_proxy: str, direct: bool
) -> None:
    async with http_receiver(answer("200 OK")) as proxy, http_receiver(answer("200 OK")) as own:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.port}")
        monkeypatch.setenv("no_proxy", no_proxy)
        assert await sent_to(own.port) == Reply(DELIVERED)
        assert (len(own.requests), len(proxy.requests)) == (int(direct), int(not direct))


@pytest.mark.parametrize(
    ("scheme", "behaviour", "error"),
    [("http", raw(b"no HTTP\r\n\r\n"), "400 Bad status line"), ("https", early, "413 Content")],
)
async def test_error_names_no_password_of_a_proxy_and_no_query(
    monkeypatch: pytest.MonkeyPatch, scheme: str, behaviour: Behaviour, error: str
) -> None:
    async with http_receiver(behaviour) as proxy:
        monkeypatch.setenv(f"{scheme}_proxy", f"http://user:secret@127.0.0.1:{proxy.port}")
        reply = await sent_to(TRACES_ENDPOINT=f"{scheme}://a.invalid/?key=secret")
        assert error in reply.text
        assert "secret" not in reply.text


async def test_collector_that_is_not_there_is_a_retry() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        for endpoint in (f"http://127.0.0.1:{closed.getsockname()[1]}", "http://no.such.invalid"):
            reply = await sent_to(ENDPOINT=endpoint)
            assert reply.verdict is RETRY
            assert "Connect" in reply.text


async def test_name_server_that_hangs_holds_neither_the_loop_nor_the_end_of_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads, answered = [], threading.Event()

    def hang(*_: object, **__: object) -> None:
        threads.append(threading.current_thread())
        answered.wait()
        raise socket.gaierror("no such name")

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    async with transport_to(ENDPOINT="http://no.such.invalid") as transport:
        for _ in range(2):
            assert await transport.send(b"", 0.1) == Reply(RETRY, "no answer within 0.1 s")
    assert [thread.daemon for thread in threads] == [True]  # the second waits for the same answer
    answered.set()
    threads[0].join()


async def test_transport_that_sent_nothing_is_closed() -> None:
    async with transport_to():
        pass


PAGE = b"<!DOCTYPE html><html><body>It works!</body></html>"
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
        raw(head("200 OK", "Content-Length: 100") + b"cut", then="close"),
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
    reply = await one(raw(head(status, "Content-Length: 9") + b"part", then="hang"))
    assert reply.verdict is (DELIVERED if status == "200 OK" else RETRY)


@pytest.mark.parametrize(
    "behaviour",
    [
        raw(reads="nothing", then="close"),
        raw(then="close"),
        raw(b"HTTP/1.1 200", then="close"),
        raw(b"HTTP/1.1 200 OK\r\nContent-Length:", then="close"),
        raw(b"SSH-2.0-OpenSSH_9.2\r\n\r\n", then="close"),
        raw(b"\x00\x00\x06\x04\x00\x00\x00\x00\x00" * 9, then="close"),  # HTTP/2
        raw(b"HTTP/1.1 200 OK\r\n" + b"x" * 1_000_000, then="close"),
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

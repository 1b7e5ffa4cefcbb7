"""OTLP over HTTP: requests, and connections that fail."""

from __future__ import annotations

import gzip
import socket
import threading
import zlib

import pytest

from orch_sidecar.observability.otlp import http_transport as module
from orch_sidecar.observability.otlp.delivery import Reply, Verdict
from orch_sidecar.observability.otlp.http_transport import (
    USER_AGENT,
)
from tests.orch_sidecar.observability.otlp.http_receivers import (
    Behaviour,
    answer,
    deaf,
    early,
    hanging,
    http_receiver,
    raw,
)
from tests.orch_sidecar.observability.otlp.http_sending import LONG_S, one, transport_to

LARGE = bytes(range(256)) * 4096  # 1 MiB
DELIVERED, RETRY = Verdict.DELIVERED, Verdict.RETRY


@pytest.mark.parametrize("behaviour", [hanging(), hanging(b"HTTP/1.1 200 OK\r\n"), deaf])
async def test_collector_that_hangs_is_a_retry_when_the_time_is_over(behaviour: Behaviour) -> None:
    reply = await one(behaviour, LARGE * 8, limit_s=0.2)
    assert reply == Reply(RETRY, "no answer within 0.2 s")


async def test_connection_is_kept_and_replaced_when_the_collector_closes_it() -> None:
    async with http_receiver(
        answer("200 OK"), answer("200 OK", close=True), answer("200 OK")
    ) as receiver:
        transport = transport_to(receiver.port)
        verdicts = [(await transport.send(b"spans", LONG_S)).verdict for _ in range(5)]
        assert verdicts[:2] == [DELIVERED] * 2
        assert verdicts[-1] is DELIVERED
        assert set(verdicts) <= {DELIVERED, RETRY}  # it may be in use when it is closed
        assert receiver.connections == 2
        await transport.close()


async def test_request_is_what_the_specification_demands() -> None:
    async with http_receiver(answer("200 OK")) as receiver:
        transport = transport_to(receiver.port, HEADERS="authorization=Bearer%20a,x-Scope=1")
        await transport.send(b"spans", LONG_S)
        await transport.close()
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
            transport = transport_to(
                9, TRACES_ENDPOINT=f"http://me:pass%20word@127.0.0.1:{receiver.port}{path}"
            )
            assert "pass" not in transport.address
            await transport.send(b"", LONG_S)
            await transport.close()
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
        async with http_receiver(answer("200 OK")) as receiver:
            transport = transport_to(receiver.port, COMPRESSION=name)
            await transport.send(await transport.prepare(LARGE), LONG_S)
            await transport.close()
            ((fields, body),) = receiver.requests
            assert fields["content-encoding"] == name
            assert (unpack(body), len(body) < len(LARGE) / 9) == (LARGE, True)
    assert len(threads) == 2
    assert threading.get_ident() not in threads


async def test_cookies_of_a_collector_are_not_kept() -> None:
    async with http_receiver(answer("200 OK", "Set-Cookie: a=b")) as receiver:
        transport = transport_to(9, ENDPOINT=f"http://localhost:{receiver.port}")
        for _ in range(2):
            await transport.send(b"", LONG_S)
        assert "cookie" not in receiver.requests[1][0]
        await transport.close()


async def test_proxy_of_the_environment_is_used_but_for_hosts_without_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with http_receiver(answer("200 OK")) as proxy:
        monkeypatch.setenv("http_proxy", f"http://user:key@127.0.0.1:{proxy.port}")
        monkeypatch.setenv("no_proxy", "127.0.0.1,.local")
        transport = transport_to(9, ENDPOINT="http://collector.invalid:4318")
        assert await transport.send(b"", LONG_S) == Reply(DELIVERED)
        fields = proxy.requests[0][0]
        assert fields[""] == "POST http://collector.invalid:4318/v1/traces HTTP/1.1"
        assert fields["proxy-authorization"] == "Basic dXNlcjprZXk="
        await transport.close()
        async with http_receiver(answer("200 OK")) as receiver:
            direct = transport_to(receiver.port)
            await direct.send(b"", LONG_S)
            await direct.close()
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
        transport = transport_to(own.port)
        assert await transport.send(b"", LONG_S) == Reply(DELIVERED)
        await transport.close()
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
        transport = transport_to(9, TRACES_ENDPOINT=f"{scheme}://a.invalid/?key=secret")
        reply = await transport.send(b"", LONG_S)
        await transport.close()
        assert error in reply.text
        assert "secret" not in reply.text


async def test_collector_that_is_not_there_is_a_retry() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        for endpoint in (f"http://127.0.0.1:{closed.getsockname()[1]}", "http://no.such.invalid"):
            transport = transport_to(9, ENDPOINT=endpoint)
            reply = await transport.send(b"", LONG_S)
            assert reply.verdict is RETRY
            assert "Connect" in reply.text
            await transport.close()


async def test_name_server_that_hangs_holds_neither_the_loop_nor_the_end_of_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads, answered = [], threading.Event()

    def hang(*_: object, **__: object) -> None:
        threads.append(threading.current_thread())
        answered.wait()
        raise socket.gaierror("no such name")

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    transport = transport_to(9, ENDPOINT="http://no.such.invalid")
    for _ in range(2):
        assert await transport.send(b"", 0.1) == Reply(RETRY, "no answer within 0.1 s")
    await transport.close()
    assert [thread.daemon for thread in threads] == [True]  # the second waits for the same answer
    answered.set()
    threads[0].join()


async def test_transport_that_sent_nothing_is_closed() -> None:
    await transport_to(9).close()

"""What comes on a connection is the same requests in whatever pieces, within limits.

A request as the stages have it, and as aiohttp has it.
"""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from orch_sidecar.wire import client_request
from orch_sidecar.wire.client_request import MOST_AHEAD, ClientRequest, RequestParser
from orch_sidecar.wire.unreadable import UNREADABLE

CHAT = "/v1/chat/completions"
HEAD = f"POST {CHAT} HTTP/1.1\r\nHost: h\r\n"
SMALL = b"GET /livez HTTP/1.1\r\nHost: h\r\n\r\n"
REQUESTS = b"".join(
    (
        f"{HEAD}Content-Length: 5\r\nX-Empty:\r\n\r\nhello".encode(),
        b"\r\n",
        f"{HEAD}Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n".encode(),
        b"1\r\nd\r\n0\r\nHost: x\r\n\r\n",
        b"GET /livez HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
        b"GET http://other/v1/models?a=b HTTP/1.1\r\nhost: h\r\nX-A:  b \t\r\n\r\n",
    )
)
READ = [
    ("POST", CHAT, True, True, {"Host": "h", "Content-Length": "5", "X-Empty": ""}, b"hello"),
    ("POST", CHAT, True, True, {"Host": "h", "Transfer-Encoding": "chunked"}, b"abcd"),
    ("GET", "/livez", False, True, {"Connection": "keep-alive"}, b""),
    ("GET", "http://other/v1/models?a=b", True, True, {"host": "h", "X-A": "b"}, b""),
]


def parser(max_line_bytes: int = 16_384) -> RequestParser:
    return RequestParser(MagicMock(_reading_paused=False), max_line_bytes)


def body_of(request: ClientRequest) -> bytes:
    assert request.complete
    return request.body if request.stream is None else request.stream.read_nowait()


def read(request: ClientRequest) -> tuple[Any, ...]:
    assert request.malformed is None
    return (
        request.method, request.target, request.http11, request.keep_alive, dict(request.headers),
        body_of(request),
    )  # fmt: skip


@given(st.sets(st.integers(1, len(REQUESTS) - 1)))
async def test_requests_are_the_same_in_whatever_pieces_they_come(cuts: set[int]) -> None:
    parsed = parser()
    edges = [0, *sorted(cuts), len(REQUESTS)]
    for begin, end in pairwise(edges):
        parsed.parse(REQUESTS[begin:end])
    assert list(map(read, parsed.ready)) == READ


async def test_large_body_and_what_follows_it_come_in_slices() -> None:
    body = bytes(range(256)) * 1000
    parsed = parser()
    parsed.parse_slices(f"{HEAD}Content-Length: {len(body)}\r\n\r\n".encode() + body + SMALL)
    first, second = parsed.ready
    assert body_of(first) == body
    assert second.target == "/livez"


def test_of_many_requests_in_one_read_some_are_held() -> None:
    parsed, many = parser(), 3_000
    parsed.parse_slices(SMALL * many)
    assert parsed.is_full
    assert len(parsed.ready) <= MOST_AHEAD + client_request.SLICE_BYTES // len(SMALL) + 1
    served = 0
    while parsed.ready:
        parsed.ready.popleft()
        served += 1
        parsed.go_on()
    assert served == many
    assert not parsed.is_full


@pytest.mark.parametrize(
    ("fields", "rest"),
    [
        ("Content-Length: 5\r\n", b"hello"),
        ("Transfer-Encoding: chunked\r\n", b"5\r\nhello\r\n0\r\n\r\n"),
    ],
)
@pytest.mark.parametrize("at_once", [True, False])
async def test_body_of_a_request_that_offers_another_protocol_is_read(
    fields: str, rest: bytes, at_once: bool
) -> None:
    """llhttp leaves it to that protocol, which is not served."""
    parsed = parser()
    offer = "Connection: Upgrade\r\nUpgrade: h2c\r\n"
    head = f"{HEAD}{offer}{fields}\r\n".encode()
    for part in (head + rest,) if at_once else (head, rest[:3], rest[3:]):
        parsed.parse(part)
    [request] = parsed.ready
    assert (body_of(request), request.keep_alive) == (b"hello", False)
    assert request.headers["Upgrade"] == "h2c"


def test_tunnel_to_a_path_is_a_request_that_ends_the_connection() -> None:
    parsed = parser()
    parsed.parse(f"CONNECT {CHAT} HTTP/1.1\r\nHost: h\r\n\r\n".encode() + SMALL)
    [request] = parsed.ready
    assert (request.method, request.complete, request.keep_alive) == ("CONNECT", True, False)
    assert parsed.ended


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "Host is missing"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nhost: b\r\n\r\n", "host is there twice"),
        (b"GET a HTTP/1.1\r\nHost: a\r\n\r\n", "Invalid characters in url"),
        (b"GET http:// HTTP/1.1\r\nHost: a\r\n\r\n", "its target is not a URL"),
        (b"GET http://[/ HTTP/1.1\r\nHost: a\r\n\r\n", "its target is not a URL"),
        (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"A: b\r\n" * 200 + b"\r\n", "more than 128 fields"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nA: " + b"b" * 2000 + b"\r\n\r\n", "more than 1024 bytes"),
        (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"b" * 2000 + b": 1\r\n\r\n", "more than 1024 bytes"),
        (b"GET /" + b"b" * 2000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", "more than 1024 bytes"),
        (
            b"GET / HTTP/1.1\r\nHost: a\r\n" + b"A: %b\r\n" % (b"b" * 90) * 50 + b"\r\n",
            "4096 bytes",
        ),
        (b"nothing\r\n\r\n", "Invalid method encountered"),
    ],
)
def test_what_is_not_a_request_is_refused_and_ends_the_connection(data: bytes, says: str) -> None:
    parsed = parser(1024)
    parsed.parse(data)
    [request] = parsed.ready
    assert request.malformed is not None
    assert says in request.malformed.message
    assert not request.keep_alive


@pytest.mark.parametrize(
    "framing",
    [
        *(
            f"Content-Length: {length}"
            for length in (2**64, 10**30, "-1", "+5", "5, 5", "5, 6", "0x5", "5_0", "")
        ),
        "Content-Length: 5\r\nContent-Length: 5",
        "Content-Length: 5\r\nContent-Length: 6",
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
        "Content-Length: 1e3",
        "Content-Length : 3",
        "X-A: 1\r\n folded: 2",
        "X-A: 1\r\nX\0B: 2",
        "X-A: a\rX-Orch-Lease: 1",
    ],
)
def test_framing_that_is_in_doubt_is_refused_and_ends_the_connection(framing: str) -> None:
    parsed = parser()
    parsed.parse(f"{HEAD}{framing}\r\n\r\n".encode() + SMALL)
    [request] = parsed.ready
    assert request.malformed is not None
    assert not request.keep_alive


def test_head_that_does_not_end_is_refused_at_its_limit() -> None:
    parsed = parser(1024)
    parsed.parse(b"GET / HTTP/1.1\r\nHost: a\r\n")
    for _ in range(250):
        parsed.parse(b"A: " + b"b" * 97)
        if parsed.ended:
            break
        assert not parsed.ready
    [request] = parsed.ready
    assert request.malformed is not None
    assert "its head has more than 4096 bytes" in request.malformed.message


async def test_head_behind_a_body_is_not_charged_for_it() -> None:
    parsed = parser(1024)
    parsed.parse(f"{HEAD}Content-Length: 6000\r\n\r\n".encode() + bytes(6000) + SMALL[:9])
    parsed.parse(SMALL[9:])
    assert [each.malformed for each in parsed.ready] == [None, None]


@pytest.mark.parametrize("begin", [b"3;", b"3\r\nabc\r\n0\r\n", b"3\r\nabc\r\n0\r\nX: "])
async def test_chunks_and_trailers_that_do_not_end_are_refused(begin: bytes) -> None:
    """A trailer would be kept, in no budget."""
    parsed, piece = parser(1024), b"y" * 100
    parsed.parse(f"{HEAD}Transfer-Encoding: chunked\r\n\r\n".encode() + begin)
    for _ in range(250):
        parsed.parse(piece)
    [request] = parsed.ready
    assert request.malformed is not None
    assert "its chunks or trailers have more than 4096 bytes" in request.malformed.message


async def test_many_chunks_that_come_slowly_are_one_body() -> None:
    parsed, many = parser(1024), 10_000
    parsed.parse(f"{HEAD}Transfer-Encoding: chunked\r\n\r\n".encode())
    for _ in range(many):
        parsed.parse(b"1\r\n")
        parsed.parse(b"a")
        parsed.parse(b"\r\n")
    parsed.parse(b"0\r\n\r\n")
    [request] = parsed.ready
    assert body_of(request) == b"a" * many


async def test_broken_body_fails_whoever_reads_it() -> None:
    parsed = parser()
    parsed.parse(f"{HEAD}Transfer-Encoding: chunked\r\n\r\n2\r\nab".encode())
    request = parsed.ready.popleft()  # it is being served
    parsed.parse(b"c")
    assert request.malformed is None
    assert not request.keep_alive
    with pytest.raises(UNREADABLE) as raised:
        await request.content.readany()
    assert isinstance(raised.value, web.RequestPayloadError)
    assert not parsed.ready


BODY = b'{"model": "m"}'


def parsed(target: str, *fields: str, version: str = "1.1") -> ClientRequest:
    protocol: Any = SimpleNamespace(
        transport=object(),
        peername=("192.0.2.7", 1),
        sockname=None,
        ssl_context=None,
        resume_reading=MagicMock(),
    )
    lines = [f"POST {target} HTTP/{version}", "Host: h", f"Content-Length: {len(BODY)}", *fields]
    parser = RequestParser(protocol, 16_384)
    parser.parse("\r\n".join(lines).encode() + b"\r\n\r\n" + BODY)
    [request] = parser.ready
    return request


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        ("/v1/responses/a%2Fb", "/v1/responses/a%2Fb", ""),
        ("/v1/responses/a?stream=true", "/v1/responses/a", "stream=true"),
        ("http://other/v1/responses/a?x=1", "/v1/responses/a", "x=1"),
    ],
)
async def test_target_is_kept_as_it_was_sent_and_read_without_a_host(
    target: str, path: str, query: str
) -> None:
    request = parsed(target)
    assert request.target == target
    assert request.rel_url.raw_path == path
    assert request.rel_url.raw_path_qs == (f"{path}?{query}" if query else path)
    assert request.for_aiohttp().rel_url == request.rel_url


@pytest.mark.parametrize(
    ("fields", "version", "keep_alive"),
    [
        ((), "1.1", True),
        (("Connection: close",), "1.1", False),
        ((), "1.0", False),
        (("Connection: Upgrade", "Upgrade: h2c"), "1.1", False),
    ],
)
async def test_connection_is_kept_unless_its_client_closes_it_or_asks_for_an_upgrade(
    fields: tuple[str, ...], version: str, keep_alive: bool
) -> None:
    request = parsed("/", *fields, version=version)
    assert request.keep_alive is keep_alive
    assert request.for_aiohttp().keep_alive is keep_alive


async def test_aiohttp_has_the_same_request_once() -> None:
    request = parsed("/v1/files", "X-Field: a", "x-field: b")
    request.keep_alive = False  # it became the last one of its connection
    of_aiohttp = request.for_aiohttp()
    assert of_aiohttp is request.for_aiohttp()
    assert of_aiohttp.headers is request.headers
    assert of_aiohttp.headers.getall("X-Field") == ["a", "b"]
    assert (of_aiohttp.method, of_aiohttp.keep_alive) == ("POST", False)
    assert (request.content_length, request.remote) == (len(BODY), "192.0.2.7")
    assert await of_aiohttp.read() == BODY

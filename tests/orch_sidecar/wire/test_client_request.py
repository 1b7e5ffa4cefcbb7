"""A request as the stages have it, and as aiohttp has it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from orch_sidecar.wire.client_request import ClientRequest, RequestParser

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

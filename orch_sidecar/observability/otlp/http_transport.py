"""Sends requests as OTLP over HTTP: what one attempt is, and what an answer means.

Follows no redirect: the fields of the request may hold keys, which are for the endpoint alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import ipaddress
import socket
import time
import zlib
from collections.abc import AsyncIterator
from datetime import UTC
from email.utils import parsedate_to_datetime
from functools import partial
from importlib.metadata import version
from typing import Any, Final, cast
from urllib.request import getproxies, proxy_bypass

import aiohttp
from google.protobuf.message import DecodeError
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from yarl import URL

from orch_sidecar.api.headers import (
    AUTHORIZATION,
    CONTENT_ENCODING,
    CONTENT_LENGTH,
    CONTENT_TYPE,
    RETRY_AFTER,
)
from orch_sidecar.config.file_reader import in_daemon_thread
from orch_sidecar.observability.otlp.delivery import Reply, Verdict, accepted, readable
from orch_sidecar.observability.otlp.settings import Compression, ExportSettings

PROTOBUF: Final = "application/x-protobuf"
USER_AGENT: Final = f"orch-sidecar-OTLP-Exporter-Python/{version('orch-sidecar')}"

# Too many requests, and what a proxy answers for a collector that is away; all others are final.
RETRYABLE_STATUSES: Final = frozenset({429, 502, 503, 504})

# What is written at once, and other tasks run in between: without TLS the kernel copies it in a
# fraction of a millisecond.
PIECE_BYTES: Final = 512 * 1024
TLS_PIECE_BYTES: Final = 64 * 1024

# How much of an answer's body is read, and for how long: what counts is in its head.
MAX_BODY_BYTES: Final = 64 * 1024
MAX_BODY_S: Final = 2.0

# Spans become hardly smaller with the levels above.
_COMPRESSION_LEVEL: Final = 3


class HttpTransport:
    """Posts requests to one collector, over a connection that is kept open."""

    def __init__(self, settings: ExportSettings) -> None:
        """Raises ValueError if the certificates cannot be used."""
        url = URL(settings.endpoint, encoded=settings.endpoint.isascii())
        self.address = str(url.with_user(None).with_query(None))
        self._url = url.with_user(None)
        self._compression = settings.compression
        self._fields: dict[str, str] = {CONTENT_TYPE: PROTOBUF, "User-Agent": USER_AGENT}
        if settings.compression is not Compression.NONE:
            self._fields[CONTENT_ENCODING] = settings.compression.value
        if url.user is not None:
            self._fields[AUTHORIZATION] = aiohttp.encode_basic_auth(url.user, url.password or "")
        self._fields |= {name.title(): value for name, value in settings.headers}
        self._tls = None if settings.insecure else settings.tls()
        self._proxy = _proxy(url)
        self._session: aiohttp.ClientSession | None = None

    async def prepare(self, request: bytes) -> bytes:
        if self._compression is Compression.NONE:
            return request
        # In a thread: zlib lets the event loop run.
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, _compressed, request, self._compression)

    async def send(self, prepared: bytes, timeout_s: float | None) -> Reply:
        loop = asyncio.get_running_loop()
        end = None if timeout_s is None else loop.time() + timeout_s
        try:
            async with asyncio.timeout_at(end):
                response = await self._post(prepared)
        except TimeoutError:
            return Reply(Verdict.RETRY, f"no answer within {timeout_s or 0:.1f} s")
        except (aiohttp.ClientError, OSError) as error:
            return Reply(Verdict.RETRY, readable(_text(error)))
        async with response:
            body_end = loop.time() + MAX_BODY_S
            return await _reply(response, body_end if end is None else min(end, body_end))

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _post(self, prepared: bytes) -> aiohttp.ClientResponse:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    ssl=self._tls or True,
                    resolver=aiohttp.ThreadedResolver(loop=cast(Any, _NameThreads())),
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(),
            )
        size = PIECE_BYTES if self._tls is None else TLS_PIECE_BYTES
        return await self._session.post(
            self._url,
            data=_pieces(prepared, size),
            headers=self._fields | {CONTENT_LENGTH: str(len(prepared))},
            proxy=self._proxy,
            allow_redirects=False,
        )


def _text(error: aiohttp.ClientError | OSError) -> str:
    """Describes an error without a URL, which may have keys or a proxy's password."""
    kind = type(error).__name__
    if isinstance(error, aiohttp.ClientResponseError):
        return f"{kind}: {error.status} {error.message}"
    return kind if isinstance(error, aiohttp.InvalidURL) else f"{kind}: {error}"


class _NameThreads:
    """Resolves names in daemon threads: the end of the process waits for no name server.

    Has what ThreadedResolver asks an event loop for.
    """

    async def getaddrinfo(self, host: str, port: int, **hints: int) -> list[Any]:
        look_up = partial(socket.getaddrinfo, host, port, **hints)
        return await asyncio.wrap_future(in_daemon_thread(look_up))

    async def getnameinfo(self, address: Any, flags: int) -> tuple[str, str]:
        return socket.getnameinfo(address, flags)  # of a number: asks nobody


async def _pieces(prepared: bytes, size: int) -> AsyncIterator[bytes | memoryview]:
    """Divides a body. The head is written first: aiohttp would copy the first piece behind it."""
    yield b""
    body = memoryview(prepared)
    for at in range(0, len(body), size):
        yield body[at : at + size]
        await asyncio.sleep(0)


def _compressed(request: bytes, compression: Compression) -> bytes:
    if compression is Compression.GZIP:
        return gzip.compress(request, _COMPRESSION_LEVEL, mtime=0)
    return zlib.compress(request, _COMPRESSION_LEVEL)


def _proxy(url: URL) -> str | None:
    """Returns the proxy that the environment has for this address."""
    host, proxies = url.host or "", getproxies()
    if proxy_bypass(f"{host}:{url.port}") or _in_networks(host, proxies.get("no", "")):
        return None
    return proxies.get(url.scheme) or proxies.get("all")


def _in_networks(host: str, no_proxy: str) -> bool:
    """Whether an address is in one of these networks, such as 10.0.0.0/8: urllib knows none."""
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(host)
        for each in no_proxy.split(","):
            with contextlib.suppress(ValueError):
                if address in ipaddress.ip_network(each.strip(), strict=False):
                    return True
    return False


async def _reply(response: aiohttp.ClientResponse, end: float) -> Reply:
    status = response.status
    body = await _body(response, end)
    if 200 <= status < 300:
        if body is None:
            return Reply(Verdict.DELIVERED, "the answer was cut, too long or too slow")
        return accepted(body)
    text = f"HTTP {status} {response.reason or ''}".rstrip()
    if 300 <= status < 400:
        where = response.headers.get("Location", "nowhere")
        text += f", a redirect to {where}, which is not followed: configure that endpoint"
    elif body and (message := _message(response.content_type, body)):
        text += f": {message}"
    if status not in RETRYABLE_STATUSES:
        return Reply(Verdict.REJECTED, readable(text))
    return Reply(
        Verdict.RETRY,
        readable(text),
        retry_after_s=retry_after_s(response.headers.get(RETRY_AFTER), time.time()),
    )


async def _body(response: aiohttp.ClientResponse, end: float) -> bytes | None:
    """Returns None for a body that is cut, too long or too slow."""
    body = b""
    try:
        async with asyncio.timeout_at(end):
            while piece := await response.content.read(MAX_BODY_BYTES):
                body += piece
                if len(body) > MAX_BODY_BYTES:
                    return None
    except (TimeoutError, aiohttp.ClientError, OSError):
        return None
    return body


def _message(content_type: str, body: bytes) -> str:
    """Returns the message in the body of an error; empty for a page of HTML."""
    if content_type != PROTOBUF:
        plain = content_type in ("text/plain", "application/json")
        return body.decode("utf-8", "replace") if plain else ""
    try:
        return str(Status.FromString(body).message)
    except DecodeError:
        return ""


def retry_after_s(value: str | None, now: float) -> float | None:
    """Returns the seconds in a Retry-After field: a number, or a date. `now`: Unix time.

    None if it is missing or invalid.
    """
    if value is None:
        return None
    if value.strip().isascii() and value.strip().isdecimal():
        return float(value)
    try:
        date = parsedate_to_datetime(value)
        return max(0.0, date.replace(tzinfo=date.tzinfo or UTC).timestamp() - now)
    except (ValueError, OverflowError):
        return None

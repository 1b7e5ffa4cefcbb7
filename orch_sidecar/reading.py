"""The reading of a request's body: how much of it, for how long, in which encoding.

Knows HTTP requests and limits; what a body means is read elsewhere.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Final

import aiohttp
from aiohttp import hdrs, web

from orch_sidecar.json_body import MAX_OPENED
from orch_sidecar.reasons import Reason, Refusal

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


def objection(headers: Mapping[str, str]) -> Refusal | None:
    """Why a body with these headers is not read, if so."""
    encoding = headers.get(hdrs.CONTENT_ENCODING, "identity")
    framing = headers.get(hdrs.TRANSFER_ENCODING, "chunked")
    if framing.lower() != "chunked":
        encoding = framing  # `gzip, chunked`: what the chunks hold is compressed
    if encoding.lower() == "identity":
        return None
    text = f"encoding {encoding[:40]!r} is not accepted; send the body as it is"
    return Refusal(Reason.UNSUPPORTED_ENCODING, text)


def at_once(http: web.BaseRequest, max_bytes: int) -> bytes | Refusal | None:
    """The whole body of a request that came together with its head, or why it is not read.

    None: more of it is to come, and `rest_of` waits for that.
    """
    content = http.content
    if not content.is_eof():
        return None
    try:
        body = content.read_nowait()
    except web.RequestPayloadError as error:
        return _unreadable(error)
    return body if len(body) <= max_bytes else _too_large(f"{len(body)} bytes", max_bytes)


async def rest_of(http: web.BaseRequest, max_bytes: int, timeout_s: float) -> bytes | Refusal:
    """The whole body of a request that is still arriving, or why it is not read."""
    length = http.content_length
    if length is not None and length > max_bytes:
        return _too_large(f"{length} bytes", max_bytes)
    if http.headers.get(hdrs.EXPECT, "").lower() == "100-continue":
        transport = http.transport
        if transport is not None and http.version >= aiohttp.HttpVersion11:
            transport.write(_CONTINUE)
    try:
        async with asyncio.timeout(timeout_s):
            return await _whole(http, max_bytes)
    except TimeoutError:
        text = f"the body did not arrive within {timeout_s:g} s"
        return Refusal(Reason.BODY_TIMEOUT, text)
    except web.RequestPayloadError as error:
        return _unreadable(error)


def model_of(body: bytes) -> str:
    """The model that a body names, empty where it names none or cannot be read.

    For requests without admission: what is wrong with their bodies the engine says.
    """
    if body.count(b"{") + body.count(b"[") > MAX_OPENED:
        return ""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    model = document.get("model") if isinstance(document, dict) else None
    return model if isinstance(model, str) else ""


async def _whole(http: web.BaseRequest, max_bytes: int) -> bytes | Refusal:
    """As `http.read` does it, which would keep the body for as long as the request."""
    body = bytearray()
    while part := await http.content.readany():
        body += part
        if len(body) > max_bytes:
            return _too_large("larger", max_bytes)
    return bytes(body)


def _unreadable(error: Exception) -> Refusal:
    return Refusal(Reason.INVALID_REQUEST, f"the body: {error}")


def _too_large(size: str, limit: int) -> Refusal:
    return Refusal(Reason.BODY_TOO_LARGE, f"the body is {size}, the limit is {limit} bytes")

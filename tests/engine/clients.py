"""Small clients for tests against a real stack."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from orch_sidecar.api.endpoints import ENDPOINTS, NOT_SERVED, find
from orch_sidecar.tools.local.check import OtlpReceiver
from orch_sidecar.tools.local.stack import Stack, get_json
from tests.patience import HANG_S

PATHS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
}

# What may go wrong because a client was stopped for a while is tried so often.
ATTEMPTS = 5

_TICK_S = 0.02


def body(api: str, max_tokens: int, *, stream: bool, **more: Any) -> dict[str, Any]:
    """A request that generates exactly `max_tokens` tokens (per sequence)."""
    messages = [{"role": "user", "content": "Tell me about slots."}]
    return {
        "chat": {"messages": messages, "max_tokens": max_tokens, "ignore_eos": True},
        "completions": {"prompt": "A slot is", "max_tokens": max_tokens, "ignore_eos": True},
        "responses": {"input": "A slot is", "max_output_tokens": max_tokens},
        "messages": {"messages": messages, "max_tokens": max_tokens},
    }[api] | {"model": "tiny", "stream": stream, **more}


@dataclass
class Seen:
    """What a client saw of one answer."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    data: bytes = b""
    first_byte_at: float = 0.0
    last_byte_at: float = 0.0
    error: Exception | None = None


@asynccontextmanager
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(
        connector=connector, timeout=aiohttp.ClientTimeout(total=HANG_S)
    ) as opened:
        yield opened
    await asyncio.sleep(0)  # the connector's transports close


async def post(
    http: aiohttp.ClientSession,
    url: str,
    api: str,
    document: dict[str, Any],
    headers: dict[str, str] | None = None,
    on_data: Callable[[], None] | None = None,
) -> Seen:
    """Posts, and keeps what came, also when it did not end well."""
    seen = Seen()
    try:
        async with http.post(url + PATHS[api], json=document, headers=headers) as response:
            seen.status = response.status
            seen.headers = dict(response.headers)
            async for data in response.content.iter_any():
                seen.first_byte_at = seen.first_byte_at or time.monotonic()
                seen.last_byte_at = time.monotonic()
                seen.data += data
                if on_data is not None:
                    on_data()
    except (aiohttp.ClientError, ConnectionError) as error:
        seen.error = error
    return seen


def traceparent() -> tuple[str, dict[str, str]]:
    """A trace id and the header that makes a request part of it."""
    trace_id = secrets.token_hex(16)
    return trace_id, {"traceparent": f"00-{trace_id}-{secrets.token_hex(8)}-01"}


async def engine_state(http: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    """The one engine of `/v1/capabilities`."""
    async with http.get(f"{url}/v1/capabilities") as response:
        document = await response.json()
    state: dict[str, Any] = document["engines"][0]
    return state


async def until(condition: Callable[[], Awaitable[Any]], within_s: float = HANG_S) -> float:
    """Waits for a condition; returns the seconds it took. Raises TimeoutError.

    Of these seconds those count in which this process ran: a machine that is shared stops it for
    a second at times, and the server with it.
    """

    async def holds() -> None:
        while not await condition():  # noqa: ASYNC110 (another process has no event to wait for)
            await asyncio.sleep(0.02)

    waiting = asyncio.create_task(holds())
    took_s = 0.0
    try:
        while not waiting.done():
            if took_s > within_s:
                raise TimeoutError(f"not within {within_s:g} s")
            began = time.monotonic()
            await asyncio.wait([waiting], timeout=_TICK_S)
            took_s += min(time.monotonic() - began, 2 * _TICK_S)
        await waiting
    finally:
        waiting.cancel()
    return took_s


async def all_exported(stack: Stack, receiver: OtlpReceiver) -> None:
    """Waits until the spans of all requests so far have come: each side exports in order, and
    those of one more request are the last."""
    trace_id, head = traceparent()
    async with session() as http:
        asked = body("completions", 2, stream=False)
        assert (await post(http, stack.url, "completions", asked, head)).status == 200
    spans = await asyncio.to_thread(receiver.wait, trace_id, lambda found: len(found) == 4, HANG_S)
    assert len(spans) == 4


async def is_ready(http: aiohttp.ClientSession, stack: Stack) -> bool:
    async with http.get(f"{stack.url}/readyz") as response:
        return response.status == 200


def unknown_routes(stack: Stack) -> set[str]:
    """The routes of the engine that are neither served nor in the list of those that are not."""
    _, document = get_json(f"{stack.engine_url}/openapi.json", HANG_S)
    routes = {path.replace("{response_id}", "resp_1") for path in document["paths"]}
    known = {path for path in routes if path in ENDPOINTS or find(path)}
    ours = {path for path in routes if path.startswith(("/v1/capabilities", "/v1/evidence"))}
    return routes - known - ours - NOT_SERVED.keys()

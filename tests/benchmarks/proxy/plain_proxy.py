"""A minimal aiohttp reverse proxy, as a baseline in Python.

``ClientSession`` and ``StreamResponse`` under uvloop, without access log, cookie jar or connection
limit, and without code of the sidecar. Usage: ``plain_proxy.py UPSTREAM PORT``.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator

import aiohttp
import uvloop
from aiohttp import web

HOP_BY_HOP = {
    "connection",
    "content-length",
    "host",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
}
SESSION = web.AppKey("session", aiohttp.ClientSession)
UPSTREAM = web.AppKey("upstream", str)


async def session(app: web.Application) -> AsyncIterator[None]:
    """Keeps one client session for the application's life."""
    app[SESSION] = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None),
        auto_decompress=False,
    )
    yield
    await app[SESSION].close()


async def relay(request: web.Request) -> web.StreamResponse:
    """Sends the request on and the answer back, chunk by chunk."""
    headers = {k: v for k, v in request.headers.items() if k.lower() not in HOP_BY_HOP}
    body = await request.read()
    url = request.app[UPSTREAM] + request.path_qs
    async with request.app[SESSION].request(
        request.method, url, headers=headers, data=body or None
    ) as upstream:
        response = web.StreamResponse(status=upstream.status)
        for name, value in upstream.headers.items():
            if name.lower() not in HOP_BY_HOP:
                response.headers.add(name, value)
        response.content_length = upstream.content_length
        await response.prepare(request)
        async for chunk in upstream.content.iter_any():
            await response.write(chunk)
        await response.write_eof()
        return response


def main() -> None:
    """Serves until SIGTERM."""
    app = web.Application()
    app[UPSTREAM] = sys.argv[1]
    app.cleanup_ctx.append(session)
    app.router.add_route("*", "/{path:.*}", relay)
    web.run_app(
        app,
        host="127.0.0.1",
        port=int(sys.argv[2]),
        loop=uvloop.new_event_loop(),
        access_log=None,
        print=None,
        handler_cancellation=True,
    )


if __name__ == "__main__":
    main()

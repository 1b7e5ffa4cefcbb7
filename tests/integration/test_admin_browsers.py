"""Browsers at the operators' listener: its own page may change something, and no other may."""

from __future__ import annotations

import pytest

from tests.integration.client import Client, Response
from tests.integration.running import Running

OWN_PAGE = {"Content-Type": "application/json", "X-Orch-Operator": "true"}


async def test_page_of_this_listener_may_drain_and_resume(sidecar: Running) -> None:
    """As a browser sends it from /ui, under any name of the loopback; without one of these fields
    any other page could send it, too."""
    for host in ("localhost", "127.0.0.1", "[::1]"):
        authority = f"{host}:{sidecar.sidecar.admin_port}"
        own = {"Host": authority, "Origin": f"http://{authority}", **OWN_PAGE}
        for what, drains in (("drain", True), ("resume", False)):
            path = f"/v1/pools/cloud/{what}"
            for missing in OWN_PAGE:
                fields = {name: value for name, value in own.items() if name != missing}
                refused = await raw(sidecar, "POST", path, fields, b"{}")
                assert (refused.status, refused.error["code"]) == (403, "forbidden")
            for body in (b"", b"[]", b"{" + b" " * 2000 + b"}"):
                assert (await raw(sidecar, "POST", path, own, body)).status == 403
            assert bool(sidecar.pool.admission.draining) is not drains
            assert (await raw(sidecar, "POST", path, own, b"{}")).status == 200
            assert bool(sidecar.pool.admission.draining) is drains


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("127.0.0.1:{port}", "http://evil.example"),
        ("127.0.0.1:{port}", "null"),
        ("127.0.0.1:{port}", "http://localhost:{port}"),
        ("127.0.0.1:{port}", "https://127.0.0.1:{port}"),
        ("127.0.0.1:{port}", "http://127.0.0.1:3000"),
        # Its own origin, by a name that was made to resolve to the loopback.
        ("evil.example:{port}", "http://evil.example:{port}"),
        ("localhost.evil.example", "http://localhost.evil.example"),
    ],
)
async def test_no_other_page_may_whatever_else_it_sends(
    sidecar: Running, host: str, origin: str
) -> None:
    port = sidecar.sidecar.admin_port
    fields = {"Host": host.format(port=port), "Origin": origin.format(port=port), **OWN_PAGE}
    for path in ("/v1/pools/cloud/drain", "/v1/pools/cloud/resume", "/v1/live", "/ui"):
        method = "POST" if "pools" in path else "GET"
        refused = await raw(sidecar, method, path, fields, b"{}" if method == "POST" else b"")
        assert (refused.status, refused.error["code"]) == (403, "forbidden")
    assert not sidecar.pool.admission.draining


async def raw(
    running: Running, method: str, path: str, fields: dict[str, str], body: bytes
) -> Response:
    """A request to the operators' listener with these fields and no others."""
    client = await Client.connect(running.sidecar.admin_port)
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    lines.append(f"Content-Length: {len(body)}")
    client.send("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
    response = await client.response(method)
    await client.close()
    return response

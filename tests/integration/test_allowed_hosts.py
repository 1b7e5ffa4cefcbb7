"""By which names the clients' listener may be called: not by those of pages that resolve to it.

Browsers state the page's name in `Host`, and no `Origin` where page and listener have one name.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from tests.integration.client import CHAT, Client, Response, body_of
from tests.integration.keyed import KeyRing
from tests.integration.running import Running, Start, eventually
from tests.integration.scripted_engine import ScriptedEngine

PROBES = ("/livez", "/readyz", "/healthz", "/health")


async def called(
    running: Running,
    host: str | None,
    path: str = "/v1/models",
    *,
    post: bool = False,
    headers: str = "",
) -> Response:
    """The answer to a request with this `Host`, on a connection of its own. None: an old client's
    without one."""
    client = await Client.connect(running.port)
    content, method = (json.dumps(body_of(path)).encode(), "POST") if post else (b"", "GET")
    version, name = ("1.0", "") if host is None else ("1.1", f"Host: {host}\r\n")
    head = (
        f"{method} {path} HTTP/{version}\r\n{name}{headers}"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    client.send(head.encode() + content)
    response = await client.response(method)
    await client.close()
    return response


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "10.1.2.3", None])
async def test_sidecar_of_one_machine_answers_to_the_loopback_and_to_addresses(
    sidecar: Running, host: str | None
) -> None:
    name = None if host is None else f"{host}:{sidecar.port}"
    assert (await called(sidecar, name, CHAT, post=True)).status == 200
    for path in ("/v1/models", "/v1/capabilities", "/metrics", "/ui", *PROBES):
        assert (await called(sidecar, name, path)).status == 200


async def test_page_with_a_rebound_name_gets_nothing_but_probes(
    sidecar: Running, engine: ScriptedEngine
) -> None:
    evil = f"evil.example:{sidecar.port}"
    received = len(engine.received)
    for path in (CHAT, "/v1/messages"):
        refused = await called(sidecar, evil, path, post=True)
        assert refused.status == 403
        assert "ORCH_ALLOWED_HOSTS" in refused.error["message"]
    for path in ("/", "/ui", "/metrics", "/v1/models", "/v1/capabilities", "/v1/live", "/nowhere"):
        refused = await called(sidecar, evil, path)
        assert (refused.status, refused.error["code"]) == (403, "forbidden")
    leases = await called(sidecar, evil, "/v1/capabilities/stream?instance=x")
    assert leases.status == 403
    for path in PROBES:
        assert (await called(sidecar, evil, path)).status == 200
    assert len(engine.received) == received
    metrics = await sidecar.metrics()
    counted = [name for name in metrics if name.startswith("orch_requests_total{")]
    assert any('outcome="forbidden"' in name and CHAT in name for name in counted)


async def test_configured_names_are_answered_and_keys_do_not_replace_them(
    start: Start, tmp_path: Path
) -> None:
    ring = KeyRing(tmp_path)
    ring.add("alice")
    for settings in ({}, {"api_keys_file": ring.path}):
        running = await start(allowed_hosts=["orch.example"], **settings)
        name, key = ring.bearer("alice")
        for host, expected in (("orch.example", 200), ("evil.example", 403)):
            found = await called(running, host, headers=f"{name}: {key}\r\n")
            assert found.status == expected


async def test_check_ends_when_keys_come(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orch_sidecar.app.reloader.CHECK_EVERY_S", 0.02)
    ring = KeyRing(tmp_path)
    running = await start(api_keys_file=ring.path, api_keys_required=False)
    assert (await called(running, "orch.example")).status == 403
    ring.add("alice")
    await eventually(lambda: running.sidecar.reloader._authorizer.requires_keys)
    name, key = ring.bearer("alice")
    assert (await called(running, "orch.example")).status == 401
    assert (await called(running, "orch.example", headers=f"{name}: {key}\r\n")).status == 200


async def test_start_warns_of_names_unless_they_are_checked_or_keys_needed(
    start: Start, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    ring = KeyRing(tmp_path)
    ring.add("alice")
    with caplog.at_level(logging.WARNING):
        await start()
        await start(host="0.0.0.0", allowed_hosts=["orch"])
        await start(host="0.0.0.0", api_keys_file=ring.path)
        assert not [each for each in caplog.messages if "ORCH_ALLOWED_HOSTS" in each]
        await start(host="0.0.0.0")
    [warning] = [each for each in caplog.messages if "ORCH_ALLOWED_HOSTS" in each]
    assert "web page" in warning

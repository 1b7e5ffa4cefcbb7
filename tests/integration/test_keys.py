"""Clients with API keys, and others: which are served, what is guarded, and where keys end."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from orch_sidecar.api.endpoints import ENDPOINTS, STREAM, WITHOUT_KEY
from orch_sidecar.auth.keys import new_key
from tests.integration.cancelling import new_id
from tests.integration.client import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from tests.integration.held import Held, started
from tests.integration.keyed import KeyRing
from tests.integration.otlp import Collect
from tests.integration.running import Running, Start, eventually, total
from tests.integration.scripted_engine import ScriptedEngine
from tests.integration.tiers import empty, tier

NOBODYS = new_key(b"n" * 32)


@pytest.fixture
def ring(tmp_path: Path) -> KeyRing:
    ring = KeyRing(tmp_path)
    ring.add("alice")
    ring.add("bob")
    ring.add("prometheus", metrics=True)
    return ring


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES, MESSAGES])
async def test_key_opens_as_bearer_and_as_x_api_key_and_goes_no_further(
    keyed: Running, ring: KeyRing, engine: ScriptedEngine, path: str
) -> None:
    client = await keyed.client()
    for header in (ring.bearer("alice"), ring.x_api_key("alice")):
        assert (await client.post(path, [header])).status == 200
        assert (await client.post(path, [header], stream=True)).status == 200
        if path in (CHAT, COMPLETIONS):
            assert (await client.post(path, [header], temperature=0)).status == 200  # shared
    assert (await client.get("/v1/models", [ring.bearer("alice")])).status == 200
    assert (await client.get("/metrics/engine", [ring.bearer("prometheus")])).status == 200
    assert len(engine.received) >= 6
    for request in engine.received:
        assert request.header("authorization") is None
        assert request.header("x-api-key") is None
        for key in ring.keys.values():
            assert key.encode() not in request.head + request.body


async def test_all_is_guarded_but_probes_and_metrics(keyed: Running, ring: KeyRing) -> None:
    client = await keyed.client()
    for path, route in ENDPOINTS.items():
        body = b"{}" if route.method == "POST" else None
        status = (await client.request(route.method, path, body)).status
        assert (status == 401) == (path not in WITHOUT_KEY), path
    others = [("GET", "/nowhere"), ("GET", "/v1/pools/cloud/health"), ("GET", "//metrics")]
    others += [("DELETE", "/v1/capabilities/leases/x"), ("POST", f"/v1/requests/{new_id()}/cancel")]
    for method, path in others:
        assert (await client.request(method, path)).status == 401, path
    alice = [ring.bearer("alice")]
    assert (await client.get("/v1/capabilities", alice)).status == 200
    assert (await client.get("/v1/pools/cloud/health", alice)).status == 200
    assert (await client.get("/nowhere", alice)).status == 404
    metrics = await keyed.metrics()
    refused = {"outcome": "unauthorized", "pool": "none", "route": STREAM, "status": 401}
    assert total(metrics, "orch_requests_total", **refused) == 1


async def test_key_is_in_no_log_no_span_and_no_metric(
    start: Start, ring: KeyRing, collect: Collect, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        running = await start(api_keys_file=ring.path)
        client = await running.client()
        for header in (ring.bearer("alice"), ring.x_api_key("bob"), ("x-api-key", NOBODYS)):
            await client.post(headers=[header])
            await client.post(headers=[header], temperature=0, stream=True)
            await client.post(headers=[header], n=9)
            await client.get("/nowhere", [header])
            await client.get("/v1/capabilities", [header])
        ring.remove("bob")
        await running.sidecar.reloader.reload()
        metrics = (await client.get("/metrics", [ring.bearer("prometheus")])).body
        shown = metrics + (await client.get("/readyz")).body
    collector = await collect(running)
    assert collector.spans
    assert caplog.messages
    shown += b"".join(collector.requests) + caplog.text.encode()
    for key in (*ring.keys.values(), NOBODYS):
        assert key[8:24].encode() not in shown
    for name in ring.keys:
        assert name.encode() not in b"".join(collector.requests)


async def test_sidecar_above_has_a_key_for_all_that_it_asks(
    start: Start, ring: KeyRing, held: Held
) -> None:
    """The stream of states, requests, and the leases of requests that were given up."""
    lower = await start(api_keys_file=ring.path)
    parent_leases = await start(pools=[tier(lower, api_key=ring.keys["alice"])])
    client = await started(parent_leases)
    await eventually(lambda: held.waiting)
    held.release()
    assert (await client.response()).status == 200
    gone = await started(parent_leases, seed=1)
    await eventually(lambda: held.waiting)
    await gone.close()
    await eventually(lambda: not held.waiting)
    await empty(parent_leases, lower)
    refused = await start(pools=[tier(lower, api_key=NOBODYS)], wait=False)
    await eventually(lambda: refused.sidecar.state == "unusable")
    response = await (await refused.client()).post()
    assert (response.status, response.error["code"]) == (503, "engine_refuses_key")

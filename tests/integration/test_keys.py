"""Clients with API keys, and others: which are served, what is guarded, and where keys end.

What a key may have: the class, and how many sequences at once.
"""

from __future__ import annotations

import logging

import pytest

from orch_sidecar.api.endpoints import ENDPOINTS, STREAM, WITHOUT_KEY
from orch_sidecar.auth.keys import Keys, new_key
from tests.integration.cancelling import cancel, named, new_id
from tests.integration.client import CHAT, COMPLETIONS, MESSAGES, RESPONSES, Response
from tests.integration.held import Held, started
from tests.integration.keyed import KeyRing
from tests.integration.otlp import Collect
from tests.integration.running import Running, Start, eventually, total
from tests.integration.scripted_engine import ScriptedEngine
from tests.integration.scripts import breaks_off, resets
from tests.integration.tiers import empty, tier

KEYS = {
    "alice": {},
    "bob": {},
    "two": {"concurrency": 2},
    "bulk": {"bulk": True},
    "prometheus": {"metrics": True},
}

NOBODYS = new_key(b"n" * 32)


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


def in_use(running: Running, name: str) -> int:
    guard = running.sidecar.frontend._authorizer
    held = guard.keys
    assert isinstance(held, Keys)
    return next(guard.sequences(each) for each in held if each.name == name)


async def test_key_for_bulk_is_served_as_bulk_whatever_the_body_demands(
    keyed: Running, ring: KeyRing, engine: ScriptedEngine
) -> None:
    client = await keyed.client()
    for extra in ({}, {"service_tier": "default"}, {"priority": 0}, {"service_tier": "flex"}):
        assert (await client.post(headers=[ring.bearer("bulk")], **extra)).status == 200
    header = ("X-Orch-Class", "bulk")
    assert (await client.post(headers=[ring.bearer("bulk"), header])).status == 200
    assert (await client.post(headers=[ring.bearer("alice")])).status == 200
    counts = {
        name: value
        for name, value in (await keyed.metrics()).items()
        if name.startswith("orch_admission_wait_seconds_count")
    }
    assert sorted(counts.values()) == [0, 1, 5]
    [bulk] = [name for name, value in counts.items() if value == 5]
    assert 'class="bulk"' in bulk
    assert len({request.header("x-vllm-priority") for request in engine.generating[:5]}) == 1


def assert_too_many(response: Response) -> None:
    assert (response.status, response.error["code"]) == (429, "ADMISSION_KEY_CONCURRENCY")
    assert response.error["policy_label"] == "key-concurrency"
    assert response.error["retriable"] is True
    assert int(response.header("retry-after") or "0") >= 1
    assert response.header("retry-after-ms") == str(response.error["retry_after_ms"])


@pytest.mark.parametrize("end", ["disconnect", "cancel", "refuse", "fail", "stream"])
async def test_however_a_request_ends_its_sequences_are_given_back_once(
    keyed: Running, ring: KeyRing, engine: ScriptedEngine, end: str
) -> None:
    two, held = [ring.bearer("two")], Held()

    client = await keyed.client()
    if end in ("disconnect", "cancel"):
        engine.answer = held
        request_id = new_id()
        busy = await started(keyed, headers=[*two, named(request_id)], n=2)
        await eventually(lambda: held.waiting)
        assert_too_many(await client.post(headers=two))
        if end == "disconnect":
            await busy.close()
        else:
            assert (await cancel(keyed, request_id, *two)).status == 204
            assert (await busy.response()).status == 499
    elif end == "refuse":
        response = await client.post(headers=[*two, ("X-Orch-Pool", "other")])
        assert response.status == 400
    elif end == "fail":
        engine.answer = resets
        assert (await client.post(headers=two, n=2)).status == 502
    else:
        engine.answer = breaks_off
        client.start(CHAT, two, stream=True, n=2)
        assert b"engine_failed" in (await client.response()).body
    await eventually(lambda: in_use(keyed, "two") == 0)
    await keyed.idle()
    engine.answer = held
    again = await started(keyed, headers=two, n=2)
    await eventually(lambda: held.waiting)
    assert in_use(keyed, "two") == 2
    assert_too_many(await client.post(headers=two))
    held.release_all()
    assert (await again.response()).status == 200

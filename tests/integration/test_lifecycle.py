"""Before the engine is there, while it is away, when it is the wrong one, and when it is back.

Readiness of a sidecar that clients come to, in front of others or of several engines.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.integration.client import AT_ONCE, CHAT, MESSAGES, Client
from tests.integration.readiness import assert_unavailable, readiness, state_is
from tests.integration.running import Running, Start, eventually, pools
from tests.integration.scripted_engine import ScriptedEngine
from tests.integration.tiers import tier
from tests.integration.wire import Answer
from tests.patience import HANG_S
from vllm_plugin.contracts.lease_protocol import STALE_AFTER_S


async def test_sidecar_starts_before_the_engine_and_becomes_ready_with_it(
    engine: ScriptedEngine, start: Start
) -> None:
    await engine.stop()
    running = await start(wait=False)
    await asyncio.sleep(0.05)
    not_yet = await readiness(running)
    assert not_yet.status == 503
    document = not_yet.json()
    assert (document["live"], document["ready"], document["state"]) == (True, False, "starting")
    assert "waiting for the engine" in document["last_error"]
    client = await running.client()
    for path in ("/livez", "/health"):
        assert (await client.get(path)).status == 200, path
    [entry] = (await client.get("/v1/capabilities")).json()["engines"]
    assert (entry["pool"], entry["profile"], entry["state"]) == ("cloud", "cloud", "starting")
    assert (await client.get("/metrics")).status == 200
    for path in (CHAT, MESSAGES):
        assert_unavailable(await client.post(path, AT_ONCE), "engine_starting", path)
    assert_unavailable(await client.get("/v1/models"), "engine_starting")
    await engine.start()
    await running.ready()
    now = await readiness(running)
    assert (now.status, now.json()["last_error"], now.json()["state"]) == (200, None, "ready")
    assert (await client.post()).status == 200
    for path in ("/healthz", "/health"):
        assert (await client.get(path)).status == 200


@pytest.mark.parametrize("state", ["draining", "stalled"])
async def test_engine_that_answers_but_takes_no_requests_is_healthy_and_not_ready(
    sidecar: Running, engine: ScriptedEngine, state: str
) -> None:
    """vLLM's `/health` is liveness: whoever restarts by it must not end a drain or a load."""
    engine.report(state=state)
    await state_is(sidecar, state)
    client = await sidecar.client()
    statuses = {path: (await client.get(path)).status for path in ("/health", "/healthz")}
    assert statuses == {"/health": 200, "/healthz": 503}


async def test_stream_that_is_no_http_is_reported_without_the_key_of_the_request(
    engine: ScriptedEngine,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def babble(answer: Answer) -> None:
        answer.write(b"nonsense\r\n\r\n")

    engine.api_key = "secret-of-the-engine"
    with monkeypatch.context() as patched:
        patched.setattr(engine, "_stream", babble)
        running = await start(wait=False, engine_api_key=engine.api_key)
        await state_is(running, "stale")
        page = (await readiness(running)).body.decode()
        refused = (await (await running.client()).post(CHAT, AT_ONCE)).body.decode()
        for text in (page, refused, caplog.text):
            assert "the state stream of the engine" in text
            assert engine.api_key not in text
            assert running.pool.gate.instance not in text
    await running.ready()


async def test_broken_state_stream_is_stale_at_once(
    engine: ScriptedEngine, sidecar: Running
) -> None:
    engine.faults.stream_status = 500
    for wire in list(engine.wires):
        wire.reset()
    await state_is(sidecar, "stale")
    client = await sidecar.client()
    assert_unavailable(await client.post(), "engine_stale")
    hung = await client.get("/health")
    assert (hung.status, hung.body) == (503, b"")
    await engine.stop()
    await state_is(sidecar, "down")
    assert (await client.get("/health")).status == 200, "what has ended is started again by others"


async def test_idle_engine_stays_ready(engine: ScriptedEngine, sidecar: Running) -> None:
    """Its heartbeat is enough: age is that of the last event, not of the last step."""
    watcher, loop = sidecar.pool.watcher, asyncio.get_running_loop()
    begin = loop.time()
    while loop.time() - begin < STALE_AFTER_S + 0.5:
        heard_at = watcher.heard_at
        await eventually(lambda before=heard_at: watcher.heard_at != before)  # type: ignore[misc]
        assert sidecar.sidecar.state == "ready"
    assert (await sidecar.capabilities())["age_ms"] < 1000 * (loop.time() - begin)


async def test_entry_whose_only_pool_is_away_is_ready_to_report_it(
    parent_leases: Running, lower: Running
) -> None:
    await lower.stop()
    await eventually(lambda: parent_leases.sidecar.state == "down")
    ready = await readiness(parent_leases)
    assert (ready.status, ready.json()["ready"]) == (200, True)
    assert ready.json()["state"] == "down"
    refused = await (await parent_leases.client()).post(CHAT, AT_ONCE)
    assert_unavailable(refused, "engine_down")


async def test_entry_is_not_ready_before_it_has_looked_at_each_of_its_pools(
    start: Start, lower: Running, engine: ScriptedEngine, b: ScriptedEngine
) -> None:
    silent = asyncio.Event()
    stream = b._stream

    async def late(answer: Answer) -> None:
        await silent.wait()
        await stream(answer)

    b._stream = late  # type: ignore[method-assign]
    entry = await start(pools=[tier(lower), *pools(b=b)["pools"]], wait=False)
    await eventually(lambda: entry.pool.watcher.ready)
    starting = await readiness(entry)
    assert (starting.status, starting.json()["ready"]) == (503, False)
    silent.set()
    await eventually(lambda: entry.sidecar.pools["b"].watcher.ready)
    assert (await readiness(entry)).status == 200


async def test_entry_that_starts_while_its_pools_are_away_becomes_ready(
    start: Start, engine: ScriptedEngine
) -> None:
    away = {"name": "away", "url": "http://127.0.0.1:1", "profile": "cloud", "tier": True}
    nowhere = {"name": "b", "url": "http://no-such-name.invalid:1", "profile": "cloud"}
    entry = await start(pools=[away, nowhere | {"headless": True}], wait=False)
    async with asyncio.timeout(HANG_S):
        while (ready := await readiness(entry)).status != 200:
            assert ready.json()["ready"] is False
    assert ready.json()["pools"] == {"away": "starting", "b": "absent"}


async def test_entry_that_an_operator_drains_or_that_leaves_is_not_ready(pair: Running) -> None:
    admin = await Client.connect(pair.sidecar.admin_port)
    assert (await admin.request("POST", "/v1/pools/a/drain")).status == 200
    assert (await readiness(pair)).status == 200
    assert (await admin.request("POST", "/v1/pools/b/drain")).status == 200
    assert (await readiness(pair)).status == 503
    assert (await admin.request("POST", "/v1/pools/b/resume")).status == 200
    assert (await readiness(pair)).status == 200
    pair.sidecar.pools.shut_down()
    assert (await readiness(pair)).status == 503
    await admin.close()


async def test_entry_is_ready_while_all_of_its_engines_are_being_stopped(pair: Running) -> None:
    admin = await Client.connect(pair.sidecar.admin_port)
    for name in ("a", "b"):
        order = f"/v1/pools/{name}/drain?engine_epoch=epoch-1"
        assert (await admin.request("POST", order)).json()["draining"] is True
    assert (await readiness(pair)).status == 200
    assert_unavailable(await (await pair.client()).post(), "draining")
    await admin.close()

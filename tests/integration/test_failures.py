"""An engine that fails: what clients see of one that sends nothing, and that one which makes no
progress is given nothing more until it does.

One that dies: requests it has not accepted keep their places for the successor.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from orch_sidecar.config.installation import build
from tests.integration.answers import EVENT_STREAM
from tests.integration.client import AT_ONCE, CHAT, MESSAGES
from tests.integration.held import Held, started
from tests.integration.running import Running, Start, all_ready, eventually, pools
from tests.integration.scripted_engine import Engine, ScriptedEngine
from tests.integration.scripts import silent
from tests.integration.wire import Answer


async def test_engine_that_is_silent_is_a_504_and_its_lease_waits(
    quick: None, engine: ScriptedEngine, start: Start
) -> None:
    running = await start(engine_silence_s=0.2)
    engine.faults.holds_aborted = asyncio.Event()
    engine.scripts.append(silent)
    client = await running.client()
    response = await client.post()
    assert response.status == 504
    assert response.error["code"] == "engine_timeout"
    assert running.ledger.leased == 1
    engine.faults.holds_aborted.set()
    await running.idle()


async def test_stream_of_an_engine_that_hangs_ends_and_that_of_one_that_is_heard_of_does_not(
    quick: None,
    engine: ScriptedEngine,
    another: Engine,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both send nothing for as long; one of them also nothing of its state."""
    monkeypatch.setattr("orch_sidecar.pools.pool._HUNG_S", 0.3)
    monkeypatch.setattr("orch_sidecar.pools.engine_watcher.STALE_AFTER_S", 1.5)
    ended, b = asyncio.Event(), await another()

    async def stuck(answer: Answer) -> None:
        answer.head(200, EVENT_STREAM)
        answer.event("a")
        await ended.wait()
        answer.end()

    engine.answer = b.answer = stuck
    running = await all_ready(await start(**pools(a=engine, b=b)))
    hung, reading = [await running.client() for _ in range(2)]
    for client, name in ((hung, "a"), (reading, "b")):
        client.start(CHAT, [("X-Orch-Pool", name)])
    await eventually(lambda: len(engine.generating) == len(b.generating) == 1)
    engine.faults.mute, engine.faults.stream_status = True, 500
    response = await hung.response()
    assert response.body.startswith(b'data: a\n\ndata: {"error": ')
    assert b"engine_timeout" in response.body
    assert len(running.sidecar.watchdog.responses()) == 1, "the other one goes on"
    engine.faults.mute, engine.faults.stream_status = False, 200
    ended.set()
    assert (await reading.response()).body == b"data: a\n\n"
    await all_ready(running)
    await running.idle()


async def stalls(engine: ScriptedEngine, running: Running) -> None:
    engine.report(state="stalled")
    await eventually(lambda: running.sidecar.state == "stalled")


async def recovers(engine: ScriptedEngine, running: Running) -> None:
    engine.report(state="ready")
    await running.ready()


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
async def test_stall_makes_unready_and_refuses_until_it_is_over(
    sidecar: Running, engine: ScriptedEngine, held: Held, path: str
) -> None:
    stuck = await started(sidecar, seed=1)
    await eventually(lambda: held.waiting)
    await stalls(engine, sidecar)
    client = await sidecar.client()
    refused = await client.post(path, AT_ONCE)
    assert (refused.status, refused.error["code"]) == (503, "engine_stalled")
    assert "no progress" in refused.error["message"]
    assert refused.header("retry-after") == "1", "it stalls for the first time, and just began to"
    ready = await client.get("/readyz")
    assert (ready.status, ready.json()["state"]) == (503, "stalled")
    assert "no progress" in ready.json()["last_error"]
    health = (await client.get("/v1/pools/cloud/health")).json()
    assert (health["live"], health["ready"], health["state"]) == (True, False, "stalled")
    entry = await sidecar.capabilities()
    assert (entry["state"], entry["slots_free"]) == ("stalled", 0)
    assert (await sidecar.metrics())['orch_engine_state{pool="cloud",state="stalled"}'] == 1
    assert len(engine.generating) == 1
    await recovers(engine, sidecar)
    held.release()
    assert (await stuck.response()).json() == {"seed": 1}, "what was in it is not given up"
    assert (await client.get("/readyz")).status == 200
    again = await started(sidecar, seed=2)
    await eventually(lambda: held.waiting)
    held.release()
    assert (await again.response()).status == 200


@pytest.mark.usefixtures("quick")
async def test_leases_are_confirmed_while_it_is_stalled(
    engine: ScriptedEngine, start: Start, held: Held
) -> None:
    """Its API server answers; a client that gives up must not cost a slot for ever."""
    engine.faults.reports_ended = False
    running = await start()
    client = await started(running, path=MESSAGES)
    await eventually(lambda: held.waiting)
    await stalls(engine, running)
    await client.close()
    await eventually(lambda: engine.revoked)
    await running.idle()
    assert running.ledger.lease_count == 0
    assert running.sidecar.state == "stalled"
    await recovers(engine, running)


# A decode for one client, and one that others might share.
KINDS: list[dict[str, Any]] = [{}, {"temperature": 0}]


async def succeeded(engine: ScriptedEngine, held: Held) -> None:
    """The engine is gone, and its successor is there."""
    await engine.stop()
    held.waiting.clear()
    engine.faults.gone = False
    await engine.start()


@pytest.mark.parametrize("kind", KINDS)
async def test_request_queued_while_the_core_dies_is_served_by_the_successor(
    sidecar: Running, engine: ScriptedEngine, held: Held, kind: dict[str, Any]
) -> None:
    busy = await started(sidecar, n=4)
    await eventually(lambda: held.waiting)
    queued = [await started(sidecar, seed=seed, **kind) for seed in (1, 2)]
    await eventually(lambda: sidecar.queued == 2)
    engine.faults.gone = True
    held.release()  # its slots come free, and a queued request is sent to an engine that is going
    assert (await busy.response()).status == 200
    await eventually(lambda: len(engine.generating) > 1)
    await eventually(lambda: sidecar.queued == 2)
    await succeeded(engine, held)
    await eventually(lambda: len(held.waiting) == 2)
    held.release_all()
    for client, seed in zip(queued, (1, 2), strict=True):
        assert (await client.response()).json() == {"seed": seed}
    await sidecar.idle()


@pytest.mark.parametrize("kind", KINDS)
async def test_request_that_comes_while_the_core_dies_is_served_by_the_successor(
    sidecar: Running, engine: ScriptedEngine, held: Held, kind: dict[str, Any]
) -> None:
    engine.faults.gone = True
    client = await started(sidecar, seed=1, **kind)
    await eventually(lambda: engine.generating)
    await succeeded(engine, held)
    await eventually(lambda: held.waiting)
    held.release()
    assert (await client.response()).json() == {"seed": 1}
    await sidecar.idle()


async def test_queued_request_that_cannot_connect_waits_on(
    sidecar: Running, engine: ScriptedEngine, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the instant before the state stream tells that the engine is gone."""
    if build() == "compiled":
        pytest.skip("replaces a method of a compiled class")
    busy = await started(sidecar, n=4)
    await eventually(lambda: held.waiting)
    queued = await started(sidecar, seed=1)
    await eventually(lambda: sidecar.queued == 1)
    with monkeypatch.context() as patch:
        patch.setattr(sidecar.pool.connections, "take", lambda: None)
        patch.setattr(sidecar.pool.connections, "_port", 1)
        held.release()
        assert (await busy.response()).status == 200
        await asyncio.sleep(0.3)  # it is tried again and again
        await eventually(lambda: sidecar.queued == 1)
        assert len(engine.generating) == 1
    await eventually(lambda: held.waiting)
    held.release()
    assert (await queued.response()).json() == {"seed": 1}
    await sidecar.idle()

"""An engine that sends nothing: what a client sees."""

from __future__ import annotations

import asyncio

import pytest

from tests.integration.answers import EVENT_STREAM
from tests.integration.client import CHAT
from tests.integration.running import Start, all_ready, eventually, pools
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

"""The reports of an engine: how it is used, and what is refused."""

from __future__ import annotations

import asyncio

from orch_sidecar.pools.engine_watcher import EVENT_BYTES
from tests.integration.running import Running, Start, all_ready, eventually, pools
from tests.integration.scripted_engine import Engine, Script, ScriptedEngine
from tests.integration.wire import Answer

EVENTS_THAT_CANNOT_BE_TRUE = {
    "no-json": b"event: change\ndata: {oh no\n\n",
    "no-object": b"event: change\ndata: [1]\n\n",
    "deep": b"event: change\ndata: " + b"[" * 100_000 + b"\n\n",
    "nan": b'event: change\ndata: {"running": NaN}\n\n',
    "infinite": b'event: change\ndata: {"busy_seconds_total": 1e999}\n\n',
    "huge-foreign": b'event: change\ndata: {"foreign": 1' + b"0" * 400 + b"}\n\n",
    "huge-slots": b'event: change\ndata: {"slots_total": 1' + b"0" * 400 + b"}\n\n",
    "no-slots": b'event: change\ndata: {"slots_total": 0}\n\n',
    "text-for-count": b'event: change\ndata: {"waiting": "x"}\n\n',
    "negative": b'event: change\ndata: {"kv_cache_usage": -1}\n\n',
    "ragged-steps": b'event: heartbeat\ndata: {"steps_by_batch": {"1": [1]}}\n\n',
    "no-lease": b'event: ended\ndata: {"leases": ["x"]}\n\n',
    "other-event": b"event: other\ndata: {}\n\n",
    "endless": b"data: " + b"9" * (EVENT_BYTES + 1),
}


async def test_event_that_cannot_be_true_makes_stale_with_the_reason_and_nothing_of_it_is_taken(
    start: Start, another: Engine
) -> None:
    """One pool for each event, all at once."""
    engines, seen = {name: await another() for name in EVENTS_THAT_CANNOT_BE_TRUE}, asyncio.Event()

    def sending(engine: ScriptedEngine, event: bytes) -> Script:
        async def send(answer: Answer) -> None:
            engine.faults.stream_status = 500  # it stays stale
            await seen.wait()
            answer.chunk(event)
            await asyncio.sleep(60)

        return send

    for name, event in EVENTS_THAT_CANNOT_BE_TRUE.items():
        engines[name].faults.stream = sending(engines[name], event)
    running = await all_ready(await start(**pools(**engines)))
    reasons: dict[str, str] = {}

    def look() -> bool:
        for pool in running.sidecar.pools:
            if pool.watcher.state == "stale":
                reasons.setdefault(pool.name, pool.watcher.message)
        return len(reasons) == len(engines)

    seen.set()
    await eventually(look)
    assert "foreign is an integer of about 400 digits: it must be" in reasons["huge-foreign"]
    assert "waiting is 'x': it must be" in reasons["text-for-count"]
    for pool in running.sidecar.pools:
        document = pool.watcher.document
        assert document is not None
        assert (document["slots_total"], document["waiting"]) == (4, 0)
    client = await running.client()
    for path in ("/metrics", "/v1/capabilities"):
        assert (await client.get(path)).status == 200
    for engine in engines.values():
        engine.faults.stream, engine.faults.stream_status = None, 200
    await all_ready(running)


async def test_busy_engine_is_seen_by_its_heartbeats(
    engine: ScriptedEngine, sidecar: Running
) -> None:
    assert sidecar.pool.watcher.busy_ratio is None
    clock = asyncio.get_running_loop().time
    begin_s = clock()
    engine.report(busy_seconds_total=10.0)
    await eventually(lambda: sidecar.pool.watcher._busy is not None)
    await asyncio.sleep(0.2)
    engine.report(busy_seconds_total=10.1)
    await eventually(lambda: sidecar.pool.watcher.busy_ratio)
    ratio = (await sidecar.capabilities())["engine_busy_ratio"]
    assert 0.9 * 0.1 / (clock() - begin_s) < ratio < 0.55
    metrics = await sidecar.metrics()
    assert metrics['orch_engine_busy_ratio{pool="cloud"}'] == ratio
    assert metrics['orch_engine_busy_seconds_total{pool="cloud"}'] == 10.1

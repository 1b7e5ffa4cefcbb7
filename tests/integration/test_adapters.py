"""Requests of LoRA adapters, at an engine that runs one adapter at once."""

from __future__ import annotations

from tests.integration.client import AT_ONCE, CHAT
from tests.integration.held import Held, started
from tests.integration.running import Running, Start, eventually
from tests.integration.scripted_engine import ScriptedEngine

FIELDS = {
    "models": ["tiny", "a", "b"],
    "features": {"max_loras": 1},
    "lora": {"adapters": ["a", "b"], "running": [], "waiting": []},
}


async def with_adapters(engine: ScriptedEngine, start: Start) -> Running:
    engine.state_fields |= FIELDS
    return await start()


def models(engine: ScriptedEngine) -> list[str]:
    return [request.json()["model"] for request in engine.generating]


async def test_request_of_another_adapter_waits_in_the_sidecar_while_others_pass(
    engine: ScriptedEngine, start: Start, held: Held
) -> None:
    running = await with_adapters(engine, start)
    first = await started(running, model="a")
    await eventually(lambda: len(held.waiting) == 1)
    other = await started(running, model="b")
    await eventually(lambda: running.queued == 1)
    [entry] = (await (await running.client()).get("/v1/capabilities")).json()["engines"]
    assert (entry["hold"], entry["slots_free"]) == ("adapter", 3)
    metrics = await running.metrics()
    assert metrics['orch_queue_hold{pool="cloud",reason="adapter"}'] == 1
    base, same = await started(running, model="tiny"), await started(running, model="a")
    await eventually(lambda: len(held.waiting) == 3)
    refused = await (await running.client()).post(CHAT, AT_ONCE, model="b")
    assert refused.status == 429
    assert models(engine) == ["a", "tiny", "a"]
    held.release()
    assert (await first.response()).status == 200
    assert running.queued == 1, "another of the adapter runs"
    held.release_all()
    for client in (base, same):
        assert (await client.response()).status == 200
    await eventually(lambda: held.waiting)
    assert models(engine)[-1] == "b"
    held.release_all()
    assert (await other.response()).status == 200
    await running.idle()


async def test_client_that_leaves_frees_its_adapter(
    engine: ScriptedEngine, start: Start, held: Held
) -> None:
    running = await with_adapters(engine, start)
    leaves = await started(running, model="a")
    await eventually(lambda: len(held.waiting) == 1)
    other = await started(running, model="b")
    await eventually(lambda: running.queued == 1)
    await leaves.close()
    await eventually(lambda: models(engine) == ["a", "b"])
    held.release_all()
    assert (await other.response()).status == 200
    await running.idle()


async def test_adapters_that_come_at_run_time_are_known_from_then_on(
    engine: ScriptedEngine, start: Start, held: Held
) -> None:
    running = await with_adapters(engine, start)
    await started(running, model="a")
    await eventually(lambda: len(held.waiting) == 1)
    await started(running, model="c")
    await eventually(lambda: len(held.waiting) == 2)  # no adapter, as far as is known
    lora = {"adapters": ["a", "b", "c"], "running": ["a"], "waiting": []}
    engine.report(models=["tiny", "a", "b", "c"], lora=lora)
    await eventually(lambda: "c" in running.pool.watcher.adapters)
    await started(running, model="b")
    await eventually(lambda: running.queued == 1)
    held.release_all()
    await eventually(lambda: len(models(engine)) == 3)
    held.release_all()
    await running.idle()

"""Requests of LoRA adapters, at engines that run one adapter at once."""

from __future__ import annotations

from tests.integration.backlogs import instance
from tests.integration.client import AT_ONCE, CHAT
from tests.integration.held import Held, started
from tests.integration.running import Running, Start, eventually
from tests.integration.scripted_engine import ScriptedEngine


async def with_adapters(engine: ScriptedEngine, *names: str, max_loras: int = 1) -> None:
    engine.features, engine.adapters = {"max_loras": max_loras}, names
    await engine.restart()


def models(engine: ScriptedEngine) -> list[str]:
    return [request.json()["model"] for request in engine.generating]


async def test_request_of_another_adapter_waits_in_the_sidecar_while_others_pass(
    engine: ScriptedEngine, start: Start, held: Held
) -> None:
    await with_adapters(engine, "a", "b")
    running = await start()
    first = await started(running, model="a")
    await eventually(lambda: len(held.waiting) == 1)
    other = await started(running, model="b")
    await eventually(lambda: running.queued == 1)
    [entry] = (await (await running.client()).get("/v1/capabilities")).json()["engines"]
    assert (entry["blocked_by"], entry["slots_free"]) == ("adapter", 3)
    metrics = await running.metrics()
    assert metrics['orch_queue_blocked_by{pool="cloud",reason="adapter"}'] == 1
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


async def test_adapter_is_named_beside_the_lease_and_clients_cannot_name_one(
    engine: ScriptedEngine, start: Start
) -> None:
    await with_adapters(engine, "b ä/1")
    running = await start()
    client = await running.client()
    forged = [("X-Orch-Adapter", "a")]
    for model in ("b ä/1", "tiny"):
        assert (await client.post(CHAT, forged, model=model)).status == 200
    named = [
        [value for name, value in each.fields if name == "x-orch-adapter"]
        for each in engine.generating
    ]
    assert named == [["b%20%C3%A4%2F1"], []]


async def two(start: Start) -> tuple[Running, Running]:
    ours, theirs = await start(), await start()
    for each in (ours, theirs):
        await eventually(lambda each=each: each.pool.gate.offers.sidecars == 2)  # type: ignore[misc]
    return ours, theirs


async def test_sidecars_learn_of_each_other_s_adapters_and_of_what_is_wanted(
    engine: ScriptedEngine, start: Start, held: Held
) -> None:
    await with_adapters(engine, "a", "b", "c")
    ours, theirs = await two(start)
    first = await started(ours, model="a")
    await eventually(lambda: len(held.waiting) == 1)
    await eventually(lambda: theirs.pool.gate.ledger.foreign == 1)
    waits = await started(theirs, model="b")
    await eventually(lambda: theirs.queued == 1)
    assert models(engine) == ["a"], "it was not even sent"
    use = engine.engine_state.adapter_use
    await eventually(lambda: use.fields(instance(ours))["wanted"] == ["b"])
    plain = await started(ours)
    await eventually(lambda: len(held.waiting) == 2)
    later = await started(ours, model="c")
    await eventually(lambda: ours.queued == 1)
    held.release()
    assert (await first.response()).status == 200
    await eventually(lambda: models(engine)[-1] == "b")
    assert ours.queued == 1, "it came later"
    held.release_all()
    await eventually(lambda: models(engine)[-1] == "c")
    held.release_all()
    for client in (waits, plain, later):
        assert (await client.response()).status == 200


async def test_engine_of_api_version_1_2_is_told_and_its_own_sidecar_counts(
    engine: ScriptedEngine, start: Start, held: Held
) -> None:
    engine.features = {"max_loras": 1}
    await engine.restart()
    lora = {"adapters": ["a", "b"], "running": [], "waiting": []}
    engine.state_fields |= {"api_version": "1.2.0", "models": ["tiny", "a", "b"], "lora": lora}
    running = await start()
    first = await started(running, model="a")
    await eventually(lambda: len(held.waiting) == 1)
    second = await started(running, model="b")
    await eventually(lambda: running.queued == 1)
    held.release()
    await eventually(lambda: models(engine) == ["a", "b"])
    held.release_all()
    assert [(await each.response()).status for each in (first, second)] == [200, 200]

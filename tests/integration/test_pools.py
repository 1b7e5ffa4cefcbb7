"""Several engines behind one sidecar: which one takes a request, and what is reported of each."""

from __future__ import annotations

from tests.integration.client import CHAT
from tests.integration.running import Running, Start, all_ready, eventually, pools, total
from tests.integration.scripted_engine import Engine, ScriptedEngine


def seeds(engine: ScriptedEngine) -> list[int]:
    return [request.json()["seed"] for request in engine.generating]


# Which pool.


async def test_model_decides_which_pool(
    start: Start, engine: ScriptedEngine, another: Engine
) -> None:
    large = await another(models=("large", "large-lora"))
    running = await all_ready(await start(**pools(a=engine, b=large)))
    client = await running.client()
    for model, seed in (("tiny", 1), ("large", 2), ("large-lora", 3), ("tiny", 4)):
        assert (await client.post(CHAT, model=model, seed=seed)).status == 200
    assert (seeds(engine), seeds(large)) == ([1, 4], [2, 3])
    response = await client.post(CHAT, model="huge")
    assert (response.status, response.error["code"]) == (404, "not_found")
    assert response.error["param"] == "model"
    assert "large, large-lora, tiny" in response.error["message"]
    listed = (await client.get("/v1/models")).json()
    assert listed["object"] == "list"
    assert [model["id"] for model in listed["data"]] == ["tiny", "large", "large-lora"]
    assert {model["object"] for model in listed["data"]} == {"model"}
    await client.request("POST", "/tokenize", {"model": "large", "prompt": "x"})
    assert [request.path for request in large.received][-1] == "/tokenize"


async def test_adapter_is_placed_where_it_is_loaded_from_its_load_to_its_unload(
    pair: Running, engine: ScriptedEngine, b: ScriptedEngine
) -> None:
    client = await pair.client()
    assert (await client.post(model="sql")).status == 404
    b.engine_state.set_models(("tiny", "alias", "sql"))
    await eventually(lambda: "sql" in (pair.sidecar.pools["b"].watcher.models or ()))
    for model in ("sql", "alias"):
        assert (await client.post(CHAT, model=model)).status == 200
    assert (len(engine.generating), len(b.generating)) == (0, 2)
    listed = (await client.get("/v1/models")).json()["data"]
    assert [model["id"] for model in listed] == ["tiny", "alias", "sql"]
    metrics = await pair.metrics()
    for model in ("sql", "alias"):
        assert any(f'gen_ai_request_model="{model}"' in name for name in metrics)
    b.engine_state.set_models(("tiny",))
    await eventually(lambda: "sql" not in (pair.sidecar.pools["b"].watcher.models or ()))
    assert (await client.post(model="sql")).status == 404


async def test_measurement_type_is_demanded_and_never_downgraded(
    start: Start, engine: ScriptedEngine, another: Engine
) -> None:
    home = await another(slots=1, profile="home")
    running = await all_ready(await start(**pools(a=engine, home=home)))
    client = await running.client()
    single = [("X-Orch-Measurement-Type", "single_stream")]
    response = await client.post(CHAT, single, seed=1)
    assert response.header("x-measurement-type") == "single_stream"
    assert (await client.post(CHAT, seed=2)).header("x-measurement-type") == "batched_online"
    assert (seeds(engine), seeds(home)) == ([2], [1])
    offline = await client.post(CHAT, [("X-Orch-Measurement-Type", "offline")])
    assert (offline.status, offline.error["code"]) == (400, "infeasible")
    # It belongs to no pool, and the pools do not agree.
    assert offline.header("x-measurement-type") == "none"
    await home.stop()
    await eventually(lambda: running.sidecar.pools["home"].watcher.state == "down")
    gone = await client.post(CHAT, single)
    assert (gone.status, gone.error["code"]) == (503, "engine_down")
    assert len(engine.generating) == 1


async def test_all_pools_away_is_a_503_that_names_them(
    pair: Running, engine: ScriptedEngine, b: ScriptedEngine
) -> None:
    await engine.stop()
    await b.stop()
    followers = [pool.watcher for pool in pair.sidecar.pools]
    await eventually(lambda: all(follower.state == "down" for follower in followers))
    client = await pair.client()
    response = await client.post()
    assert (response.status, response.error["code"]) == (503, "no_pool")
    assert response.header("retry-after")
    assert "a: the engine is down; b: the engine is down" in response.error["message"]
    ready = await client.get("/readyz")  # clients come here for that answer
    assert (ready.status, ready.json()["pools"]) == (200, {"a": "down", "b": "down"})
    assert ready.json()["state"] == "down"


# Prefixes.


async def test_turns_of_a_chat_go_to_the_pool_that_served_its_beginning(
    pair: Running, engine: ScriptedEngine, b: ScriptedEngine
) -> None:
    client = await pair.client()
    chats = {letter: [{"role": "user", "content": letter * 600}] for letter in "xyz"}
    for number, messages in enumerate(chats.values()):
        first = [("X-Orch-Pool", "b" if number == 1 else "a")]
        assert (await client.post(CHAT, first, messages=messages, seed=number)).status == 200
    for number, messages in enumerate(chats.values()):
        messages.append({"role": "assistant", "content": "and so on"})
        assert (await client.post(CHAT, messages=messages, seed=10 + number)).status == 200
    assert (seeds(engine), seeds(b)) == ([0, 2, 10, 12], [1, 11])
    metrics = await pair.metrics()
    found = {
        (pool, prefix): total(metrics, "orch_prefix_placements_total", pool=pool, prefix=prefix)
        for pool in "ab"
        for prefix in ("hit", "moved", "new")
    }
    expected = {("a", "new"): 2, ("a", "hit"): 2, ("b", "new"): 1, ("b", "hit"): 1}
    assert found == dict.fromkeys(found, 0) | expected
    await engine.stop()
    await eventually(lambda: not pair.sidecar.pools["a"].watcher.ready)
    assert (await client.post(CHAT, messages=chats["x"], seed=20)).status == 200
    assert seeds(b)[-1] == 20


async def test_without_the_setting_prefixes_decide_nothing(
    start: Start, engine: ScriptedEngine, another: Engine
) -> None:
    second = await another()
    running = await all_ready(await start(**pools(a=engine, b=second), prefix_affinity=False))
    client = await running.client()
    messages = [{"role": "user", "content": "x" * 600}]
    await client.post(CHAT, [("X-Orch-Pool", "b")], messages=messages, seed=1)
    await client.post(CHAT, messages=messages, seed=2)
    assert (seeds(engine), seeds(second)) == ([2], [1])

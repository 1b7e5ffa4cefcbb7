"""Several engines behind one sidecar: which one takes a request, and what is reported of each.

An engine that fails a request before its first byte: another pool makes it good. Responses that one
of several engines stores are found by their ids.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.integration import answers
from tests.integration.client import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from tests.integration.held import Held, started
from tests.integration.running import Running, Start, all_ready, eventually, pools, total
from tests.integration.scripted_engine import Engine, Script, ScriptedEngine
from tests.integration.scripts import closes, resets
from tests.integration.tiers import tier
from tests.integration.wire import Answer


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


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, MESSAGES])
@pytest.mark.parametrize("end", [closes, resets])
async def test_engine_lost_before_the_first_byte_is_made_good_by_another(
    pair: Running, engine: ScriptedEngine, b: ScriptedEngine, path: str, end: Any
) -> None:
    engine.scripts.append(end)
    response = await (await pair.client()).post(path, stream=True)
    assert response.status == 200
    assert b"error" not in response.body
    assert (len(engine.generating), len(b.generating)) == (1, 1)
    assert engine.generating[0].lease != b.generating[0].lease
    await pair.idle()
    for pool in pair.sidecar.pools:
        assert pool.ledger.lease_count == 0


async def four(start: Start, another: Engine, end: Script) -> tuple[Running, list[ScriptedEngine]]:
    """A sidecar in front of four engines that end like that."""
    engines = [await another() for _ in range(4)]
    for each in engines:
        each.answer = end
    named = dict(zip("abcd", engines, strict=True))
    return await all_ready(await start(**pools(**named))), engines


def sent_to(engines: list[ScriptedEngine]) -> int:
    return sum(len(each.generating) for each in engines)


@pytest.mark.parametrize("more", [{}, {"temperature": 0}])  # for its client, and shared
@pytest.mark.parametrize("end", [closes, resets])
async def test_request_that_kills_engines_gets_to_two_of_them_and_never_to_a_third(
    start: Start, another: Engine, end: Script, more: dict[str, Any]
) -> None:
    running, engines = await four(start, another, end)
    response = await (await running.client()).post(**more)
    assert (response.status, response.error["code"]) == (502, "engine_failed")
    assert sent_to(engines) == 2
    await running.idle()


async def test_request_that_kills_engines_is_not_given_to_pools_that_share_nothing(
    start: Start, another: Engine, engine: ScriptedEngine, b: ScriptedEngine
) -> None:
    home = await another(profile="home", slots=1)
    engines, all_sent = [engine, b, home], asyncio.Event()

    async def closes_then(answer: Answer) -> None:
        await all_sent.wait()
        answer.close()

    for each in engines:
        each.answer = closes_then
    running = await all_ready(await start(**pools(a=engine, b=b, h=home)))
    clients = [await started(running, temperature=0) for _ in range(3)]
    await eventually(lambda: len(running.sidecar.watchdog.responses()) == 3)
    all_sent.set()
    for client in clients:
        assert (await client.response()).error["code"] == "engine_failed"
    assert (sent_to([engine, b]), home.generating) == (2, [])


async def test_sidecar_above_asks_another_pool_and_the_one_below_does_not(
    start: Start, another: Engine
) -> None:
    """Each asking one other would be four engines for two levels."""
    running, engines = await four(start, another, closes)
    lease = f"{'1' * 16}.{'2' * 32}.1"
    response = await (await running.client()).post(CHAT, [("X-Orch-Lease", lease)])
    assert (response.status, response.error["code"]) == (502, "engine_failed")
    assert sent_to(engines) == 1


async def test_lost_engine_below_is_not_tried_again_from_above(
    start: Start, engine: ScriptedEngine, b: ScriptedEngine
) -> None:
    engine.answer = b.answer = closes
    lowers = [await start(), await start(engine_url=b.url)]
    parent_leases = await start(pools=[tier(lower, f"l{at}") for at, lower in enumerate(lowers)])
    await all_ready(parent_leases)
    response = await (await parent_leases.client()).post()
    assert (response.status, response.error["code"]) == (502, "engine_failed")
    assert sent_to([engine, b]) == 1
    for running in (parent_leases, *lowers):
        await running.idle()


async def test_queue_of_a_pool_that_dies_moves_to_another(
    pair: Running, engine: ScriptedEngine, b: ScriptedEngine, held: Held
) -> None:
    held_b = Held()
    b.answer = held_b
    to_a, to_b = [("X-Orch-Pool", "a; prefer")], [("X-Orch-Pool", "b")]
    busy = [await started(pair, headers=to_a, n=4), await started(pair, headers=to_b, n=4)]
    await eventually(lambda: held.waiting and held_b.waiting)
    queued = []
    for seed in (1, 2, 3):
        queued.append(await started(pair, headers=to_a, seed=seed, n=4))
        await eventually(lambda seed=seed: pair.queued == seed)  # type: ignore[misc]
    assert pair.pool.queues.depth == 3
    pinned = await started(pair, headers=[("X-Orch-Pool", "a")], seed=9)
    await eventually(lambda: pair.queued == 4)
    await engine.stop()
    held.waiting.clear()
    assert (await pinned.response()).status == 503
    # What ran in it had not answered yet, so it is made good as well.
    await eventually(lambda: pair.sidecar.pools["b"].queues.depth == 4)
    for _ in range(5):
        await eventually(lambda: held_b.waiting)
        held_b.release()
    for client, seed in zip(queued, (1, 2, 3), strict=True):
        assert (await client.response()).json() == {"seed": seed}
    for client in busy:
        assert (await client.response()).status == 200
    moved = [seed for request in b.generating if (seed := request.json().get("seed"))]
    assert moved == [1, 2, 3]
    ledgers = [pool.ledger for pool in pair.sidecar.pools]
    await eventually(lambda: not ledgers[1].leased)
    assert ledgers[0].leased == 4  # until that engine, or the next one, reports that it has ended
    await engine.start()
    await pair.idle()


STORED = f"{RESPONSES}/resp_1"


def stores(engine: ScriptedEngine, *ids: str) -> None:
    """Makes an engine answer for these ids, as vLLM does."""

    async def respond(answer: Answer) -> None:
        name = answer.request.path.removeprefix(f"{RESPONSES}/").removesuffix("/cancel")
        if answer.request.method == "GET" or answer.request.path.endswith("/cancel"):
            wanted = name
        else:
            wanted = answer.request.json().get("previous_response_id")
        if wanted is not None and wanted not in ids:
            error = {"message": f"no {wanted}", "type": "invalid_request_error", "code": 404}
            answer.json({"error": error}, 404)
        elif wanted is None:
            await answers.answer(answer)
        else:
            answer.json({"id": wanted, "of": engine.port, "target": answer.request.target})

    engine.answer = respond
    engine.scripts.extend([respond] * 20)


@pytest.mark.parametrize(("method", "path"), [("GET", STORED), ("POST", f"{STORED}/cancel")])
async def test_it_is_found_at_whichever_engine_has_it(
    engine: ScriptedEngine, b: ScriptedEngine, pair: Running, method: str, path: str
) -> None:
    stores(engine)
    stores(b, "resp_1")
    client = await pair.client()
    body = b"" if method == "POST" else None
    for _ in range(2):
        response = await client.request(method, f"{path}?stream=false&starting_after=3", body)
        assert (response.status, response.json()["of"]) == (200, b.port)
        assert response.json()["target"] == f"{path}?stream=false&starting_after=3"
    assert response.header("x-measurement-type") == "batched_online"


async def test_what_no_engine_has_is_not_found(
    engine: ScriptedEngine, b: ScriptedEngine, pair: Running
) -> None:
    stores(engine)
    stores(b)
    response = await (await pair.client()).get(STORED)
    assert (response.status, response.error["code"]) == (404, "not_found")
    assert "no engine has this response" in response.error["message"]
    assert len(engine.received) == len(b.received) == 1


async def test_the_only_engine_answers_for_itself(engine: ScriptedEngine, sidecar: Running) -> None:
    stores(engine, "resp_2")
    client = await sidecar.client()
    response = await client.get(STORED)
    assert (response.status, response.error["message"]) == (404, "no resp_1")
    assert (await client.get(f"{RESPONSES}/resp_2")).status == 200
    for path in (f"{RESPONSES}/", f"{RESPONSES}/resp_1/cancel/x", f"{RESPONSES}/a%2Fb"):
        assert (await client.get(path)).status in (404, 405)
    assert len(engine.received) == 2


async def test_request_that_refers_to_a_response_goes_to_the_engine_that_has_it(
    engine: ScriptedEngine, b: ScriptedEngine, pair: Running
) -> None:
    stores(engine)
    stores(b, "resp_1")
    client = await pair.client()
    for _ in range(4):
        response = await client.post(RESPONSES, previous_response_id="resp_1")
        assert (response.status, response.json()["of"]) == (200, b.port)
    response = await client.post(RESPONSES, previous_response_id="resp_9")
    assert (response.status, response.error["type"]) == (404, "invalid_request_error")
    await pair.idle()


async def test_deleting_is_no_method_of_vllm(engine: ScriptedEngine, sidecar: Running) -> None:
    response = await (await sidecar.client()).request("DELETE", STORED)
    assert (response.status, response.header("allow")) == (405, "GET, HEAD")
    assert engine.received == []

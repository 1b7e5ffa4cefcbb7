"""Several engines behind one sidecar: who takes a request, and what happens when one goes."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.integration.answers import EVENT_STREAM
from tests.integration.client import CHAT, COMPLETIONS, MESSAGES, Client
from tests.integration.held import Held, started
from tests.integration.running import Running, Start, all_ready, eventually, pools
from tests.integration.scripted_engine import STEP_TIME, Engine, ScriptedEngine
from tests.integration.wire import Answer

EVERY_LOOP = True


@pytest.fixture
async def pair(start: Start, engine: ScriptedEngine, b: ScriptedEngine) -> Running:
    """A sidecar in front of two engines alike: pools `a` and `b`."""
    return await all_ready(await start(**pools(a=engine, b=b)))


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


async def test_pin_and_preference(pair: Running, engine: ScriptedEngine, b: ScriptedEngine) -> None:
    client = await pair.client()
    for seed in range(3):
        assert (await client.post(CHAT, [("X-Orch-Pool", "b")], seed=seed)).status == 200
    await client.post(CHAT, [("X-Orch-Pool", "b; prefer")], seed=3)
    await client.post(CHAT, [("X-Orch-Pool", "c; prefer")], seed=4)
    assert (seeds(engine), seeds(b)) == ([4], [0, 1, 2, 3])
    response = await client.post(CHAT, [("X-Orch-Pool", "c")])
    assert (response.status, response.error["code"]) == (400, "infeasible")
    assert "there are a, b" in response.error["message"]


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
    # Nothing of it is known yet, and the pools do not agree.
    assert offline.header("x-measurement-type") is None
    await home.stop()
    await eventually(lambda: running.sidecar.pools["home"].follower.state == "down")
    gone = await client.post(CHAT, single)
    assert (gone.status, gone.error["code"]) == (503, "engine_down")
    assert len(engine.generating) == 1


async def test_directives_work_with_a_single_pool_too(sidecar: Running) -> None:
    client = await sidecar.client()
    assert (await client.post(CHAT, [("X-Orch-Pool", "cloud")])).status == 200
    refused = await client.post(CHAT, [("X-Orch-Pool", "home")])
    assert (refused.status, refused.error["code"]) == (400, "infeasible")
    single = [("X-Orch-Measurement-Type", "single_stream")]
    assert (await client.post(CHAT, single)).error["code"] == "infeasible"


async def test_free_slot_before_a_busy_pool_and_the_same_choice_every_time(
    pair: Running, engine: ScriptedEngine, b: ScriptedEngine, held: Held
) -> None:
    b.answer = held
    clients = []
    for seed in range(8):
        clients.append(await started(pair, seed=seed))
        await eventually(lambda seed=seed: len(held.waiting) == seed + 1)  # type: ignore[misc]
    assert (seeds(engine), seeds(b)) == ([0, 2, 4, 6], [1, 3, 5, 7])
    held.release_all()
    for client in clients:
        assert (await client.response()).status == 200


async def test_earliest_predicted_end_wins(
    start: Start, engine: ScriptedEngine, b: ScriptedEngine
) -> None:
    engine.says = {"step_time": STEP_TIME | {"t0_ms": 100.0}}
    b.says = {"step_time": STEP_TIME}
    running = await all_ready(await start(**pools(a=engine, b=b)))
    client = await running.client()
    for seed in range(4):
        assert (await client.post(CHAT, seed=seed, max_tokens=16)).status == 200
    assert (seeds(engine), seeds(b)) == ([], [0, 1, 2, 3])


async def test_request_that_no_pool_could_ever_serve_is_told_so(
    start: Start, engine: ScriptedEngine, another: Engine
) -> None:
    small = await another(slots=2)
    running = await all_ready(await start(**pools(small=small, a=engine)))
    client = await running.client()
    assert (await client.post(CHAT, n=4)).status == 200
    assert (len(engine.generating), len(small.generating)) == (1, 0)
    response = await client.post(CHAT, n=5)
    assert (response.status, response.error["code"]) == (400, "infeasible")
    assert "small has 2 slots" in response.error["message"]
    assert response.error["retriable"] is False
    await engine.stop()
    await eventually(lambda: running.sidecar.pools["a"].follower.state == "down")
    # It could be served if that engine were there.
    response = await client.post(CHAT, n=4)
    assert (response.status, response.error["code"]) == (503, "engine_down")
    assert response.error["retriable"] is True


async def test_all_pools_away_is_a_503_that_names_them(
    pair: Running, engine: ScriptedEngine, b: ScriptedEngine
) -> None:
    await engine.stop()
    await b.stop()
    followers = [pool.follower for pool in pair.sidecar.pools]
    await eventually(lambda: all(follower.state == "down" for follower in followers))
    client = await pair.client()
    response = await client.post()
    assert (response.status, response.error["code"]) == (503, "no_pool")
    assert response.header("retry-after")
    assert engine.url in response.error["message"]
    assert b.url in response.error["message"]
    ready = await client.get("/readyz")
    assert (ready.status, ready.json()["pools"]) == (503, {"a": "down", "b": "down"})


async def test_sidecar_is_ready_while_any_pool_is(
    pair: Running, engine: ScriptedEngine, b: ScriptedEngine
) -> None:
    await engine.stop()
    await eventually(lambda: pair.pool.follower.state == "down")
    client = await pair.client()
    ready = await client.get("/readyz")
    assert (ready.status, ready.json()["pools"]) == (200, {"a": "down", "b": "ready"})
    assert engine.url in ready.json()["last_error"]
    assert (await client.post()).status == 200
    document = (await client.get("/v1/capabilities")).json()
    states = {entry["pool"]: entry["state"] for entry in document["engines"]}
    assert states == {"a": "down", "b": "ready"}


# Failover.


async def closes(answer: Answer) -> None:
    answer.close()


async def resets(answer: Answer) -> None:
    answer.reset()


async def breaks_its_head_off(answer: Answer) -> None:
    answer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/ev")
    await asyncio.sleep(0.01)
    answer.reset()


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, MESSAGES])
@pytest.mark.parametrize("end", [closes, resets, breaks_its_head_off])
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
        assert pool.gate.core.ledger.leases() == 0


async def test_engine_that_takes_no_connections_is_made_good_by_another(
    pair: Running, engine: ScriptedEngine, b: ScriptedEngine
) -> None:
    pair.pool.connections._port = 1
    assert (await (await pair.client()).post()).status == 200
    assert (len(engine.generating), len(b.generating)) == (0, 1)
    await pair.idle()


async def test_no_pool_is_asked_twice(
    pair: Running, engine: ScriptedEngine, b: ScriptedEngine
) -> None:
    engine.answer = b.answer = closes
    response = await (await pair.client()).post()
    assert (response.status, response.error["code"]) == (502, "engine_failed")
    assert (len(engine.generating), len(b.generating)) == (1, 1)
    await pair.idle()


async def test_pinned_request_is_not_moved(
    pair: Running, engine: ScriptedEngine, b: ScriptedEngine
) -> None:
    engine.scripts.append(closes)
    response = await (await pair.client()).post(CHAT, [("X-Orch-Pool", "a")])
    assert (response.status, response.error["code"]) == (502, "engine_failed")
    assert b.generating == []


async def test_after_the_first_byte_the_failure_is_told(
    pair: Running, engine: ScriptedEngine, b: ScriptedEngine
) -> None:
    async def break_off(answer: Answer) -> None:
        answer.head(200, EVENT_STREAM)
        answer.event("a")
        await asyncio.sleep(0.02)
        answer.reset()

    engine.scripts.append(break_off)
    response = await (await pair.client()).post(stream=True)
    assert response.body.startswith(b"data: a\n\n")
    assert b'"engine_failed"' in response.body
    assert b.generating == []


async def test_engines_own_error_is_an_answer(
    pair: Running, engine: ScriptedEngine, b: ScriptedEngine
) -> None:
    async def fail(answer: Answer) -> None:
        answer.json({"error": {"message": "boom"}}, 500)

    engine.scripts.append(fail)
    assert (await (await pair.client()).post()).status == 500
    assert b.generating == []


async def test_client_that_leaves_during_the_second_attempt_leaks_nothing(
    pair: Running, engine: ScriptedEngine, b: ScriptedEngine
) -> None:
    held = Held()
    engine.scripts.append(closes)
    b.answer = held
    client = await started(pair)
    await eventually(lambda: held.waiting)
    await client.close()
    await pair.idle()
    for pool in pair.sidecar.pools:
        assert pool.gate.core.ledger.leases() == 0
    metrics = await pair.metrics()
    label = '{outcome="cancelled",route="/v1/chat/completions",status="0"}'
    assert metrics[f"orch_requests_total{label}"] == 1


# Queues.


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
    assert pair.pool.gate.core.queue_depth == 3
    pinned = await started(pair, headers=[("X-Orch-Pool", "a")], seed=9)
    await eventually(lambda: pair.queued == 4)
    await engine.stop()
    held.waiting.clear()
    assert (await pinned.response()).status == 503
    # What ran in it had not answered yet, so it is made good as well.
    await eventually(lambda: pair.sidecar.pools["b"].gate.core.queue_depth == 4)
    for _ in range(5):
        await eventually(lambda: held_b.waiting)
        held_b.release()
    for client, seed in zip(queued, (1, 2, 3), strict=True):
        assert (await client.response()).json() == {"seed": seed}
    for client in busy:
        assert (await client.response()).status == 200
    moved = [seed for request in b.generating if (seed := request.json().get("seed"))]
    assert moved == [1, 2, 3]
    ledgers = [pool.gate.core.ledger for pool in pair.sidecar.pools]
    await eventually(lambda: not ledgers[1].leased)
    assert ledgers[0].leased == 4  # until that engine, or the next one, says that it has ended
    await engine.start()
    await pair.idle()


async def test_queue_that_no_other_pool_can_take_hears_why(
    start: Start, engine: ScriptedEngine, another: Engine, held: Held
) -> None:
    other = await another(models=("other",))
    running = await all_ready(await start(**pools(a=engine, b=other)))
    busy = await started(running, n=4)
    await eventually(lambda: held.waiting)
    queued = await started(running)
    await eventually(lambda: running.queued == 1)
    await engine.stop()
    response = await queued.response()
    assert response.status == 503
    assert response.error["code"] in ("engine_stale", "engine_down")
    assert (await busy.response()).status == 502


async def test_busy_pool_that_may_not_queue_it_leaves_it_to_another(
    start: Start, engine: ScriptedEngine, b: ScriptedEngine, held: Held
) -> None:
    engine.says = {"step_time": STEP_TIME | {"t0_ms": 1.0}}
    b.says = {"step_time": STEP_TIME | {"t0_ms": 1000.0}}
    running = await all_ready(await start(queue_capacity=0, **pools(a=engine, b=b)))
    busy = await started(running, max_tokens=4, n=4)
    await eventually(lambda: held.waiting)
    response = await (await running.client()).post(CHAT, max_tokens=4)
    assert response.status == 200  # a would end it sooner, and has no place for it
    assert len(b.generating) == 1
    held.release()
    assert (await busy.response()).status == 200


async def test_waiting_ones_and_running_ones_of_all_pools_are_drained(
    start: Start, engine: ScriptedEngine, b: ScriptedEngine, held: Held
) -> None:
    running = await all_ready(await start(drain_timeout_s=5, **pools(a=engine, b=b)))
    b.answer = held
    clients = [await started(running, seed=seed, n=4) for seed in (1, 2, 3)]
    await eventually(lambda: len(held.waiting) == 2 and running.queued == 1)
    running.stopped = True
    stopping = asyncio.ensure_future(running.sidecar.stop())
    await eventually(lambda: running.sidecar.state == "draining")
    late = await Client.connect(running.port)
    response = await late.post()
    assert (response.status, response.error["code"]) == (503, "draining")
    await late.close()
    for _ in clients:
        await eventually(lambda: held.waiting)
        held.release()
    assert {json.loads((await c.response()).body)["seed"] for c in clients} == {1, 2, 3}
    await asyncio.wait_for(stopping, 3)


# What is told of them.


async def test_metrics_are_told_for_each_pool(
    pair: Running, engine: ScriptedEngine, b: ScriptedEngine
) -> None:
    client = await pair.client()
    await client.post(CHAT, [("X-Orch-Pool", "b"), ("X-Orch-Class", "bulk")])
    await client.post(CHAT, [("X-Orch-Pool", "a"), ("X-Orch-Max-Wait-Ms", "x")])
    metrics = await pair.metrics()
    for name in ("a", "b"):
        assert metrics[f'orch_slots_total{{pool="{name}"}}'] == 4
        assert metrics[f'orch_engine_state{{pool="{name}",state="ready"}}'] == 1
    admitted = 'orch_admissions_total{{class="{}",outcome="admitted",pool="{}"}}'
    assert metrics[admitted.format("bulk", "b")] == 1
    assert metrics[admitted.format("interactive", "a")] == 0
    label = '{class="bulk",measurement_type="batched_online",pool="b"}'
    assert metrics[f"orch_admission_wait_seconds_count{label}"] == 1


async def test_stalled_engine_takes_nothing_until_it_moves_again(
    pair: Running, engine: ScriptedEngine, b: ScriptedEngine
) -> None:
    engine.tell(state="stalled")
    await eventually(lambda: pair.pool.follower.state == "stalled")
    client = await pair.client()
    assert (await client.post(seed=1)).status == 200
    pinned = await client.post(CHAT, [("X-Orch-Pool", "a")])
    assert (pinned.status, pinned.error["code"]) == (503, "engine_stalled")
    assert (await client.get("/readyz")).json()["pools"] == {"a": "stalled", "b": "ready"}
    engine.tell(state="ready")
    await eventually(lambda: pair.pool.follower.ready)
    assert (await client.post(seed=2)).status == 200
    assert (seeds(engine), seeds(b)) == ([2], [1])

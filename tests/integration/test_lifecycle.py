"""Before the engine is there, while it is away, when it is the wrong one, and at the end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.integration.answers import EVENT_STREAM
from tests.integration.client import CHAT, MESSAGES, Client, Response
from tests.integration.held import Held, started
from tests.integration.running import Running, Start, eventually
from tests.integration.scripted_engine import ScriptedEngine
from tests.integration.wire import Answer


async def readiness(running: Running) -> Response:
    return await (await running.client()).get("/readyz")


async def state_is(running: Running, state: str, within_s: float = 3.0) -> None:
    await eventually(lambda: running.sidecar.state == state, within_s)


def assert_unavailable(response: Response, code: str, path: str = CHAT) -> None:
    assert response.status == 503
    assert response.error["code"] == code
    assert response.error["retriable"] is True
    assert response.header("retry-after") == "1"
    assert int(response.header("retry-after-ms") or "") > 0
    expected = "overloaded_error" if path == MESSAGES else "service_unavailable_error"
    assert response.error["type"] == expected


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
    assert engine.url in document["last_error"]
    client = await running.client()
    assert (await client.get("/livez")).status == 200
    assert (await client.get("/v1/capabilities")).json()["engines"] == []
    assert (await client.get("/metrics")).status == 200
    for path in (CHAT, MESSAGES):
        assert_unavailable(await client.post(path), "engine_starting", path)
    assert_unavailable(await client.get("/v1/models"), "engine_starting")
    await engine.start()
    await running.ready(within_s=1)
    now = await readiness(running)
    assert (now.status, now.json()["last_error"], now.json()["state"]) == (200, None, "ready")
    assert (await client.post()).status == 200
    assert (await client.get("/healthz")).status == 200


@pytest.mark.parametrize(
    ("status", "code", "fixes"),
    [
        (404, "engine_without_plugin", ["ORCH_PROFILE=cloud", "orch", "VLLM_PLUGINS"]),
        (401, "engine_refuses_key", ["ORCH_ENGINE_API_KEY"]),
        (403, "engine_refuses_key", ["ORCH_ENGINE_API_KEY"]),
    ],
)
async def test_engine_that_cannot_be_followed_makes_unready_and_says_how_to_fix_it(
    engine: ScriptedEngine, start: Start, status: int, code: str, fixes: list[str]
) -> None:
    engine.faults.stream_status = status
    running = await start(wait=False)
    await state_is(running, "unusable")
    response = await readiness(running)
    assert response.status == 503
    for fix in fixes:
        assert fix in response.json()["last_error"]
    refused = await (await running.client()).post()
    assert_unavailable(refused, code)
    assert refused.error["message"] == response.json()["last_error"]
    assert engine.generating == []
    engine.faults.stream_status = 200
    await running.ready()
    assert (await readiness(running)).status == 200


async def test_engine_with_another_key_is_told_from_one_without_a_plugin(
    engine: ScriptedEngine, start: Start
) -> None:
    engine.api_key = "right"
    running = await start(wait=False, engine_api_key="wrong")
    await state_is(running, "unusable")
    message = (await readiness(running)).json()["last_error"]
    assert "ORCH_ENGINE_API_KEY" in message
    assert "wrong" not in message


async def test_engine_of_another_profile_makes_unready_with_both_named(
    engine: ScriptedEngine, start: Start
) -> None:
    running = await start(wait=False, profile="offline")
    await state_is(running, "unusable")
    message = (await readiness(running)).json()["last_error"]
    assert "'cloud' (batched_online)" in message
    assert "'offline' (offline)" in message
    assert_unavailable(await (await running.client()).post(), "profile_mismatch")
    engine.profile = "offline"
    await engine.restart()
    await running.ready()
    assert (await (await running.client()).post()).status == 200


@pytest.mark.parametrize(
    "nonsense",
    [
        "event: state\ndata: {}\n\n",
        "event: state\ndata: []\n\n",
        "event: state\ndata: {not json\n\n",
        'event: change\ndata: {"foreign": 0}\n\n',
        'event: ended\ndata: {"leases": 5}\n\n',
        "data: 1\n\n",
        "event: state\ndata: \xff\n\n",
        "event: state\ndata: " + "9" * 3_000_000,
    ],
)
async def test_state_that_is_not_understood_makes_unready_until_it_is(
    engine: ScriptedEngine, start: Start, monkeypatch: pytest.MonkeyPatch, nonsense: str
) -> None:
    """A plugin of another version must not stop the sidecar from following for ever."""

    async def babble(answer: Answer) -> None:
        answer.head(200, EVENT_STREAM)
        answer.chunk(nonsense.encode("latin-1"))
        await asyncio.sleep(60)

    with monkeypatch.context() as patched:
        patched.setattr(engine, "_stream", babble)
        running = await start(wait=False)
        await state_is(running, "stale")
        assert (await readiness(running)).status == 503
        assert_unavailable(await (await running.client()).post(), "engine_stale")
    await running.ready()
    assert (await (await running.client()).post()).status == 200


async def test_engine_down_refuses_new_ones_and_serves_queued_ones_when_it_is_back(
    engine: ScriptedEngine, sidecar: Running, held: Held
) -> None:
    busy = await started(sidecar, n=4)
    await eventually(lambda: held.waiting)
    queued = [await started(sidecar, seed=seed) for seed in (1, 2)]
    await eventually(lambda: sidecar.queued == 2)
    await engine.stop()
    held.waiting.clear()
    assert (await busy.response()).status == 502
    await state_is(sidecar, "down")
    assert (await readiness(sidecar)).status == 503
    begin = asyncio.get_running_loop().time()
    assert_unavailable(await (await sidecar.client()).post(), "engine_down")
    assert asyncio.get_running_loop().time() - begin < 0.1
    assert (await sidecar.capabilities())["slots_free"] == 0
    assert sidecar.queued == 2
    await engine.start()
    await eventually(lambda: len(held.waiting) == 2, within_s=1.5)
    held.release_all()
    for client, seed in zip(queued, (1, 2), strict=True):
        assert (await client.response()).json() == {"seed": seed}


async def test_queued_ones_whose_time_ends_while_the_engine_is_down_hear_that_it_is(
    engine: ScriptedEngine, start: Start, held: Held
) -> None:
    running = await start(queue_timeout_s=0.5)
    await started(running, n=4)
    await eventually(lambda: held.waiting)
    queued = await started(running)
    await eventually(lambda: running.queued == 1)
    await engine.stop()
    assert_unavailable(await queued.response(), "engine_down")


async def test_three_seconds_of_silence_are_stale_and_nothing_is_admitted_on_a_guess(
    engine: ScriptedEngine, sidecar: Running
) -> None:
    engine.faults.mute = True
    begin = asyncio.get_running_loop().time()
    await state_is(sidecar, "stale", within_s=5)
    assert 1.5 < asyncio.get_running_loop().time() - begin < 4
    assert_unavailable(await (await sidecar.client()).post(), "engine_stale")
    assert (await readiness(sidecar)).status == 503
    engine.faults.mute = False
    await sidecar.ready()
    assert (await (await sidecar.client()).post()).status == 200


async def test_broken_state_stream_is_stale_at_once(
    engine: ScriptedEngine, sidecar: Running
) -> None:
    engine.faults.stream_status = 500
    for wire in list(engine.wires):
        wire.reset()
    await state_is(sidecar, "stale", within_s=1)
    assert_unavailable(await (await sidecar.client()).post(), "engine_stale")


async def test_idle_engine_stays_ready(engine: ScriptedEngine, sidecar: Running) -> None:
    """Its heartbeat is enough: age is that of the last event, not of the last step."""
    states = set()
    for _ in range(36):
        await asyncio.sleep(0.1)
        states.add(str(sidecar.sidecar.state))
    assert states == {"ready"}
    assert (await sidecar.capabilities())["age_ms"] < 1500


async def test_optional_field_that_is_nonsense_breaks_nothing(
    engine: ScriptedEngine, sidecar: Running
) -> None:
    """What is not understood counts as not said."""
    names = (
        "step_time", "prefill_tokens_per_s", "kv_cache_usage", "kv_tokens_total", "ctx_max",
        "preemptions_total", "busy_seconds_total", "steps_by_batch", "steps_total", "prefill",
    )  # fmt: skip
    follower = sidecar.pool.follower
    nonsense: Any
    for nonsense in ("x", [], {}, None, -1, {"t0_ms": "a", "quality": "good"}):
        engine.tell(**dict.fromkeys(names, nonsense))
        await eventually(lambda n=nonsense: follower.document["prefill"] == n)  # type: ignore[index,misc]
        assert sidecar.sidecar.state == "ready"
        assert (await (await sidecar.client()).post()).status == 200
        assert (await sidecar.metrics())['orch_slots_total{pool="cloud"}'] == 4
        assert (await sidecar.capabilities())["batching_stats"]["total_batches"] == 0


async def test_what_does_not_matter_to_admission_is_not_brought_before_it(
    engine: ScriptedEngine, sidecar: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[object] = []
    monkeypatch.setattr(sidecar.pool.gate, "engine_reports", told.append)
    for number in range(3):
        engine.tell(running=number, steps_total=number, prefill={"tokens": number})
        await eventually(lambda n=number: sidecar.pool.follower.document["running"] == n)  # type: ignore[index,misc]
    assert told == []
    engine.tell(prefill_tokens_per_s=100.0)
    await eventually(lambda: told)
    assert len(told) == 1


async def test_busy_engine_is_seen_by_its_heartbeats(
    engine: ScriptedEngine, sidecar: Running
) -> None:
    assert sidecar.pool.follower.busy_ratio is None
    engine.tell(busy_seconds_total=10.0)
    await eventually(lambda: sidecar.pool.follower._busy is not None)
    await asyncio.sleep(0.2)
    engine.tell(busy_seconds_total=10.1)
    await eventually(lambda: sidecar.pool.follower.busy_ratio)
    ratio = (await sidecar.capabilities())["engine_busy_ratio"]
    assert 0.2 < ratio < 0.55
    metrics = await sidecar.metrics()
    assert metrics['orch_engine_busy_ratio{pool="cloud"}'] == ratio
    assert metrics['orch_engine_busy_seconds_total{pool="cloud"}'] == 10.1


async def test_stalled_engine_makes_unready_and_keeps_its_queue_until_it_moves(
    engine: ScriptedEngine, sidecar: Running, held: Held
) -> None:
    busy = await started(sidecar, n=4)
    await eventually(lambda: held.waiting)
    queued = await started(sidecar, seed=7)
    await eventually(lambda: sidecar.queued == 1)
    engine.tell(state="stalled")
    await state_is(sidecar, "stalled")
    response = await readiness(sidecar)
    assert response.status == 503
    assert "makes no progress" in response.json()["last_error"]
    assert_unavailable(await (await sidecar.client()).post(), "engine_stalled")
    metrics = await sidecar.metrics()
    assert metrics['orch_engine_state{pool="cloud",state="stalled"}'] == 1
    assert sidecar.queued == 1
    engine.tell(state="ready")
    await sidecar.ready()
    held.release()
    assert (await busy.response()).status == 200
    await eventually(lambda: held.waiting)
    held.release()
    assert (await queued.response()).json() == {"seed": 7}


async def test_engine_comes_back_with_other_slots(engine: ScriptedEngine, sidecar: Running) -> None:
    engine.slots = 2
    await engine.restart()
    await eventually(lambda: sidecar.ledger.slots_total == 2)
    assert (await (await sidecar.client()).post(CHAT, n=3)).status == 400
    assert (await (await sidecar.client()).post(CHAT, n=2)).status == 200


async def test_drain_refuses_new_ones_and_finishes_what_runs(
    engine: ScriptedEngine, start: Start, held: Held
) -> None:
    running = await start(drain_timeout_s=5)
    kept = await running.client()
    assert (await kept.get("/livez")).status == 200
    busy = await started(running, seed=1, n=4)
    await eventually(lambda: held.waiting)
    queued = await started(running, seed=2)
    await eventually(lambda: running.queued == 1)
    running.stopped = True
    stopping = asyncio.ensure_future(running.sidecar.stop())
    await eventually(lambda: running.sidecar.state == "draining")
    for client in (kept, await Client.connect(running.port)):
        response = await client.post()
        assert_unavailable(response, "draining")
        assert response.header("connection") == "close"
        assert await client.rest() == b""
        await client.close()
    ready = await readiness(running)
    assert ready.status == 503
    assert ready.json()["draining"] is True
    assert not stopping.done()
    held.release()
    response = await busy.response()
    assert response.json() == {"seed": 1}
    assert response.header("connection") is None  # it began before
    await eventually(lambda: held.waiting)
    held.release()
    response = await queued.response()
    assert response.json() == {"seed": 2}
    assert response.header("connection") == "close"
    await asyncio.wait_for(stopping, 3)
    with pytest.raises(ConnectionError):
        await Client.connect(running.port)


async def test_drain_ends_at_its_limit_and_tells_those_it_leaves(
    engine: ScriptedEngine, start: Start
) -> None:
    running = await start(drain_timeout_s=0.2)
    hold = Held()

    async def stream(answer: Answer) -> None:
        answer.head(200, EVENT_STREAM)
        answer.event("a")
        await asyncio.sleep(60)

    async def half(answer: Answer) -> None:
        answer.head(200, [("content-length", "100")], chunked=False)
        answer.write(b"{")
        await asyncio.sleep(60)

    engine.scripts += [stream, half, hold, hold]
    streaming, cut = await started(running), await started(running)
    silent, second = await started(running), await started(running)
    await streaming.seen(b"data: a")
    await cut.seen(b"{")
    await eventually(lambda: len(hold.waiting) == 2)
    queued = await started(running)
    await eventually(lambda: running.queued == 1)
    begin = asyncio.get_running_loop().time()
    await running.stop()
    assert asyncio.get_running_loop().time() - begin < 1.5
    told = await streaming.response()
    assert told.body.startswith(b'data: a\n\ndata: {"error": ')
    assert b"draining" in told.body
    await cut.aborted()
    for client in (silent, second, queued):
        response = await client.response()
        assert_unavailable(response, "draining")
    assert engine.present == 0


async def test_drain_of_an_idle_sidecar_is_quick_and_closes_kept_connections(
    engine: ScriptedEngine, start: Start
) -> None:
    running = await start(drain_timeout_s=30)
    client = await running.client()
    await client.post()
    begin = asyncio.get_running_loop().time()
    await running.stop()
    assert asyncio.get_running_loop().time() - begin < 0.5
    assert await client.rest() == b""
    await eventually(lambda: not engine.wires)

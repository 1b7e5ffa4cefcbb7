"""The headers that every answer carries: ids, timing, and what kind of measurement it is."""

from __future__ import annotations

import asyncio
import re
import time

import pytest

from tests.integration.answers import EVENT_STREAM
from tests.integration.client import CHAT
from tests.integration.running import Running, eventually
from tests.integration.scripted_engine import ScriptedEngine
from tests.integration.wire import Answer

HARMLESS = ["a", "req_0123-abc.DEF:4", "x" * 128, "550e8400-e29b-41d4-a716-446655440000"]


@pytest.mark.parametrize(
    ("name", "status"), [("X-Request-Id", 200), ("X-Correlation-Id", 400), ("X-Request-Id", 404)]
)
async def test_harmless_id_is_echoed(
    engine: ScriptedEngine, sidecar: Running, name: str, status: int
) -> None:
    client = await sidecar.client()
    for given in HARMLESS:
        path = "/nowhere" if status == 404 else CHAT
        response = await client.post(path, [(name, given)], n=0 if status == 400 else 1)
        assert response.status == status
        assert response.header(name) == given


async def test_request_id_reaches_the_engine_and_stands_in_for_a_correlation_id(
    engine: ScriptedEngine, sidecar: Running
) -> None:
    client = await sidecar.client()
    response = await client.post(CHAT, [("X-Request-Id", "mine")])
    assert response.header("x-correlation-id") == "mine"
    assert [v for n, v in engine.generating[0].fields if n == "x-request-id"] == ["mine"]
    response = await client.post(CHAT)
    assert engine.generating[1].header("x-request-id") == response.header("x-request-id")


async def test_engines_own_id_does_not_stand_beside_ours(
    engine: ScriptedEngine, sidecar: Running
) -> None:
    async def with_id(answer: Answer) -> None:
        answer.json({}, 200, [("X-Request-Id", "engines"), ("X-Measurement-Type", "nonsense")])

    engine.answer = with_id
    response = await (await sidecar.client()).post(CHAT, [("X-Request-Id", "mine")])
    assert response.header("x-request-id") == "mine"
    assert response.header("x-measurement-type") == "batched_online"


async def test_server_timing_has_queue_and_first_byte(
    engine: ScriptedEngine, sidecar: Running
) -> None:
    is_queued = asyncio.Event()

    async def slow(answer: Answer) -> None:
        await is_queued.wait()
        await asyncio.sleep(0.05)
        answer.head(200, EVENT_STREAM)
        answer.event("x")
        answer.end()

    engine.answer = slow
    first, second = await sidecar.client(), await sidecar.client()
    first.start(n=4)
    await eventually(lambda: engine.present == 4)
    begin_s = time.monotonic()
    second.start()
    await eventually(lambda: sidecar.queued == 1)
    is_queued.set()
    await first.response()
    timing = (await second.response()).header("server-timing") or ""
    found = re.fullmatch(r"queue;dur=([0-9.]+), ttft;dur=([0-9.]+)", timing)
    assert found, timing
    queue_ms, ttft_ms = float(found[1]), float(found[2])
    assert queue_ms + 1 >= 50
    assert queue_ms + 50 <= ttft_ms + 1
    assert ttft_ms < 1000 * (time.monotonic() - begin_s)
    plain = (await first.post()).header("server-timing") or ""
    assert re.fullmatch(r"queue;dur=[0-9.]+, engine;dur=[0-9.]+", plain)

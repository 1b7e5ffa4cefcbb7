"""An engine that fails a request before its first byte: another pool makes it good."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.integration.answers import EVENT_STREAM
from tests.integration.client import CHAT, COMPLETIONS, MESSAGES
from tests.integration.held import Held, started
from tests.integration.running import Running, eventually
from tests.integration.scripted_engine import ScriptedEngine
from tests.integration.scripts import closes, resets
from tests.integration.wire import Answer

EVERY_LOOP = True


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

"""OpenAI's official client, unchanged, through the sidecar."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.integration.answers import break_off
from tests.integration.held import Held, started
from tests.integration.running import Running, Start, eventually, total
from tests.integration.scripted_engine import ScriptedEngine

MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]


@pytest.fixture
async def client(sidecar: Running) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"http://127.0.0.1:{sidecar.port}/v1", api_key="any", max_retries=0
    ) as client:
        yield client


async def test_refusals_are_the_clients_exceptions(
    engine: ScriptedEngine, client: openai.AsyncOpenAI
) -> None:
    create = client.chat.completions.create
    with pytest.raises(openai.BadRequestError) as bad:
        await create(model="tiny", messages=MESSAGES, n=5)
    assert bad.value.code == "cost_exceeds_slots"
    assert "4 slots" in bad.value.message
    with pytest.raises(openai.BadRequestError) as bad:
        await create(model="tiny", messages=MESSAGES, max_tokens=-1)
    assert (bad.value.param, bad.value.type) == ("max_tokens", "invalid_request_error")
    with pytest.raises(openai.NotFoundError) as missing:
        await client.images.generate(model="tiny", prompt="x")
    assert missing.value.code == "not_found"
    assert engine.generating == []


async def test_failure_in_a_stream_is_the_clients_exception(
    engine: ScriptedEngine, client: openai.AsyncOpenAI
) -> None:
    engine.answer = break_off
    for _ in range(2):
        stream = await client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
        with pytest.raises(openai.APIError, match="engine closed the connection"):
            async for _chunk in stream:
                pass
    events = await client.responses.create(model="tiny", input="x", stream=True)
    with pytest.raises(openai.APIError, match="engine closed the connection"):
        async for _event in events:
            pass


async def test_clients_own_retries_come_back_at_the_stated_time_and_succeed(
    engine: ScriptedEngine, start: Start, held: Held
) -> None:
    running = await start(queue_capacity=0)
    busy = await started(running, n=4)
    await eventually(lambda: held.waiting)
    async with openai.AsyncOpenAI(
        base_url=f"http://127.0.0.1:{running.port}/v1", api_key="any", max_retries=60
    ) as client:
        loop = asyncio.get_running_loop()
        begin = loop.time()
        pending = asyncio.ensure_future(
            client.chat.completions.with_raw_response.create(model="tiny", messages=MESSAGES)
        )
        await eventually(lambda: running.sidecar.frontend._in_flight._ended)  # it was refused
        held.release()
        await busy.response()
        await eventually(lambda: held.waiting)
        held.release()
        raw = await pending
        # 1000 ms, as nothing is known of the rate yet; the client's own first wait is shorter.
        assert loop.time() - begin > 0.9 * raw.retries_taken
        assert raw.retries_taken >= 1
    metrics = await running.metrics()
    refused = {"outcome": "queue_full", "route": "/v1/chat/completions", "status": 429}
    assert total(metrics, "orch_requests_total", **refused) == raw.retries_taken

"""The official clients of OpenAI and Anthropic, unchanged, through the sidecar."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.integration.answers import EVENT_STREAM
from tests.integration.held import Held, started
from tests.integration.running import Running, Start, eventually, total
from tests.integration.scripted_engine import ScriptedEngine
from tests.integration.scripts import breaks_off
from tests.integration.wire import Answer

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
    engine.answer = breaks_off
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


@pytest.fixture
async def claude(sidecar: Running) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(
        base_url=f"http://127.0.0.1:{sidecar.port}", api_key="any", max_retries=0
    ) as client:
        yield client


async def test_refusals_of_messages_are_the_clients_exceptions(
    engine: ScriptedEngine, start: Start, held: Held
) -> None:
    running = await start(queue_capacity=0)

    def create(client: anthropic.AsyncAnthropic, limit: int = 9) -> Any:
        return client.messages.create(
            model="tiny", max_tokens=limit, messages=[{"role": "user", "content": "hi"}]
        )

    async with anthropic.AsyncAnthropic(
        base_url=f"http://127.0.0.1:{running.port}", api_key="any", max_retries=0
    ) as client:
        with pytest.raises(anthropic.BadRequestError) as bad:
            await create(client, 0)
        body: Any = bad.value.body
        assert body["type"] == "error"
        assert body["error"]["type"] == "invalid_request_error"
        await started(running, n=4)
        await eventually(lambda: held.waiting)
        with pytest.raises(anthropic.RateLimitError) as limited:
            await create(client)
        assert 1000 <= int(limited.value.response.headers["retry-after-ms"]) <= 1250
        await engine.stop()
        await eventually(lambda: running.sidecar.state == "down")
        with pytest.raises(anthropic.InternalServerError) as down:
            await create(client)
        body = down.value.body
        assert body["error"]["type"] == "overloaded_error"


async def test_batches_of_messages_are_not_found_in_the_form_of_their_api(
    claude: anthropic.AsyncAnthropic,
) -> None:
    """An API that this sidecar does not have, below one that it has."""
    with pytest.raises(anthropic.NotFoundError) as missing:
        await claude.messages.batches.retrieve("msgbatch_1")
    body: Any = missing.value.body
    assert body["type"] == "error"
    assert body["error"]["type"] == "not_found_error"
    with pytest.raises(anthropic.NotFoundError):
        await claude.messages.batches.create(requests=[])


async def test_failure_in_a_stream_of_messages_is_the_clients_exception(
    engine: ScriptedEngine, claude: anthropic.AsyncAnthropic
) -> None:
    async def breaks_off(answer: Answer) -> None:
        answer.head(200, EVENT_STREAM)
        answer.event({"type": "ping"}, "ping")
        await asyncio.sleep(0.02)
        answer.close()

    engine.answer = breaks_off
    stream = await claude.messages.create(
        model="tiny", max_tokens=9, messages=[{"role": "user", "content": "hi"}], stream=True
    )
    with pytest.raises(anthropic.APIStatusError, match="before its response was complete"):
        async for _event in stream:
            pass

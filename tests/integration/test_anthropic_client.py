"""Anthropic's official client, unchanged, through the sidecar."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import pytest

from tests.integration.answers import EVENT_STREAM
from tests.integration.held import Held, started
from tests.integration.running import Running, Start, eventually
from tests.integration.scripted_engine import ScriptedEngine
from tests.integration.wire import Answer


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
    async def break_off(answer: Answer) -> None:
        answer.head(200, EVENT_STREAM)
        answer.event({"type": "ping"}, "ping")
        await asyncio.sleep(0.02)
        answer.close()

    engine.answer = break_off
    stream = await claude.messages.create(
        model="tiny", max_tokens=9, messages=[{"role": "user", "content": "hi"}], stream=True
    )
    with pytest.raises(anthropic.APIStatusError, match="before its response was complete"):
        async for _event in stream:
            pass

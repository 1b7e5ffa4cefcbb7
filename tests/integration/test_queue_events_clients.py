"""Clients of others, unchanged, that watch the queue: they ignore comments, and raise errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import anthropic
import openai
import pytest

from tests.integration.running import Running, eventually
from tests.integration.scripted_answers import AnswerScript
from tests.integration.scripted_engine import ScriptedEngine
from tests.integration.test_openai_client import MESSAGES
from tests.integration.watching import busy, free

HEADERS = {"X-Orch-Queue-Events": "sse"}
PREDICTED = {"X-Orch-Max-Wait-Ms": "80"}


@pytest.fixture
async def client(sidecar: Running) -> AsyncIterator[openai.AsyncOpenAI]:
    url = f"http://127.0.0.1:{sidecar.port}/v1"
    async with openai.AsyncOpenAI(
        base_url=url, api_key="any", max_retries=0, default_headers=HEADERS
    ) as client:
        yield client


async def test_openais_client_streams_what_the_engine_sends(
    sidecar: Running, engine: ScriptedEngine, client: openai.AsyncOpenAI, script: AnswerScript
) -> None:
    first = await busy(sidecar, script)
    stream = await client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
    assert stream.response.status_code == 200, "before the engine has the request"
    assert sidecar.queued == 1
    assert stream.response.headers["x-orch-queue-position"] == "0"
    reading = asyncio.create_task(_texts(stream))
    await free(script, first)
    await eventually(lambda: len(script.answers) == 2)
    script.answers[1].send_all("one ", "two")
    assert await reading == "one two"


async def _texts(stream: openai.AsyncStream[openai.types.chat.ChatCompletionChunk]) -> str:
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])


async def test_openais_client_raises_a_refusal(
    sidecar: Running, client: openai.AsyncOpenAI, script: AnswerScript
) -> None:
    first = await busy(sidecar, script)
    stream = await client.chat.completions.create(
        model="tiny", messages=MESSAGES, stream=True, extra_headers=PREDICTED
    )
    with pytest.raises(openai.APIError) as raised:
        await _texts(stream)
    assert raised.value.code == "ADMISSION_TIMEOUT"
    await free(script, first)


async def test_openais_client_reads_responses_and_answers_that_are_not_streamed(
    sidecar: Running, engine: ScriptedEngine, client: openai.AsyncOpenAI, script: AnswerScript
) -> None:
    first = await busy(sidecar, script)
    reading = asyncio.create_task(_response(client))
    plain = asyncio.create_task(client.chat.completions.create(model="tiny", messages=MESSAGES))
    await eventually(lambda: sidecar.queued == 2)
    engine.answer = ScriptedEngine().answer  # as it stands
    await free(script, first)
    assert await reading == "one two three"
    assert (await plain).choices[0].message.content == "one two three"


async def _response(client: openai.AsyncOpenAI) -> str:
    stream = await client.responses.create(model="tiny", input="hi", stream=True)
    return "".join([e.delta async for e in stream if e.type == "response.output_text.delta"])


async def test_anthropics_client_streams_and_raises(
    sidecar: Running, engine: ScriptedEngine, script: AnswerScript
) -> None:
    url = f"http://127.0.0.1:{sidecar.port}"
    async with anthropic.AsyncAnthropic(
        base_url=url, api_key="any", max_retries=0, default_headers=HEADERS
    ) as client:
        first = await busy(sidecar, script)
        with pytest.raises(anthropic.APIStatusError, match="longest wait"):
            await _message(client, PREDICTED)
        reading = asyncio.create_task(_message(client, {}))
        await eventually(lambda: sidecar.queued == 1)
        engine.answer = ScriptedEngine().answer
        await free(script, first)
        assert await reading == "one two three"


async def _message(client: anthropic.AsyncAnthropic, headers: dict[str, str]) -> str:
    async with client.messages.stream(
        model="tiny", max_tokens=8, messages=[{"role": "user", "content": "hi"}],
        extra_headers=headers,
    ) as stream:  # fmt: skip
        return "".join([text async for text in stream.text_stream])

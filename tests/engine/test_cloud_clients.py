"""The official clients work through the sidecar, unchanged, against a real engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam

from orch_sidecar.tools.local.stack import Stack

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Hello"}]


@pytest.fixture
def client(cloud: Stack) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{cloud.url}/v1", api_key="none") as client:
        yield client


def test_chat(client: OpenAI) -> None:
    done = client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=8)
    assert done.choices[0].message.content
    assert done.usage is not None
    assert done.usage.completion_tokens <= 8


def test_chat_stream_with_usage(client: OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model="tiny",
            messages=HELLO,
            max_tokens=8,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
    )
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 8


def test_n_and_list_prompts_and_logprobs(client: OpenAI) -> None:
    done = client.completions.create(
        model="tiny", prompt=["one", "two"], n=2, max_tokens=4, logprobs=2
    )
    assert len(done.choices) == 4
    assert all(choice.logprobs is not None for choice in done.choices)


def test_tools_pass_both_ways_as_the_engine_takes_and_gives_them(cloud: Stack) -> None:
    """A model of random weights calls nothing of use: what counts is that nothing is changed."""

    def ask(url: str) -> dict[str, Any]:
        with OpenAI(base_url=f"{url}/v1", api_key="none") as client:
            done = client.chat.completions.create(
                model="tiny",
                messages=HELLO,
                max_tokens=48,
                temperature=0,
                tools=[
                    {
                        "type": "function",
                        "function": {
                            "name": "weather",
                            "parameters": {
                                "type": "object",
                                "properties": {"hot": {"type": "boolean"}},
                                "required": ["hot"],
                                "additionalProperties": False,
                            },
                        },
                    }
                ],
                tool_choice={"type": "function", "function": {"name": "weather"}},
            )
        message: dict[str, Any] = done.choices[0].message.model_dump()
        for call in message["tool_calls"] or []:
            call.pop("id")  # made anew for each answer
        return message | {"finish_reason": done.choices[0].finish_reason}

    assert ask(cloud.url) == ask(cloud.engine_url)


def test_responses(client: OpenAI) -> None:
    # By chance, a model of random weights may end its answer at the first token.
    done = client.responses.create(
        model="tiny", input="Hello", max_output_tokens=8, temperature=0.0
    )
    assert done.output
    events = list(
        client.responses.create(model="tiny", input="Hello", max_output_tokens=8, stream=True)
    )
    assert events[0].type == "response.created"
    # A response that ran into its limit is `incomplete`.
    assert events[-1].type in ("response.completed", "response.incomplete")


def test_models_and_raw_responses(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    raw = client.chat.completions.with_raw_response.create(
        model="tiny", messages=HELLO, max_tokens=2, extra_headers={"X-Request-Id": "mine-1"}
    )
    assert raw.headers["x-request-id"] == "mine-1"
    assert raw.headers["x-measurement-type"] == "batched_online"
    assert "queue;dur=" in raw.headers["server-timing"]
    assert raw.parse().id == "chatcmpl-mine-1"


def test_errors_of_the_engine_and_of_the_sidecar(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="missing"):
        client.chat.completions.create(model="missing", messages=HELLO)
    with pytest.raises(openai.BadRequestError, match=r"9 sequences .* 8 slots"):
        client.chat.completions.create(
            model="tiny", messages=HELLO, n=9, extra_headers={"X-Orch-Do-Not-Queue": "true"}
        )
    with pytest.raises(openai.BadRequestError, match="max_tokens must be from 1"):
        client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=-1)
    with pytest.raises(openai.NotFoundError):  # the engine's: it generates
        client.embeddings.create(model="tiny", input="x")
    with pytest.raises(openai.NotFoundError, match="/v1/images/generations"):
        client.images.generate(model="tiny", prompt="x")


def test_the_anthropic_client(cloud: Stack) -> None:
    with anthropic.Anthropic(base_url=cloud.url, api_key="none") as client:
        done = client.messages.create(
            model="tiny", max_tokens=8, messages=[{"role": "user", "content": "Hello"}]
        )
        assert done.usage.output_tokens <= 8
        with client.messages.stream(
            model="tiny", max_tokens=8, messages=[{"role": "user", "content": "Hello"}]
        ) as stream:
            assert "".join(stream.text_stream)
        counted = client.messages.count_tokens(
            model="tiny", messages=[{"role": "user", "content": "Hello"}]
        )
        assert counted.input_tokens > 0
        with pytest.raises(anthropic.BadRequestError, match="max_tokens must be from 1"):
            client.messages.create(
                model="tiny", max_tokens=0, messages=[{"role": "user", "content": "Hello"}]
            )
